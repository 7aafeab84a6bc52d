"""The first step of a command: read its scenario before anything slow is imported, to tell mistakes at once.

A scenario, a sweep or a plan is a file, or the name of one that ships, in a terminal and in Python.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from pipecut.commands.parser.grammar import SURE
from pipecut.commands.terminal.failures import InputError, reading
from pipecut.solvers.catalogue import find_any

if TYPE_CHECKING:
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan
    from pipecut.ingest.mistakes import ScenarioError
    from pipecut.ingest.scenario.load import Scenario

SCENARIO, SWEEP, PLAN = ".yaml", ".sweep.yaml", ".plan.json"
"""What files end with that ship, and no name of one: the longer ending is the kind of a file that has both."""
KINDS = {SCENARIO: "scenario", SWEEP: "sweep", PLAN: "plan"}
ARGUMENTS = {"sweep": SWEEP, "plan": PLAN, "other": PLAN, "against": PLAN}
"""What a command line names beside its scenario that may ship, by argument."""


def shipped_names(folder: Path, ending: str = SCENARIO) -> dict[str, list[Path]]:
    """Return files of a folder by their names: with sub-folders that of one, alone perhaps that of several."""
    from pipecut.ingest.scenario.shipped import scenario_files

    paths = scenario_files(folder) if ending == SCENARIO else sorted(folder.rglob(f"*{ending}"))
    whole = {path.relative_to(folder).as_posix().removesuffix(ending): [path] for path in paths}
    alone: dict[str, list[Path]] = {}
    for name, (path,) in whole.items():
        alone.setdefault(name.rpartition("/")[2], []).append(path)
    return alone | whole


def shortest(path: Path, names: dict[str, list[Path]]) -> str:
    """Return the shortest name that means this file and no other."""
    return min((name for name, files in names.items() if files == [path]), key=len)


def file_of(word: str | Path, ending: str = SCENARIO) -> str:
    """Return the path of what is named: of a file, which comes first, or of a shipped one of the kind.

    What is plainly a path stays as it is. Raises ScenarioError for a name that several have or, telling what is
    near, none.
    """
    word = str(word)
    # A folder can be no scenario, so that one that is called like a model does not stand in the way.
    if not word or (os.path.lexists(word) and not Path(word).is_dir()):
        return word
    from pipecut.ingest.scenario.shipped import SHIPPED

    names = shipped_names(SHIPPED, ending)
    found = names.get(word, [])
    if len(found) > 1:
        which = " or ".join(f"'{shortest(path, names)}'" for path in found)
        raise _unknown(word, f"{len(found)} of the shipped {KINDS[ending]}s have this name; say {which}")
    if found or os.path.lexists(word):
        return str(found[0]) if found else word
    spelled = get_close_matches(word.removesuffix(ending), names, cutoff=SURE)
    near = dict.fromkeys(f"'{shortest(path, names)}'" for name in spelled for path in names[name])
    if not near and Path(word).suffix:
        return word
    meant = f", did you mean {' or '.join(near)}?" if near else ""
    listed = "pipecut scenarios lists them" if ending == SCENARIO else f"there is {', '.join(sorted(names))}"
    none = f"no shipped {KINDS[ending]} has this name either"
    raise _unknown(word, f"cannot read the file: No such file or directory; {none}{meant} ({listed})")


def _unknown(word: str, message: str) -> ScenarioError:
    from pipecut.ingest.mistakes import FilePlace, Mistake, ScenarioError

    return ScenarioError([Mistake(FilePlace(word), "", message)])


def open_scenario(path: str, overrides: Sequence[str], *, strict: bool = False) -> Scenario:
    """Read a scenario file with its overrides; its model is not built yet, and then ``strict`` or not.

    Raises InputError for any mistake.
    """
    try:
        with reading(path):
            scenario = read_scenario(path, overrides)
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


def read_scenario(path: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario, a file or a name, without its model: what it says, part by part. Raises ScenarioError."""
    from pipecut.ingest.scenario.load import load_scenario

    return load_scenario(file_of(path), overrides)


def read_plan(path: str | Path, instance: Instance) -> Plan:
    """Read a plan for an instance: a file, or the name of one that ships. Raises ValueError with every mistake."""
    from pipecut.ingest.plans.plan_file import read_plan

    return read_plan(file_of(path, PLAN), instance)


def _is_plan(path: str) -> bool:
    """Tell whether a file that is no scenario is a plan file."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("format") == "pipecut plan"
