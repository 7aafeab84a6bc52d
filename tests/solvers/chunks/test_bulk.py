"""Many plans priced at once, and least sums over all of them, against each plan priced by itself."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.cluster import DeviceClass
from pipecut.formulation.problem.constraints import Constraints, Goal, Recompute
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers.chunks.bulk import BROKEN, ManyPlans, first_plan, improved
from pipecut.solvers.chunks.case import Case, Dealt, case_of, layouts, plan_of
from pipecut.solvers.chunks.cpsat_chunks import Beam, solve
from pipecut.solvers.chunks.path_sums import sums_of
from pipecut.solvers.chunks.runs import KnownRuns
from pipecut.solvers.chunks.weighing import weighed
from tests.examples import PLAIN, chain, instance_of, matrix, mesh
from tests.laws import so_many
from tests.problems import dealt_out

FEW = [HealthCheck.filter_too_much, HealthCheck.too_slow]
MOST = 1 << 50
NEVER_NS = 1 << 62


def cases_of(instance: Instance) -> list[Case]:
    known = KnownRuns.of(instance)
    return [case_of(known, layout, MOST, NEVER) for layout in layouts(instance, NEVER)]


def every_row(case: Case) -> np.ndarray:
    """Return the places of all plans of a layout."""
    stops, stages = case.space.stops, case.stages
    rows = [(0, *cuts, stops) for cuts in itertools.combinations(range(1, stops), stages - 1)]
    return np.array(rows, dtype=np.int64).reshape(-1, stages + 1)


def true_value(case: Case, row: list[int], choice: tuple[int, ...]) -> int | None:
    """Return what the evaluator says of a plan; None where it breaks a rule."""
    found = evaluate(case.instance, plan_of(case.instance, case.layout, Dealt(tuple(row), choice)))
    return found.objective if found.feasible else None


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=FEW)
@given(dealt_out(most_plans=200))
def test_many_plans_have_the_values_of_the_evaluator(instance: Instance):
    for case in cases_of(instance):
        start = first_plan(instance, case.layout)
        if start is None:
            continue
        rows = every_row(case)
        for row, value in zip(rows.tolist(), ManyPlans(case, start.choice).values(rows).tolist(), strict=True):
            assert (None if value >= BROKEN else value) == true_value(case, row, start.choice)


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=FEW)
@given(dealt_out(most_plans=200), st.data())
def test_no_plan_is_below_a_mixture_of_paths(instance: Instance, data: st.DataObject):
    for case in cases_of(instance):
        if not case.steps:
            continue
        sums, rows = sums_of(case), every_row(case)
        choices = list(itertools.product(*(range(len(row)) for row in case.layout.choices)))
        choice = data.draw(st.sampled_from(choices))
        values = [(row, true_value(case, row, choice)) for row in rows.tolist()]
        kept = {tuple(row): value for row, value in values if value is not None}
        found = weighed(case, sums, [], MOST, data.draw(st.integers(1, 6)), NEVER)
        assert found.bound <= min(kept.values(), default=MOST)
        behind, least = sums.behind(found.rows), min(kept.values(), default=MOST)
        limit = data.draw(st.sampled_from([least + 1, 2 * least, MOST]))
        some = weighed(case, sums, [row for row in kept][:1], limit, 5, NEVER)
        assert some.bound <= limit
        for row, value in kept.items():
            assert all(there[i, j] for there, i, j in zip(sums.there, row, row[1:], strict=False))
            assert (behind[:, 0, 0] <= value * found.units).all()
            if value < limit:
                assert some.bound <= value
                assert all(there[i, j] for there, i, j in zip(some.sums.there, row, row[1:], strict=False))


@st.composite
def in_line(draw: st.DrawFn) -> Instance:
    """More layers on more devices than brute force prices: one layout for each number of groups."""
    numbers, many = st.integers(0, 40), draw(st.integers(6, 11))
    layers = [
        matrix(
            f"layer{at}", draw(st.sampled_from([5, 30, 30, 30, 90])), draw(numbers), taken=draw(numbers), made=9
        )
        for at in range(many)
    ]
    graph = chain(layers, [draw(st.integers(0, 30)) for _ in range(many - 1)])
    schedule = draw(st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE_V]))
    chunks = 2 if schedule.in_a_v else draw(st.sampled_from([2, 2, 3]))
    kind = DeviceClass("a", draw(st.sampled_from([400, 900, 10**9])), 10**9)
    cluster = mesh(2, draw(st.integers(1, 2)), between=Link(draw(st.sampled_from([8, 80])) * 10**9), kind=kind)
    instance = instance_of(graph, cluster, PLAIN, Training(12, 12, chunks=chunks, schedule=schedule))
    asked = Constraints(memory=True, tensor_parallel_degrees=(1,), recompute=Recompute.ALLOWED)
    return replace(instance, goals=(Goal.STEP_TIME,), constraints=asked)


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=FEW)
@given(in_line())
def test_the_best_plan_in_a_line_is_that_of_all_plans_priced_at_once(instance: Instance):
    least = NEVER_NS
    for case in cases_of(instance):
        values = ManyPlans(case, (0,) * case.layout.ranks).values(every_row(case))
        least = min(least, int(values.min(initial=NEVER_NS)))
    found = checked(instance, solve(instance, Limits(workers=1)))
    if least >= BROKEN:
        assert found.proof is Proof.INFEASIBLE
    else:
        assert (found.proof, found.objective) == (Proof.OPTIMAL, least)


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=FEW)
@given(dealt_out(most_plans=200), st.sampled_from([1, 2, 5, 10_000]))
def test_fronts_leave_out_no_better_plan_than_they_say(instance: Instance, width: int):
    for case in cases_of(instance):
        start, sums = first_plan(instance, case.layout), sums_of(case)
        if not case.steps or start is None or not sums.certain:
            continue
        plans, found = ManyPlans(case, start.choice), weighed(case, sums, [start.places], MOST, 4, NEVER)
        priced = [(true_value(case, row, start.choice), tuple(row)) for row in every_row(case).tolist()]
        least = min((value for value, _ in priced if value is not None), default=MOST)
        looked = Beam(found.sums, plans, found.rows, found.units, found.own, NEVER).look(MOST, width)
        assert looked.bound <= least <= looked.value
        if looked.places is not None:
            assert true_value(case, list(looked.places), start.choice) == looked.value
        if width == 10_000:
            assert looked.bound == looked.value == least
        moved, value = improved(plans, [start.places], NEVER)
        if moved is not None:
            assert true_value(case, list(moved.places), moved.choice) == value >= least
