from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipecut.formulation.outcome import Limits
from pipecut.formulation.problem.constraints import Constraints
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.catalogue import AUTO, all_names, all_solvers, find_any
from tests.commands.fakes import ROOT


@pytest.mark.parametrize("entry", all_solvers(), ids=lambda entry: entry.name)
def test_an_entry_loads_the_solver_that_signs_with_its_name(entry: object, scenario: Path) -> None:
    goals = {"step_dp": "step_time", "reduced_dp": "iteration_time"}
    goal = goals.get(entry.name, "bottleneck")  # pyright: ignore
    instance = load_scenario(scenario, [f"objective={goal}", "cost.combine=max"]).load()
    if entry.name == "cpsat_chunks":  # pyright: ignore
        training, one = replace(instance.training, chunks=2), Constraints(tensor_parallel_degrees=(1,))
        instance = replace(instance, training=training, constraints=one)
    found = find_any(entry.name).load()(instance, Limits())  # pyright: ignore
    assert found.solver == entry.name  # pyright: ignore


def test_names_are_unique_and_known() -> None:
    assert len(set(all_names())) == len(all_solvers())
    with pytest.raises(ValueError, match="no solver 'magic'; expected one of auto, cpsat, "):
        find_any("magic")


def test_every_solver_module_is_in_the_catalogue() -> None:
    """A module that defines ``solve`` from an instance and limits to an outcome is that of an entry."""
    said = {(entry.load().__module__) for entry in (AUTO, *all_solvers())}
    defining = {
        ".".join(("pipecut", *path.relative_to(ROOT).with_suffix("").parts))
        for room in ("solvers", "planners")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"\ndef solve\([^)]*\) -> Outcome", path.read_text(encoding="utf-8"))
    }
    assert defining <= said
