"""Warm-ups of 1F1B: which lists of them can be executed, what they take and hold, and that more may be slower."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.constraints.rules import structure_violations
from pipecut.formulation.costs.goals import goal_value
from pipecut.formulation.costs.prices import stage_costs
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.executed import PipelinePasses, step_ns
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.naive import naive
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import (
    DeadlockError,
    Kind,
    PipelineSchedule,
    ScheduleError,
    in_slots,
    one_rank_each,
    peak_in_flight,
    validate,
)
from pipecut.formulation.schedules.table import run as actions_of
from pipecut.formulation.timeline.from_plan import PlanRun
from pipecut.formulation.timeline.timeline import run
from pipecut.report.simulation import one_f_one_b_period_ns
from tests.formulation.executed.test_executed import durations_of, passes_of
from tests.formulation.schedules.test_schedules import tokens
from tests.formulation.timeline.test_timeline_of_plan import line_plans
from tests.generators import instances


@st.composite
def falling(draw: st.DrawFn, stages: int, most: int) -> tuple[int, ...]:
    return tuple(sorted((draw(st.integers(1, most)) for _ in range(stages)), reverse=True))


@given(st.data(), passes_of(), st.integers(1, 6))
def test_a_step_takes_what_the_timeline_takes(data: st.DataObject, passes: PipelinePasses, size: int):
    warm_ups = data.draw(falling(passes.stages, size))
    schedule = one_f_one_b(passes.stages, size, warm_ups)
    validate(schedule)
    assert peak_in_flight(schedule) == list(warm_ups)
    executed = run(schedule, durations_of(passes)).makespan_ns
    assert step_ns(Schedule.ONE_F_ONE_B, passes, size, warm_ups) == executed


def _in_any_order(size: int, warm_ups: tuple[int, ...]) -> PipelineSchedule:
    """1F1B with any warm-ups, whether it can be executed or not."""
    import numpy as np

    every = np.arange(size)
    rows = [
        (
            actions_of(Kind.FORWARD, stage, every, 2 * (every - warm_up + 1)),
            actions_of(Kind.BACKWARD, stage, every, 2 * every + 1),
        )
        for stage, warm_up in enumerate(warm_ups)
    ]
    return in_slots("any", rows, micro_batches=size, stage_ranks=one_rank_each(len(warm_ups)))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_an_order_can_be_executed_if_no_stage_warms_up_longer_than_the_one_before_it(size: int):
    for warm_ups in itertools.product(range(1, size + 1), repeat=3):
        if all(one >= other for one, other in itertools.pairwise(warm_ups)):
            assert tokens(_in_any_order(size, warm_ups)) == tokens(one_f_one_b(3, size, warm_ups))
            validate(_in_any_order(size, warm_ups))
        else:
            with pytest.raises(DeadlockError):
                validate(_in_any_order(size, warm_ups))
            with pytest.raises(ScheduleError, match="none above"):
                one_f_one_b(3, size, warm_ups)


def test_from_one_micro_batch_at_a_time_to_all_of_them():
    assert tokens(one_f_one_b(3, 5, [1, 1, 1])) == tokens(naive(3, 5))
    assert tokens(one_f_one_b(3, 5, [5, 5, 5])) == tokens(gpipe(3, 5))
    assert tokens(one_f_one_b(3, 5, [3, 2, 1])) == tokens(one_f_one_b(3, 5))


def test_a_longer_warm_up_may_be_slower():
    """So warm-ups are searched: the longest that memory allows are not the quickest."""
    passes = PipelinePasses((1, 1), (2, 2), (0, 0), (0,), (0,))
    classic, longer = (step_ns(Schedule.ONE_F_ONE_B, passes, 3, warm_ups) for warm_ups in ((2, 1), (2, 2)))
    assert (classic, longer) == (12, 15)
    passes = PipelinePasses((1, 1), (2, 2), (0, 0), (5,), (5,))
    steps = {one: step_ns(Schedule.ONE_F_ONE_B, passes, 4, (one, 1)) for one in (2, 3, 4)}
    assert steps == {2: 35, 3: 32, 4: 25}


@given(st.data(), passes_of(most=3))
def test_the_period_of_a_long_run_is_the_mean_of_its_longest_circle(data: st.DataObject, passes: PipelinePasses):
    passes = replace(passes, sync_ns=(0,) * passes.stages)
    warm_ups = data.draw(falling(passes.stages, 4))
    many, more = 60, 12  # 12: every number of micro-batches that a circle of warm-ups up to 4 goes round with
    steps = [step_ns(Schedule.ONE_F_ONE_B, passes, size, warm_ups) for size in (many, many + more)]
    assert steps[1] - steps[0] == more * one_f_one_b_period_ns(durations_of(passes), warm_ups)


@given(st.data(), st.integers(1, 6), st.sampled_from(["eager", "choose", "list"]))
def test_a_plan_has_the_order_time_and_memory_of_its_warm_ups(data: st.DataObject, size: int, chosen: str):
    instance = data.draw(instances())
    written = data.draw(falling(data.draw(st.integers(1, 4)), 7)) if chosen == "list" else chosen
    training = replace(
        instance.training, schedule=Schedule.ONE_F_ONE_B, micro_batches=size, global_batch=size, warm_up=written
    )
    instance = replace(instance, training=training, goals=(Goal.STEP_TIME,))
    plan = data.draw(line_plans(instance))
    if chosen == "choose":
        least = [min(len(plan) - at, size) for at in range(len(plan))]
        drawn = data.draw(falling(len(plan), size))
        own = [max(one, other) for one, other in zip(drawn, least, strict=True)]
        plan = Plan(tuple(replace(one, warm_up=many) for one, many in zip(plan.stages, own, strict=True)))
        assert plan.warm_ups(training) == tuple(own)
    made = PlanRun.of(instance, plan)
    assert peak_in_flight(made.schedule) == list(plan.warm_ups(training))
    timeline = run(made.schedule, made.durations, made.execution)
    costs = stage_costs(instance, plan)
    assert goal_value(Goal.STEP_TIME, instance, plan, costs) == timeline.makespan_ns
    for rank, cost in enumerate(costs):
        assert made.footprint.over_time(timeline, rank).peak_bytes == cost.memory_bytes
    assert not [one for one in evaluate(instance, plan).violations if one.unit == "forward passes"]


def test_warm_ups_by_stage_are_read_from_the_last_one():
    training = Training(8, 8, warm_up=(6, 4, 1))
    assert [training.warm_up_in(slot) for slot in range(5)] == [1, 4, 6, 6, 6]
    assert [replace(training, micro_batches=2).warm_up_in(slot) for slot in range(3)] == [1, 2, 2]
    assert [replace(training, warm_up="eager").warm_up_in(slot) for slot in range(5)] == [1, 3, 5, 7, 8]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"warm_up": (2, 3)}, "wait for it for ever"),
        ({"warm_up": ()}, "a number for every stage"),
        ({"warm_up": (2, 0)}, "1 or more"),
        ({"warm_up": "eager", "schedule": Schedule.GPIPE}, "under gpipe"),
        ({"warm_up": "choose", "chunks": 2}, "chunks 2"),
    ],
)
def test_warm_ups_that_no_order_has_are_refused(values: dict, words: str):
    with pytest.raises(ValueError, match=words):
        Training(8, 8, **values)


@given(st.data())
def test_a_plan_with_other_warm_ups_is_told_so(data: st.DataObject):
    instance = data.draw(instances())
    training = Training(4, 4)
    instance = replace(instance, training=training, goals=(Goal.STEP_TIME,))
    plan = data.draw(line_plans(instance).filter(lambda one: len(one) >= 2))

    def told(warm_ups: list[int | None], training: Training = training) -> list[str]:
        own = [*warm_ups, *([warm_ups[-1]] * (len(plan) - 2))]
        stages = (replace(one, warm_up=many) for one, many in zip(plan.stages, own, strict=True))
        found = evaluate(replace(instance, training=training), Plan(tuple(stages)))
        return [one.message for one in found.violations if one.unit == "forward passes"]

    assert "with training.warm_up classic" in told([4, 4])[0]
    assert not told([4, 4], replace(training, warm_up="choose"))
    assert "expected 2 to 4" in "".join(told([5, 1], replace(training, warm_up="choose"))) or len(plan) > 2
    assert "wait for ever" in told([2, 3], replace(training, warm_up="choose"))[0]
    assert "all stages or of none" in told([4, None])[0]
    assert "which is for one_f_one_b" in told([4, 4], replace(training, schedule=Schedule.GPIPE))[0]
    rising = Plan(tuple(replace(one, warm_up=at + 1) for at, one in enumerate(plan.stages)))
    assert list(structure_violations(instance, rising))
