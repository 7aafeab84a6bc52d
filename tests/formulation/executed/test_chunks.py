"""Plans whose groups hold several stages: prices, memory and executed times against the timeline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.costs.goals import goal_value
from pipecut.formulation.costs.prices import stage_costs
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import BoundaryCharge, Combine
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.timeline.from_plan import PlanRun
from pipecut.formulation.timeline.timeline import run
from tests.examples import PLAIN, chain, instance_of, matrix, mesh
from tests.generators import any_costs, chunked


@given(st.data())
def test_a_step_takes_what_the_timeline_takes(data: st.DataObject):
    instance, plan = data.draw(chunked(any_costs))
    made = PlanRun.of(instance, plan)
    executed = run(made.schedule, made.durations, made.execution).makespan_ns
    assert goal_value(Goal.STEP_TIME, instance, plan, stage_costs(instance, plan)) == executed


@given(st.data())
def test_a_group_holds_at_most_what_the_timeline_holds(data: st.DataObject):
    instance, plan = data.draw(chunked(any_costs))
    made = PlanRun.of(instance, plan)
    timeline = run(made.schedule, made.durations, made.execution)
    for stage, cost in enumerate(stage_costs(instance, plan)):
        held = made.footprint.over_time(timeline, timeline.schedule.stage_ranks[stage][0])
        assert cost.memory.total == held.peak_bytes


@given(st.data())
def test_the_bottleneck_is_that_of_groups_and_links(data: st.DataObject):
    instance, plan = data.draw(chunked(any_costs))
    instance = replace(instance, cost=replace(instance.cost, combine=Combine.MAX))
    costs, ranks = stage_costs(instance, plan), len(plan) // instance.training.chunks
    busy, sent = [0] * ranks, [0] * ranks
    on = [one for (one,) in PlanRun.of(instance, plan).schedule.stage_ranks]
    for at, cost in enumerate(costs):
        busy[on[at]] += cost.total_ns
        # In a V the ways down and up between two groups are one link, which counts for the later group.
        sent[max(on[at], on[at - 1]) if instance.training.schedule.in_a_v else on[at]] += cost.boundary_ns
    links = sent if instance.cost.boundary_charge is BoundaryCharge.LINK else []
    assert goal_value(Goal.BOTTLENECK, instance, plan, costs) == max(*busy, *links)


def two_by_two(micro_batches: int = 2, chunks: int = 2) -> Instance:
    layers = chain([matrix(name, 10, 10) for name in "abcd"], [10, 10, 10])
    return instance_of(
        layers, mesh(2, 2), training=Training(micro_batches, micro_batches, chunks=chunks), cost=PLAIN
    )


def plan_on(*servers: int) -> Plan:
    groups = [Group(((server, 1),)) for server in servers]
    return Plan(tuple(Stage(Span(at, at + 1), group, (0,)) for at, group in enumerate(groups)))


def test_devices_of_a_group_count_once_and_of_the_line_too():
    instance = replace(two_by_two(), goals=(Goal.DEVICES,))
    found = evaluate(instance, plan_on(0, 0, 0, 0))
    assert (found.objective, found.violations) == (2, ())


@pytest.mark.parametrize(
    ("instance", "plan", "said"),
    [
        (two_by_two(), plan_on(0, 0, 0), "the plan has 3 stages, expected a multiple of training.chunks 2"),
        (two_by_two(chunks=4), plan_on(0, 0, 0, 0), "at least 8"),
        (two_by_two(3), plan_on(0, 0, 0, 0), "3 micro-batches on 2 groups"),
        (two_by_two(), plan_on(0, 0, 0, 1), "stage 3 and stage 1 are chunks of one group"),
    ],
)
def test_what_cannot_be_dealt_out_has_no_price(instance: Instance, plan: Plan, said: str):
    found = evaluate(instance, plan)
    assert found.objective is None
    assert said in " ".join(one.message for one in found.violations)


def test_uneven_groups_are_refused():
    two = Group(((0, 2),))
    plan = Plan(tuple(Stage(Span(at, at + 1), two if at % 2 else Group(((1, 1),)), (0,)) for at in range(4)))
    assert "equally many devices" in " ".join(one.message for one in evaluate(two_by_two(), plan).violations)


def test_chunks_are_for_1f1b_and_a_formula_of_single_stages_is_no_goal():
    with pytest.raises(ValueError, match="chunks is 2 under gpipe"):
        Training(2, 2, schedule=Schedule.GPIPE, chunks=2)
    with pytest.raises(ValueError, match="ask for step_time"):
        replace(two_by_two(), goals=(Goal.ITERATION_TIME,))
