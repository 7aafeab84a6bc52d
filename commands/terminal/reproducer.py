"""A failed claim on file: all that is needed to see it again, as JSON where the user runs pipecut."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from formulation.outcome import Limits

PACKAGES = ("pipecut", "ortools", "networkx", "numpy", "pydantic", "torch")


def write_reproducer(
    scenario: str | Path,
    overrides: Sequence[str],
    solver: str,
    limits: Limits,
    message: str,
    details: Mapping[str, Any] | None = None,
) -> Path:
    """Write the reproducer into the working directory and return its path. Raises OSError.

    ``details`` is more that belongs to this failure, such as the route that disagrees and its counter-plan.

    The name follows from the content, so the same failure overwrites its own file and no other.
    """
    from ingest.files import atomic_write

    content: dict[str, Any] = {
        "claim": message,
        "scenario": str(scenario),
        "overrides": list(overrides),
        "solver": solver,
        "seed": limits.seed,
        "workers": limits.workers,
        "time_limit_s": limits.time_limit_s,
        "versions": versions(),
        "platform": platform.platform(),
        **(details or {}),
    }
    text = json.dumps(content, indent=2) + "\n"
    path = Path(f"pipecut-false-claim-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json")
    atomic_write(path, text)
    return path


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that a plan depends on (None: not installed)."""
    found: dict[str, str | None] = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found
