"""The study's tables say what the comparisons say."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from literature.tests.orders.ordered import best_order
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.timeline.from_plan import PlanRun
from pipecut.formulation.timeline.timeline import run
from pipecut_literature.orders.fixed import fixed_orders
from pipecut_literature.orders.problem import OrderProblem
from pipecut_literature.orders.solve import compare
from pipecut_literature.studies.catalogue import STUDIES
from pipecut_literature.studies.orders import case_table, family, figures, summary, too_few_in_flight
from tests.formulation.timeline.test_timeline_of_plan import line_plans
from tests.generators import instances
from tests.laws import so_many

LIMITS = Limits()


@pytest.mark.slow
def test_tables_of_a_few_cases() -> None:
    part = [
        [(one, compare(one.problem, LIMITS)) for one in islice(family(split=split), 30)] for split in (False, True)
    ]
    table = summary(part[0] + part[1])
    assert sum(int(row[3]) for row in table.rows) == sum(int(row[4]) for row in table.rows) == 60
    assert len({row[:3] for row in table.rows}) == len(table.rows)
    found = figures(part[0], part[1])
    assert found["cases"] == found["proved"] == 60
    losses = [loss for loss in (one.loss("one_f_one_b") for _, one in part[0]) if loss is not None]
    assert len(losses) == 30 and found["whole_one_f_one_b_worst_loss_percent"] == float(100 * max(losses))
    rows = case_table("some", part[0]).rows
    assert len(rows) == 30 and all(case.memory == row[4] for (case, _), row in zip(part[0], rows, strict=True))
    gpipe = [(one.fits("gpipe"), row[-2]) for (_, one), row in zip(part[0], rows, strict=True)]
    assert all((cell == "-") != fits for fits, cell in gpipe) and len({fits for fits, _ in gpipe}) == 2


def test_whole_schedules_are_executed_whole_beside_split_optima() -> None:
    """Stage 1 sends a gradient only when the whole backward pass is done; with halves it would earlier."""
    problem = next(one.problem for one in family(split=True) if one.problem.micro_batches == 4)
    as_whole = run(one_f_one_b(problem.stages, 4), problem.durations).makespan_ns
    as_halves = fixed_orders(problem)["one_f_one_b"].makespan_ns
    assert compare(problem, LIMITS).fixed["one_f_one_b"].makespan_ns == as_whole > as_halves


def test_interleaved_orders_are_compared_where_they_exist() -> None:
    durations = next(one.problem.durations for one in family(split=False) if one.problem.stages == 4)
    problems = {
        micro_batches: OrderProblem(durations, too_few_in_flight().execution, micro_batches, (0, 1, 0, 1))
        for micro_batches in (3, 4)
    }
    assert ["interleaved" in fixed_orders(one) for one in problems.values()] == [False, True]
    one = compare(problems[4], LIMITS)
    assert one.outcome.proof is Proof.OPTIMAL
    assert all(loss is not None and loss >= 0 for loss in map(one.loss, one.fixed))


def test_the_study_is_in_the_catalogue() -> None:
    assert STUDIES["ordering"].document == "literature/docs/studies/ordering.md"


@settings(max_examples=so_many(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_plan_is_ordered_at_least_as_well_as_its_own_schedule(data: st.DataObject) -> None:
    """What ``from_plan`` makes of a plan is a question that ``best_order`` takes as it is."""
    instance = data.draw(instances())
    plan = data.draw(line_plans(instance))
    ordered = PlanRun.of(instance, plan)
    assume(ordered.schedule.flush)
    own = run(ordered.schedule, ordered.durations, ordered.execution)
    capacity = [ordered.footprint.over_time(own, rank).peak_bytes for rank in range(len(plan))]
    outcome = best_order(
        ordered.durations,
        ordered.execution,
        ordered.schedule.micro_batches,
        footprint=ordered.footprint,
        memory_bytes=capacity,
        limits=Limits(time_limit_s=5),
    )
    assert outcome.makespan_ns is not None and outcome.makespan_ns <= own.makespan_ns
