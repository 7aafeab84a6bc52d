"""The first step of a command: read its scenario before anything slow is imported, to tell mistakes at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from commands.terminal.failures import InputError, reading
from planners.catalogue import find_any

if TYPE_CHECKING:
    from ingest.scenario.load import Scenario

__all__: list[str] = []


def open_scenario(path: str, overrides: Sequence[str], *, strict: bool = False) -> Scenario:
    """Read a scenario file with its overrides; its model is not built yet, and then ``strict`` or not.

    Raises InputError for any mistake.
    """
    try:
        with reading(path):
            from ingest.scenario.load import load_scenario

            scenario = load_scenario(Path(path), overrides)
    except InputError as error:
        if _is_plan(path):
            raise InputError(
                f"{path}: this is a plan, expected a scenario (YAML); a plan comes before it"
            ) from error
        raise
    try:
        find_any(scenario.solver.name)
    except ValueError as error:
        raise InputError(f"{path}: solver.name: {error}") from error
    return replace(scenario, strict=strict)


def _is_plan(path: str) -> bool:
    """Tell whether a file that is no scenario is a plan file."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("format") == "pipecut plan"
