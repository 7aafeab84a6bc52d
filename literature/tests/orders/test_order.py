"""The best order is the best of all orders, whatever helps the solver; and no bound lies above it."""

from __future__ import annotations

from dataclasses import replace
from math import factorial

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from literature.tests.orders.ordered import best_of_all, best_order, every_order, problems
from pipecut.formulation.outcome import Limits, Progress, Proof
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import peak_in_flight
from pipecut.formulation.timeline.durations import Contention, Durations, Execution, Transfers
from pipecut.formulation.timeline.measures import (
    Footprint,
    iteration_lower_bound_ns,
    uniform_iteration_ns,
)
from pipecut.formulation.timeline.timeline import run
from pipecut.report.simulation import zero_bubble_h1_iteration_ns
from pipecut_literature.orders.bounds import Bounds
from pipecut_literature.orders.fixed import fixed_orders, least_memory
from pipecut_literature.orders.problem import OrderProblem
from pipecut_literature.orders.solve import solve
from tests.laws import so_many
from tests.timelines import uniform

LIMITS = Limits(workers=2)
MODEST = settings(
    max_examples=so_many(40),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
MOST_ORDERS = 2000


def number_of_orders(problem: OrderProblem) -> int:
    """How many orders ``every_order`` yields."""
    total, m = 1, problem.micro_batches
    for rank in range(problem.ranks):
        stages = len(problem.stages_of(rank))
        total *= factorial((3 if problem.split else 2) * stages * m) // factorial(2 * stages) ** m
    return total


@MODEST
@given(problems())
def test_the_best_order_is_the_best_of_all(problem: OrderProblem) -> None:
    assume(number_of_orders(problem) <= MOST_ORDERS)
    best = best_of_all(problem)
    outcome = solve(problem, LIMITS)
    assert outcome.makespan_ns == best
    assert outcome.proof is (Proof.INFEASIBLE if best is None else Proof.OPTIMAL)


@MODEST
@given(problems(), st.booleans())
def test_taking_micro_batches_in_turn_loses_nothing(problem: OrderProblem, bounds: bool) -> None:
    """The symmetry breaking off, and with it the valid inequalities: all orders are asked for."""
    assume(number_of_orders(problem) <= MOST_ORDERS)
    best = best_of_all(problem)
    assert solve(problem, LIMITS, in_turn=False, bounds=bounds).makespan_ns == best
    assert solve(problem, LIMITS, valid=False, bounds=bounds).makespan_ns == best
    assert solve(problem, LIMITS, bounds=bounds).makespan_ns == best


@MODEST
@given(problems(contentions=(Contention.FIFO,)))
def test_links_of_their_own_leave_nothing_open(problem: OrderProblem) -> None:
    assume(number_of_orders(problem) <= MOST_ORDERS)
    outcome = solve(problem, LIMITS)
    assert outcome.makespan_ns == best_of_all(problem)
    assert outcome.proof in (Proof.OPTIMAL, Proof.INFEASIBLE)


@MODEST
@given(problems(contentions=(Contention.FIFO,), shared_links=True, placements=((0, 1), (0, 1, 2), (0, 1, 0))))
def test_the_bound_of_shared_links_holds(problem: OrderProblem) -> None:
    assume(number_of_orders(problem) <= MOST_ORDERS)
    best = best_of_all(problem)
    outcome = solve(problem, LIMITS)
    if best is None:
        assert outcome.proof is Proof.INFEASIBLE
    else:
        assert outcome.bound_ns is not None and outcome.makespan_ns is not None
        assert outcome.bound_ns <= best <= outcome.makespan_ns
        assert outcome.proof is Proof.FEASIBLE or outcome.makespan_ns == best


@MODEST
@given(problems(contentions=tuple(Contention), shared_links=True))
def test_no_bound_is_above_the_best(problem: OrderProblem) -> None:
    assume(number_of_orders(problem) <= MOST_ORDERS)
    best = best_of_all(problem)
    assume(best is not None)
    assert {name: bound for name, bound in Bounds(problem).named().items() if bound > (best or 0)} == {}


@MODEST
@given(problems(most_micro_batches=6, placements=((0, 1), (0, 1, 2), (0, 1, 2, 3))))
def test_fixed_orders_are_never_better(problem: OrderProblem) -> None:
    outcome = solve(problem, LIMITS)
    fitting = [one.makespan_ns for one in fixed_orders(problem).values() if one.fits(problem)]
    assert outcome.proof is (Proof.OPTIMAL if fitting else Proof.INFEASIBLE)
    assert all(outcome.makespan_ns is not None and outcome.makespan_ns <= fixed for fixed in fitting)


@MODEST
@given(problems(most_micro_batches=6, placements=((0, 1), (0, 1, 2), (0, 1, 2, 3)), splits=(False,)))
def test_our_bounds_contain_the_closed_form(problem: OrderProblem) -> None:
    """Without updates and with overlapped transfers, latency and busy stage are the closed form, computed anew."""
    overlapped = Execution(transfers=Transfers.OVERLAPPED)
    bare = replace(problem.durations, sync_ns=(), optimizer_ns=())
    problem = replace(problem, durations=bare, execution=overlapped, footprint=None, memory_bytes=None)
    found = Bounds(problem).named()
    assert max(found["latency"], found["busy stage"]) == iteration_lower_bound_ns(bare, problem.micro_batches)


@MODEST
@given(problems())
def test_naive_needs_the_least_memory(problem: OrderProblem) -> None:
    assume(problem.footprint is not None and number_of_orders(problem) <= MOST_ORDERS)
    assert (best_of_all(problem) is not None) == least_memory(problem).fits(problem)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 4), (3, 5), (4, 8)])
