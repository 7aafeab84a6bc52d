"""What is minimised where a scenario does not say: the executed time, of a step or, without a flush, a period."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.layers import Layer, LayerGraph, Split
from pipecut.formulation.problem.options import CostModel, default_goals
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.ingest.scenario.load import Scenario, load_scenario
from pipecut.ingest.scenario.shipped import SHIPPED, scenario_files
from pipecut.solvers.auto.solve import plan

STEP, PERIOD, BOTTLENECK = (Goal.STEP_TIME,), (Goal.PERIOD,), (Goal.BOTTLENECK,)


def load(folder: Path, training: str = "", said: str = "", overrides: tuple[str, ...] = ()) -> Scenario:
    path = folder / "it.yaml"
    text = (
        "name: it\nmodel: {graph: layers.json}\n"
        "cluster:\n  devices: {card: {memory: 1 GiB, peak: 1 TFLOP/s}}\n"
        "  servers: [{name: n, device: card, devices: 1}]\n"
        f"training: {{global_batch: 4{training}}}\n{said}"
    )
    path.write_text(text, encoding="utf-8")
    return load_scenario(path, overrides)


@pytest.mark.parametrize(
    ("said", "overrides", "noted"),
    [
        ("objective: cost", (), True),
        ("objective: [stages, cost]", (), True),
        ("constraints: {at_most: {cost: 3}}", (), True),
        ("objective: cost", ("cluster.devices.card.price_per_hour=0.1",), False),
        ("constraints: {at_most: {memory: 1 MiB}}", (), False),
        ("", (), False),
    ],
)
def test_that_nothing_costs_anything_is_said_where_it_matters(
    tmp_path: Path, said: str, overrides: tuple[str, ...], noted: bool
) -> None:
    graph = LayerGraph.chain("m", [Layer("a", "x", Split.MATRIX, 8, 8, 8, 8, 8)]).graph()
    found = load(tmp_path, "", said, overrides).instance(graph)
    assert any("no device has a price, so all plans cost 0" in note for note in found.model.notes) == noted


@pytest.mark.parametrize("schedule", Schedule)
def test_a_step_where_one_ends_and_else_the_period(tmp_path: Path, schedule: Schedule) -> None:
    expected = STEP if schedule.flushes else PERIOD
    assert load(tmp_path, f", schedule: {schedule}").goals == expected
    assert default_goals(Training(4, schedule=schedule), CostModel()) == expected


@pytest.mark.parametrize(
    ("training", "said", "goals"),
    [
        ("", "", STEP),
        (", schedule: choose", "", STEP),
        (", schedule: [gpipe, one_f_one_b], micro_batches: [1, 2]", "", STEP),
        (", chunks: [1, 2], micro_batches: 2", "", STEP),
        ("", "objective: bottleneck", BOTTLENECK),
        (", schedule: async_one_f_one_b", "objective: bottleneck", BOTTLENECK),
        (", schedule: gpipe", "objective: [iteration_time, cost]", (Goal.ITERATION_TIME, Goal.COST)),
        ("", "objective: devices", (Goal.DEVICES,)),
        ("", "cost: {combine: sum}", BOTTLENECK),
        (", schedule: double_buffered", "cost: {combine: sum}", BOTTLENECK),
        ("", "cost: {combine: sum}\nobjective: step_time", STEP),
        ("", "cost: {combine: max}", STEP),
    ],
)
def test_what_is_said_counts_and_else_what_is_executed(
    tmp_path: Path, training: str, said: str, goals: tuple[Goal, ...]
) -> None:
    assert load(tmp_path, training, said).goals == goals


def test_what_is_set_decides(tmp_path: Path) -> None:
    assert load(tmp_path, overrides=("training.schedule=double_buffered",)).goals == PERIOD
    assert load(tmp_path, ", schedule: double_buffered", overrides=("training.schedule=gpipe",)).goals == STEP
    assert load(tmp_path, overrides=("objective=bottleneck",)).goals == BOTTLENECK
    assert load(tmp_path, said="objective: bottleneck", overrides=("objective=null",)).goals == STEP


def test_the_papers_scenarios_say_what_papers_minimise() -> None:
    goals = {path: load_scenario(path).goals for path in scenario_files(SHIPPED)}
    executed = {path.name for path, found in goals.items() if found[0].executed}
    assert executed == {"llama7b.yaml"}
    assert all(found[0] is Goal.BOTTLENECK for path, found in goals.items() if path.name not in executed)


@pytest.mark.parametrize("schedule", ["one_f_one_b", "async_one_f_one_b"])
def test_the_best_plan_is_best_as_executed(scenario: Path, schedule: str) -> None:
    """The tiny scenario without its goal: what is found is proved, and is the price of a run."""
    instance = load_scenario(
        scenario, ["objective=null", "training.micro_batches=4", f"training.schedule={schedule}"]
    ).load()
    found = plan(instance, Limits())
    assert found.proof is Proof.OPTIMAL and found.goals[0].executed and found.plan is not None
    assert evaluate(instance, found.plan).objective == found.objective == found.bound
