"""Executed times without a timeline: the recursions say what the timeline says, to the nanosecond."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.goals import goal_value
from pipecut.formulation.costs.passes import pipeline_passes
from pipecut.formulation.costs.prices import stage_costs
from pipecut.formulation.executed import PipelinePasses, exact_period_ns, period_ns, step_ns
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.options import Combine
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.schedules.async_one_f_one_b import async_one_f_one_b
from pipecut.formulation.schedules.table import Kind, positions
from pipecut.formulation.timeline.durations import Durations, Execution
from pipecut.formulation.timeline.from_plan import PlanRun
from pipecut.formulation.timeline.timeline import run
from pipecut.report.simulation import one_f_one_b_period_ns
from tests.formulation.timeline.test_timeline_of_plan import line_plans
from tests.generators import OF_SINGLE_STAGES, instances
from tests.laws import so_many

FLUSHING = [one for one in OF_SINGLE_STAGES if one.flushes]
short = st.integers(0, 9)


@st.composite
def passes_of(draw: st.DrawFn, most: int = 4) -> PipelinePasses:
    stages = draw(st.integers(1, most))
    rows = [draw(st.lists(short, min_size=n, max_size=n)) for n in [stages] * 3 + [stages - 1] * 2]
    return PipelinePasses(*map(tuple, rows))


def durations_of(passes: PipelinePasses) -> Durations:
    return Durations(
        passes.forward_ns,
        passes.backward_ns,
        sync_ns=passes.sync_ns,
        activation_ns=passes.activation_ns,
        gradient_ns=passes.gradient_ns,
    )


@given(st.data(), st.sampled_from(FLUSHING), st.integers(1, 7))
def test_a_step_takes_what_the_timeline_takes(data: st.DataObject, schedule: Schedule, micro_batches: int):
    instance = data.draw(instances())
    training = replace(
        instance.training, schedule=schedule, micro_batches=micro_batches, global_batch=micro_batches
    )
    instance = replace(instance, training=training, goals=(Goal.STEP_TIME,))
    plan = data.draw(line_plans(instance))
    made = PlanRun.of(instance, plan)
    executed = run(made.schedule, made.durations, made.execution).makespan_ns
    assert goal_value(Goal.STEP_TIME, instance, plan, stage_costs(instance, plan)) == executed


def mean_of_a_long_run(passes: PipelinePasses, every: int, *, overlapped: bool) -> tuple[int, int]:
    """Time and number of micro-batches between two updates far from the start of a run."""
    length = every * lcm(*range(1, 2 * passes.stages + 1))
    before = every * (-(-60 // every))
    total = before + length + every + passes.stages
    execution = Execution(overlap_sync=overlapped, updates_every=every)
    times = run(async_one_f_one_b(passes.stages, total), durations_of(passes), execution).times
    ends = times.stop_ns[positions(async_one_f_one_b(passes.stages, total), Kind.BACKWARD)[0]]
    return int(ends[before + length] - ends[before]), length


@settings(max_examples=so_many(60), deadline=None)
@given(passes_of(most=3), st.integers(1, 3), st.booleans())
def test_a_period_is_that_of_a_long_run(passes: PipelinePasses, every: int, overlapped: bool):
    if overlapped and not any(passes.forward_ns + passes.backward_ns):
        return  # nothing but synchronisations: backward passes do not wait for them
    spent, number = mean_of_a_long_run(passes, every, overlapped=overlapped)
    exact = exact_period_ns(passes, every, overlapped=overlapped)
    assert abs(spent - number * exact) <= 2 * (max(passes.sync_ns) + 1) * overlapped
    if not overlapped:
        assert spent == number * exact
    assert period_ns(passes, every, overlapped=overlapped) == ceil(exact)


@given(passes_of(most=6))
def test_without_synchronisation_it_is_the_largest_mean_over_runs(passes: PipelinePasses):
    alone = replace(passes, sync_ns=(0,) * passes.stages)
    for overlapped in (False, True):
        assert exact_period_ns(alone, 5, overlapped=overlapped) == one_f_one_b_period_ns(durations_of(alone))


def test_a_step_without_an_end_is_refused():
    passes = PipelinePasses((1,), (2,), (0,), (), ())
    with pytest.raises(ValueError, match="period"):
        step_ns(Schedule.ASYNC_ONE_F_ONE_B, passes, 3)


@given(st.data())
def test_an_instance_has_the_executed_time_of_its_schedule(data: st.DataObject):
    instance = data.draw(instances())
    schedule = data.draw(st.sampled_from(OF_SINGLE_STAGES))
    training = replace(instance.training, schedule=schedule)
    right, wrong = (Goal.STEP_TIME, Goal.PERIOD) if schedule.flushes else (Goal.PERIOD, Goal.STEP_TIME)
    assert replace(instance, training=training, goals=(right,)).goals == (right,)
    with pytest.raises(ValueError, match=str(right)):
        replace(instance, training=training, goals=(wrong,))


@given(st.data())
def test_the_period_of_a_plan_is_at_least_its_slowest_stage(data: st.DataObject):
    instance = data.draw(instances())
    training = replace(instance.training, schedule=Schedule.ASYNC_ONE_F_ONE_B)
    cost = replace(instance.cost, combine=Combine.MAX)
    instance = replace(instance, training=training, cost=cost, goals=(Goal.PERIOD,))
    plan = data.draw(line_plans(instance))
    passes = pipeline_passes(instance, plan)
    slowest = max(map(sum, zip(passes.forward_ns, passes.backward_ns, strict=True)))
    assert goal_value(Goal.PERIOD, instance, plan, stage_costs(instance, plan)) >= slowest
