"""Executed times that no programme sees: a plan all the same, with an honest bound; small instances are proved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipecut.formulation.constraints.layers.pin import Pin
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.constraints import Constraints, Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.auto.by_formula import planned_by_formula
from pipecut.solvers.auto.solve import plan
from tests.examples import chain, instance_of, matrix, mesh
from tests.generators import OF_SINGLE_STAGES
from tests.solvers.test_stopped_anywhere import example

VGG13 = Path(__file__).parents[3] / "scenarios" / "pipepar" / "vgg13.yaml"


def small(schedule: Schedule) -> Instance:
    """Three layers for two devices, in three micro-batches."""
    layers = chain([matrix(name, 50, taken=90, made=90) for name in "abc"], [40, 70])
    training = Training(global_batch=3, micro_batches=3, schedule=schedule)
    return replace(instance_of(layers, mesh(1, 1), training=training), goals=(Goal.STEP_TIME,))


@pytest.mark.parametrize("schedule", [one for one in OF_SINGLE_STAGES if one.flushes])
def test_a_small_step_is_proved(schedule: Schedule) -> None:
    """By the search for the executed step, under ZB-H1 of a number of stages; of any the enumeration is asked."""
    asked = small(schedule)
    if schedule.in_halves:
        assert plan(asked, Limits()).solver == "brute_force"
        asked = replace(asked, constraints=replace(asked.constraints, stages_at_least=2, stages_at_most=2))
    found = plan(asked, Limits())
    assert found.proof is Proof.OPTIMAL
    assert found.solver == "step_dp"


@pytest.mark.slow
def test_a_large_step_has_a_plan_that_is_no_worse_than_the_best_by_the_formula(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is where the declarative model is too large; else it begins with this plan, and proves."""
    scenario = load_scenario(
        VGG13,
        [
            "objective=step_time",
            "training.schedule=one_f_one_b",
            "training.micro_batches=4",
            "constraints.stages_per_server=1",
        ],
    )
    instance = scenario.load()
    proved = plan(instance, Limits())
    assert (proved.solver, proved.proof) == ("cpsat", Proof.OPTIMAL) and proved.bound is not None
    monkeypatch.setattr("pipecut.solvers.crosscheck.LARGEST_EXECUTED_BYTES", 0)
    found = checked(instance, plan(instance, Limits()))
    by_formula = plan(replace(instance, goals=(Goal.ITERATION_TIME,)), Limits()).plan
    assert found.proof is Proof.FEASIBLE and found.solver == "by_formula"
    assert found.objective is not None and found.bound is not None and by_formula is not None
    executed = evaluate(instance, by_formula).objective
    assert executed is not None and 0 < found.bound <= proved.bound <= found.objective <= executed


def asking_for_the_middle(layer: str) -> Instance:
    """Three layers for three devices, of which one is pinned to the stage between two others."""
    layers = chain([matrix(name, 50, taken=90, made=90) for name in "abc"], [1, 1])
    training = Training(global_batch=6, micro_batches=6, schedule=Schedule.ONE_F_ONE_B)
    instance = replace(instance_of(layers, mesh(1, 1, 1), training=training), goals=(Goal.STEP_TIME,))
    return replace(instance, constraints=Constraints(pins=(Pin(layer, stage=1),), devices_per_stage=(1,)))


def test_the_bound_without_a_demand_is_one_with_it() -> None:
    """The plan that is best without the pin has the layer there, and so it is the best with it."""
    found = checked(asked := asking_for_the_middle("b"), planned_by_formula(asked, Limits(), plan))
    assert found.proof is Proof.OPTIMAL and "need not keep to pin" in " ".join(found.notes)
    other = checked(asked := asking_for_the_middle("c"), planned_by_formula(asked, Limits(), plan))
    assert other.proof is Proof.FEASIBLE and found.objective is not None and other.bound is not None
    assert found.objective == other.bound < (other.objective or 0)


def test_it_is_for_executed_times_only() -> None:
    with pytest.raises(ValueError, match="executed times"):
        planned_by_formula(example(), Limits(), plan)
