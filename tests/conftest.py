"""Settings of all tests: Hypothesis without a deadline, as the first call of a solver imports and warms up.

The same commit draws the same examples, so that a red test is red for everybody; `--hypothesis-profile=explore`
draws others each time, to look for what the usual ones miss.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.command_line import own_cache, pipecut, scenario
from tests.laws import mark_slow, so_many

__all__ = ["own_cache", "pipecut", "pytest_collection_finish", "pytest_collection_modifyitems", "scenario"]

settings.register_profile(
    "explore",
    deadline=None,
    max_examples=so_many(100),
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("pipecut", settings.get_profile("explore"), derandomize=True)
settings.load_profile("pipecut")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which cases are slow before those are left out."""
    mark_slow(items)


def pytest_collection_finish() -> None:
    """Leave what is imported and collected by now out of every collection of garbage."""
    gc.freeze()


class _OnePackage(MetaPathFinder):
    """Refuses a room by its bare name: the folder lies on the path of tests, and would be there twice."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:
        if path is None and (Path(__file__).parents[1] / fullname / "__init__.py").exists():
            raise ImportError(f"import pipecut.{fullname}, not {fullname}")


sys.meta_path.insert(0, _OnePackage())