def test_uniform_stages_take_what_theory_says(stages: int, micro_batches: int) -> None:
    """(M + S - 1)(f + b), in the memory of 1F1B and in any memory; nothing in flight beyond 1F1B's is needed."""
    expected = uniform_iteration_ns(stages, micro_batches, 30, 70)
    counts = peak_in_flight(one_f_one_b(stages, micro_batches))
    footprint = Footprint((5,) * stages, (2,) * stages)
    for footprint_or_none, memory in ((None, None), (footprint, [5 + 2 * count for count in counts])):
        outcome = best_order(
            uniform(stages, 30, 70), Execution(), micro_batches, footprint=footprint_or_none, memory_bytes=memory
        )
        assert (outcome.proof, outcome.makespan_ns) == (Proof.OPTIMAL, expected)


def test_uniform_stages_with_less_memory_than_one_f_one_b_take_longer() -> None:
    stages, micro_batches = 3, 6
    footprint = Footprint((0,) * stages, (1,) * stages)
    outcome = best_order(
        uniform(stages, 30, 70), Execution(), micro_batches, footprint=footprint, memory_bytes=[2, 2, 1]
    )
    assert outcome.proof is Proof.OPTIMAL and outcome.makespan_ns is not None
    assert outcome.makespan_ns > uniform_iteration_ns(stages, micro_batches, 30, 70)


def test_zero_bubble_is_at_most_what_zb_h1_takes() -> None:
    stages, micro_batches = 3, 5
    durations = Durations((10,) * stages, (18,) * stages, weight_gradient_ns=(8,) * stages)
    outcome = best_order(durations, Execution(), micro_batches, split=True)
    theory = zero_bubble_h1_iteration_ns(stages, micro_batches, 10, 10, 8)
    whole = best_order(durations, Execution(), micro_batches)
    assert outcome.proof is Proof.OPTIMAL and outcome.makespan_ns is not None and whole.makespan_ns is not None
    assert outcome.makespan_ns <= theory < whole.makespan_ns


def test_all_orders_are_counted() -> None:
    problem = OrderProblem(uniform(3, 1, 1), Execution(), 2, (0, 1, 0))
    assert len(list(every_order(problem))) == number_of_orders(problem) == 70 * 6


def test_a_stopped_search_says_what_it_has() -> None:
    durations = Durations((2, 1), (2, 1), activation_ns=(1,), gradient_ns=(1,))
    told: list[Progress] = []
    outcome = best_order(durations, Execution(), 3, limits=Limits(stopped=lambda: True, progress=told.append))
    assert outcome.proof is Proof.FEASIBLE and outcome.schedule is not None
    assert (
        outcome.makespan_ns == min(run(make(2, 3), durations).makespan_ns for make in (gpipe, one_f_one_b)) == 16
    )
    assert outcome.bound_ns == iteration_lower_bound_ns(durations, 3) == 12
    assert outcome.gap == 0.25 and told[0] == Progress(16, 12)
    assert best_order(durations, Execution(), 3, limits=Limits(time_limit_s=0)).proof is Proof.FEASIBLE
