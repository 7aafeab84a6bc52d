"""Executed times as goals, with limits and rules that no programme for them sees: proved, from end to end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import pipecut as pipecut_module
from pipecut.formulation.constraints.constraint import Violation
from pipecut.formulation.constraints.plans.own import Own
from pipecut.formulation.outcome import Proof
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.cpsat.variables import Posted, Variables
from tests.command_line import Command

STEP = ("objective=step_time", "training.schedule=one_f_one_b")
PERIOD = ("objective=period", "training.schedule=async_one_f_one_b")


def first_kept_free(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """A rule of one's own: no stage is on the first server."""
    for index, stage in enumerate(plan.stages):
        if 0 in dict(stage.group.counts):
            yield Violation(
                "kept_free", f"stage {index}", 1, 0, "devices", f"stage {index} is on the first server"
            )


def post_first_kept_free(v: Variables) -> Posted:
    """Its family."""
    for k in range(v.slots):
        yield (k,), v.model.add_bool_or([~v.touches[k][0]])


@pytest.mark.parametrize("goal", [STEP, PERIOD], ids=["step", "period"])
def test_limits_on_other_goals_are_kept_beside_an_executed_time(
    pipecut: Command, scenario: Path, goal: tuple[str, ...]
) -> None:
    asked = [word for one in goal for word in ("--set", one)]
    free = pipecut("plan", scenario, "--json", *asked).json
    limited = pipecut("plan", scenario, "--json", *asked, "--set", "constraints.at_most.devices=1").json
    assert free["proof"] == limited["proof"] == "optimal"
    assert free["objective"] < limited["objective"]
    assert len(limited["stages"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("goal", [STEP, PERIOD], ids=["step", "period"])
def test_a_rule_of_ones_own_is_kept_beside_an_executed_time(scenario: Path, goal: tuple[str, ...]) -> None:
    loaded = load_scenario(scenario, [*goal, "constraints.placement=free"]).load()
    own = (Own("kept_free", first_kept_free, post_first_kept_free),)
    found = pipecut_module.plan(replace(loaded, constraints=replace(loaded.constraints, own=own)))
    assert (found.solver, found.proof) == ("cpsat", Proof.OPTIMAL)
    assert found.plan is not None and not any(0 in dict(stage.group.counts) for stage in found.plan.stages)
