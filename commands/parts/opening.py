"""The first step of a command: read its scenario before anything slow is imported, to tell mistakes at once.

A scenario is a file, or the name of one that ships.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from pipecut.commands.parser.grammar import SURE
from pipecut.commands.terminal.failures import InputError, reading
from pipecut.solvers.catalogue import find_any

if TYPE_CHECKING:
    from pipecut.ingest.scenario.load import Scenario

ENDING = ".yaml"
"""Of a scenario file, and of no name."""


def shipped_names(paths: Iterable[Path], folder: Path) -> dict[str, list[Path]]:
    """Return scenario files of a folder by their names: with sub-folders that of one, alone perhaps of several."""
    whole = {path.relative_to(folder).with_suffix("").as_posix(): [path] for path in paths}
    alone: dict[str, list[Path]] = {}
    for (path,) in whole.values():
        alone.setdefault(path.stem, []).append(path)
    return alone | whole


def shortest(path: Path, names: dict[str, list[Path]]) -> str:
    """Return the shortest name that means this file and no other."""
    return min((name for name, files in names.items() if files == [path]), key=len)


def file_of(word: str) -> str:
    """Return the path of the scenario that a command line names; what is neither file nor name stays as it is.

    A file always comes first. Raises InputError for a name that several shipped scenarios have.
    """
    # A folder can be no scenario, so that one that is called like a model does not stand in the way.
    if os.path.lexists(word) and not Path(word).is_dir():
        return word
    names = _all_shipped()
    found = names.get(word, [])
    if len(found) > 1:
        which = " or ".join(f"'{shortest(path, names)}'" for path in found)
        raise InputError(f"{word}: {len(found)} of the shipped scenarios have this name; say {which}")
    return str(found[0]) if found else word


def _all_shipped() -> dict[str, list[Path]]:
    from pipecut.ingest.scenario.shipped import SHIPPED, scenario_files

    return shipped_names(scenario_files(SHIPPED), SHIPPED)


def _near(word: str) -> str:
    """Return the end of a message about a scenario that there is not: the names that may have been meant.

    Empty for what is plainly a path.
    """
    names = _all_shipped()
    spelled = get_close_matches(word.removesuffix(ENDING), names, cutoff=SURE)
    near = dict.fromkeys(f"'{shortest(path, names)}'" for name in spelled for path in names[name])
    if not near and Path(word).suffix:
        return ""
    meant = f", did you mean {' or '.join(near)}?" if near else ""
    return f"; no shipped scenario has this name either{meant} (pipecut scenarios lists them)"


def open_scenario(path: str, overrides: Sequence[str], *, strict: bool = False) -> Scenario:
    """Read a scenario file with its overrides; its model is not built yet, and then ``strict`` or not.

    Raises InputError for any mistake.
    """
    try:
        with reading(path):
            from pipecut.ingest.scenario.load import load_scenario

            scenario = load_scenario(Path(path), overrides)
    except InputError as error:
        if _is_plan(path):
            raise InputError(
                f"{path}: this is a plan, expected a scenario (YAML); a plan comes before it"
            ) from error
        if path and not os.path.lexists(path):
            raise InputError(f"{error}{_near(path)}") from error
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
