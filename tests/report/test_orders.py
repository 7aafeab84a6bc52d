"""Plans in orders of actions that the planner does not know: shared ranks, split backward passes, files."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import Synchronisation
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import Action, PipelineSchedule, ScheduleError
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from pipecut.formulation.timeline import measures as bounds
from pipecut.report.content import content_of
from pipecut.report.measures import Measure, Relation, spent_of
from pipecut.report.page import page_of, pictures
from pipecut.report.simulation import Simulation, simulate
from pipecut.report.trace import trace_of
from tests.examples import on_servers
from tests.formulation.timeline.test_timeline_of_plan import line_plans
from tests.generators import OF_SINGLE_STAGES, instances
from tests.laws import so_many
from tests.report.runs import case
from tests.report.test_page import Page


def dealt(ranks: int, chunks: int, micro_batches: int, *, devices: int = 1) -> tuple[Instance, Plan]:
    """A plan whose stage s names the devices of stage s mod ranks."""
    instance, plan = case(ranks * chunks, micro_batches, devices=devices)
    rows = [replace(stage, group=plan.stages[at % ranks].group) for at, stage in enumerate(plan.stages)]
    return instance, Plan(tuple(rows))


def parts_add_up(run: Simulation) -> None:
    for spent in spent_of(run):
        parts = asdict(spent)
        assert sum(parts.values()) == run.timeline.makespan_ns
        assert all(part >= 0 for part in parts.values()), parts


@pytest.mark.parametrize(("ranks", "chunks"), [(2, 2), (4, 2), (3, 4), (1, 3)])
def test_interleaved_deals_the_stages_round(ranks: int, chunks: int) -> None:
    instance, plan = dealt(ranks, chunks, 4 * ranks)
    run = simulate(instance, plan, interleaved(ranks, chunks, 4 * ranks))
    assert run.ranks == tuple(tuple(range(rank, ranks * chunks, ranks)) for rank in range(ranks))
    assert run.schedule == "interleaved" and run.evaluation.feasible
    assert {"devices"} <= {one.rule for one in evaluate(instance, plan).violations}, (
        "counted twice by the evaluator"
    )
    parts_add_up(run)
    found = content_of(run, scenario="x")
    assert [stage["rank"] for stage in found["stages"]] == [at % ranks for at in range(ranks * chunks)]
    assert len(found["ranks"]) == ranks and found["ranks"][0]["peak_bytes_formula"] is None
    assert Page(page_of(found)).json == found
    assert [picture.name for picture in pictures(found)] == ["plan", "timeline", "memory", "time"]
    rows = json.loads(trace_of(run))["traceEvents"]
    assert len([row for row in rows if row["name"] == "thread_name" and row["pid"] == 1]) == ranks
    assert {row["tid"] for row in rows if row["ph"] == "X" and row["pid"] == 1} == set(range(ranks))


def test_theory_of_uniform_stages_is_met_where_stages_are_uniform() -> None:
    instance, plan = dealt(3, 2, 6)
    costs = evaluate(instance, plan).stages
    assert len({cost.compute_ns for cost in costs}) > 1
    run = simulate(instance, plan, interleaved(3, 2, 6))
    level = replace(
        run.made.durations,
        forward_ns=(10,) * 6,
        backward_ns=(20,) * 6,
        weight_gradient_ns=(10,) * 6,
        activation_ns=(0,) * 5,
        gradient_ns=(0,) * 5,
    )
    assert bounds.uniform_iteration_ns(3, 6, 10, 20, 2) == (2 * 6 + 2) * 30
    rows = {row.source: row for row in Measure.all_of(replace(run, made=replace(run.made, durations=level)))}
    assert rows["uniform stages: (V M + P − 1) times the slowest stage"].formula == 14 * 30


def test_zero_bubble_keeps_what_its_closed_form_says() -> None:
    instance, plan = case(4, 8)
    found = content_of(simulate(instance, plan, zero_bubble_h1(4, 8)), scenario="x")
    assert found["schedule"] == "zero_bubble_h1" and {row[0] for row in found["timeline"]["events"]} == set(
        "FIWag"
    )
    for rank in found["ranks"]:
        assert rank["peak_bytes"] == rank["peak_bytes_formula"]
    planned = content_of(simulate(instance, plan), scenario="x")
    assert found["ranks"][3]["peak_bytes"] > planned["ranks"][3]["peak_bytes"]


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from(OF_SINGLE_STAGES), st.sampled_from(Synchronisation), st.integers(1, 4))
def test_any_plan_in_another_order(
    data: st.DataObject, schedule: Schedule, synchronisation: Synchronisation, many: int
) -> None:
    instance = data.draw(instances())
    samples = instance.training.micro_batch
    training = replace(instance.training, schedule=schedule, micro_batches=many, global_batch=many * samples)
    cost = replace(instance.cost, synchronisation=synchronisation)
    instance = replace(instance, training=training, cost=cost)
    plan = data.draw(line_plans(instance))
    order = data.draw(st.sampled_from([zero_bubble_h1, one_f_one_b]))(len(plan), many)
    run = simulate(instance, plan, order)
    parts_add_up(run)
    for row in Measure.all_of(run):
        if row.relation == Relation.LEAST and row.formula is not None and row.timeline is not None:
            assert row.timeline >= row.formula, row
    found = content_of(run, scenario="any")
    assert all(rank["peak_bytes"] == rank["peak_bytes_formula"] for rank in found["ranks"])


def test_no_bound_speaks_of_a_plan_that_shares_devices() -> None:
    instance, plan = dealt(2, 2, 4)
    shared = simulate(instance, plan, interleaved(2, 2, 4))
    claim = content_of(shared, scenario="x", comparison={"bound": 1, "solvers": []})["claim"]
    assert claim["bound"] == 1 and claim["gap"] is None
    assert claim["notes"] == ["priced under one_f_one_b, each stage on devices of its own; run as interleaved"]


def test_a_given_order_flushes_whatever_the_training_does() -> None:
    instance, plan = case(3, 6, Schedule.ASYNC_ONE_F_ONE_B)
    flushing, _ = case(3, 6)
    given_order = simulate(instance, plan, one_f_one_b(3, 6))
    assert given_order.timeline.makespan_ns == simulate(flushing, plan).timeline.makespan_ns
    assert given_order.made.footprint == simulate(flushing, plan).made.footprint
    assert given_order.steps == 1 and simulate(instance, plan).steps == 3


def test_memory_is_held_to_the_timeline() -> None:
    instance, plan = dealt(2, 2, 8)
    kept = max(cost.memory_bytes for cost in evaluate(instance, plan).stages)
    (old,) = instance.device_classes
    small = replace(old, memory_bytes=kept)
    servers = tuple(replace(server, device_class=small) for server in instance.servers)
    limits = replace(instance.constraints, memory=True)
    tight = on_servers(replace(instance, constraints=limits), servers)
    assert "memory" not in {one.rule for one in evaluate(tight, plan).violations}, "no stage alone is too large"
    run = simulate(tight, plan, interleaved(2, 2, 8))
    broken = run.evaluation.violations
    assert {one.rule for one in broken} == {"memory"}
    assert broken[0].found == content_of(run, scenario="x")["ranks"][0]["peak_bytes"]
    assert broken[0].found > broken[0].limit == kept and "under interleaved" in broken[0].message


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([["0F0", "0B0"]], "its stages are 1, those of the plan 2"),
        ([["0F0", "0B0"], ["1F0", "1B0"]], "its micro-batches are 1, training.micro_batches is 2"),
        (
            [["0F0", "0F1", "1F0", "1F1", "1B0", "1B1", "0B0", "0B1"]],
            "stages 0 and 1 share rank 0, but run on 1 x s0",
        ),
        ([["0F0", "0F1", "0B0", "0B1"], [], ["1F0", "1B0", "1F1", "1B1"]], "rank 1 has no action"),
        ([["0F0", "0B0"], ["0F1", "0B1"], ["1F0", "1B0", "1F1", "1B1"]], "stage 0 is on ranks 0, 1"),
    ],
)
def test_an_order_that_does_not_fit_is_refused(tokens: list[list[str]], reason: str) -> None:
    instance, plan = case(2, 2)
    order = PipelineSchedule.of_actions("mine", [[Action.parse(token) for token in row] for row in tokens])
    with pytest.raises(ScheduleError, match=reason):
        simulate(instance, plan if "share" not in reason else two_modes(), order)


def two_modes() -> Plan:
    """Two stages on one device each, of which the second recomputes."""
    _, plan = case(2, 2)
    first, second = plan.stages
    return Plan((first, replace(second, group=replace(second.group, mode=Mode(recompute=True)))))


@pytest.mark.parametrize(
    ("goal", "unit"), [(Goal.MEMORY, "bytes"), (Goal.DEVICES, "devices"), (Goal.ITERATION_TIME, "ns")]
)
def test_a_claim_says_its_goal(goal: Goal, unit: str) -> None:
    instance, plan = case(3, 6)
    found = content_of(simulate(replace(instance, goals=(goal, Goal.BOTTLENECK)), plan), scenario="x")
    claim = found["claim"]
    assert claim["goal"] == goal and claim["unit"] == unit
    assert claim["objective"] == {"bytes": max(rank["peak_bytes"] for rank in found["ranks"]), "devices": 3}.get(
        unit, claim["objective"]
    )
    assert [row["goal"] for row in claim["further"]] == ["bottleneck"]
    assert found["measures"][-2]["key"] == "period"
    bottleneck = claim["further"][0]["value"]
    assert bottleneck in [row["formula"] for row in found["measures"] if row["key"] == "period"]
    assert Page(page_of(found)).json == found
