from __future__ import annotations

from pathlib import Path

import pytest

from formulation.outcome import Limits
from ingest.scenario.load import load_scenario
from solvers.catalogue import SOLVERS, find_solver, solver_names
from tests.commands.fakes import ROOT


@pytest.mark.parametrize("entry", SOLVERS, ids=lambda entry: entry.name)
def test_an_entry_loads_the_solver_that_signs_with_its_name(entry: object, scenario: Path) -> None:
    goal = "iteration_time" if entry.name == "paced_dp" else "bottleneck"  # pyright: ignore
    instance = load_scenario(scenario, [f"objective={goal}", "cost.combine=max"]).load()
    found = find_solver(entry.name).load()(instance, Limits())  # pyright: ignore
    assert found.solver == entry.name  # pyright: ignore


def test_names_are_unique_and_known() -> None:
    assert len(set(solver_names())) == len(SOLVERS)
    with pytest.raises(ValueError, match="no solver 'magic'; expected one of cpsat, "):
        find_solver("magic")


def test_every_solver_module_is_in_the_catalogue() -> None:
    """A module of solvers/ that defines ``solve`` is either an entry or a part of one."""
    defining = {
        path.stem for path in (ROOT / "solvers").glob("*.py") if "\ndef solve(" in path.read_text(encoding="utf-8")
    }
    assert defining <= set(solver_names())
