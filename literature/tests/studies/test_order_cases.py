"""The witnesses that are shipped, the claims that are refused, and the questions that have no answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from ortools.sat.python import cp_model

from literature.tests.orders.ordered import best_of_all, best_order
from pipecut.formulation.outcome import FalseClaimError, Limits, Proof
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import Action, PipelineSchedule, ScheduleError, peak_in_flight
from pipecut.formulation.timeline.durations import Contention, Durations, Execution
from pipecut.formulation.timeline.measures import Footprint
from pipecut.formulation.timeline.timeline import run
from pipecut.solvers.cpsat.engine import make_solver
from pipecut_literature.orders.families import FAMILIES, IN_TURN, VALID, OrderVariables
from pipecut_literature.orders.fixed import OrderOutcome, checked, execute
from pipecut_literature.orders.problem import OrderError, OrderProblem
from pipecut_literature.orders.solve import compare, solve
from pipecut_literature.studies.orders import drawn, family, same_memory, too_few_in_flight
from tests.timelines import uniform

LIMITS = Limits()


@pytest.mark.parametrize(
    ("make", "one_f_one_b_ns", "best_ns"), [(too_few_in_flight, 16, 12), (same_memory, 31, 30)]
)
def test_one_f_one_b_loses(make: Callable[[], OrderProblem], one_f_one_b_ns: int, best_ns: int) -> None:
    compared = compare(make(), LIMITS)
    assert compared.outcome.proof is Proof.OPTIMAL and compared.outcome.makespan_ns == best_ns
    assert compared.fits("one_f_one_b") and compared.fixed["one_f_one_b"].makespan_ns == one_f_one_b_ns
    assert compared.loss("one_f_one_b") == Fraction(one_f_one_b_ns - best_ns, best_ns)


@pytest.mark.slow
def test_the_witness_without_transfers_against_every_order_in_turn() -> None:
    """Enumerated: on each rank every merger of F0 F1 F2 F3 and B0 B1 B2 B3 that memory allows, on all ranks."""
    problem = same_memory()
    rows = [list(_in_turn(stage, 4, 4 - stage)) for stage in range(4)]
    best = 10**9
    for chosen in product(*rows):
        try:
            best = min(best, execute(problem, PipelineSchedule.of_actions("some", chosen)).makespan_ns)
        except ScheduleError:
            continue
    assert best == 30


def _in_turn(stage: int, micro_batches: int, most: int) -> list[list[Action]]:
    """Every row in turn with at most so many micro-batches in flight."""
    found: list[list[Action]] = []

    def grow(row: list[str], forward: int, backward: int) -> None:
        if backward == micro_batches:
            found.append([Action.parse(token) for token in row])
        if forward < micro_batches and forward - backward < most:
            grow([*row, f"{stage}F{forward}"], forward + 1, backward)
        if backward < forward:
            grow([*row, f"{stage}B{backward}"], forward, backward + 1)

    grow([], 0, 0)
    return found


@pytest.mark.slow
def test_the_other_witness_against_every_order() -> None:
    problem = too_few_in_flight()
    assert best_of_all(problem) == 12
    outcome = solve(problem, LIMITS)
    assert outcome.schedule is not None and peak_in_flight(outcome.schedule)[0] == 3


def test_in_the_memory_of_one_f_one_b_the_first_witness_is_its_own_best() -> None:
    problem = replace(too_few_in_flight(), footprint=Footprint((0, 0), (1, 1)), memory_bytes=(2, 1))
    outcome = solve(problem, LIMITS)
    assert (outcome.proof, outcome.makespan_ns) == (Proof.OPTIMAL, 16)
    assert outcome.schedule is not None
    timeline = run(outcome.schedule, problem.durations)
    footprint = problem.footprint
    assert footprint is not None
    assert [footprint.over_time(timeline, rank).peak_bytes for rank in (0, 1)] == [2, 1]


def test_the_families_of_cases() -> None:
    for split in (False, True):
        cases = list(family(split=split))
        assert len(cases) == 3 * 3 * 3 * 3 * 2 and len({repr(case) for case in cases}) == len(cases)
        assert all(case.problem.split is split for case in cases)
    wanted = {"stages": 3, "micro_batches": 4, "transfers": True, "split": False, "memory": "no limit"}
    once, again = (list(drawn(3, 7, **wanted)) for _ in range(2))
    assert once == again and len({problem.durations for problem in once}) == 3


def status_without(problem: OrderProblem, horizon_ns: int, number: int) -> cp_model.CpSolverStatus:
    v = OrderVariables.of(problem, horizon_ns, in_turn=True)
    for one, post in (FAMILIES | IN_TURN | VALID).items():
        if one != number and not (number in (1, 2, 4, 6) and one in VALID):
            list(post(v))
    return make_solver(replace(LIMITS, time_limit_s=20).begun()).solve(v.model)


WITNESS = {
    1: OrderProblem(uniform(2, 2, 2), Execution(), 3, (0, 1)),
    2: OrderProblem(uniform(3, 2, 2), Execution(), 1, (0, 1, 2)),
    3: OrderProblem(uniform(2, 1, 1, 9), Execution(contention=Contention.FIFO), 2, (0, 1)),
    4: replace(too_few_in_flight(), footprint=Footprint((0, 0), (1, 1)), memory_bytes=(2, 1)),
    6: OrderProblem(Durations((1,), (1,), sync_ns=(5,)), Execution(), 1, (0,)),
}


@pytest.mark.parametrize("number", FAMILIES)
def test_every_family_is_needed(number: int) -> None:
    """Without it something shorter than the optimum is accepted; with all of them nothing is."""
    problem = WITNESS[number]
    best = solve(problem, LIMITS).makespan_ns
    assert best is not None
    assert status_without(problem, best - 1, 0) == cp_model.INFEASIBLE
    assert status_without(problem, best, 0) == cp_model.OPTIMAL
    assert status_without(problem, best - 1, number) == cp_model.OPTIMAL


def test_nothing_fits() -> None:
    outcome = best_order(
        uniform(2, 1, 1), Execution(), 2, footprint=Footprint((5, 5), (2, 2)), memory_bytes=[7, 6]
    )
    assert outcome.proof is Proof.INFEASIBLE and outcome.schedule is None and outcome.gap is None
    assert outcome.notes == ("rank 1 holds 7 bytes at its peak and has 6 bytes",)


def _claim(
    schedule: PipelineSchedule | None, makespan_ns: int | None, bound_ns: int, proof: Proof
) -> OrderOutcome:
    return OrderOutcome(proof, schedule, makespan_ns, bound_ns, 0.0)


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (_claim(gpipe(2, 3), 15, 12, Proof.FEASIBLE), "claimed 15 ns, the timeline takes 16 ns"),
        (_claim(gpipe(2, 3), 16, 12, Proof.OPTIMAL), "claimed optimal with bound 12 and 16 ns"),
        (_claim(gpipe(2, 3), 16, 17, Proof.FEASIBLE), "bound 17 ns above the makespan 16 ns"),
        (_claim(gpipe(2, 3), 16, 12, Proof.INFEASIBLE), "claimed infeasible with a schedule"),
        (_claim(None, None, 12, Proof.OPTIMAL), "claimed optimal without a schedule"),
        (_claim(gpipe(2, 2), 16, 12, Proof.FEASIBLE), "actions are not those of the problem"),
        (_claim(None, None, 12, Proof.INFEASIBLE), "the naive order fits"),
        (_claim(gpipe(2, 3), 16, 12, Proof.FEASIBLE), "rank 0 holds 3 bytes at its peak and has 2 bytes"),
    ],
)
def test_false_claims_are_refused(claim: OrderOutcome, message: str) -> None:
    problem = too_few_in_flight()
    if "bytes" in message:
        problem = replace(problem, footprint=Footprint((0, 0), (1, 1)), memory_bytes=(2, 1))
    with pytest.raises(FalseClaimError, match=message):
        checked(problem, claim)


def test_a_schedule_on_other_ranks_or_in_a_deadlock_is_refused() -> None:
    shared = OrderProblem(uniform(2, 1, 1), Execution(), 1, (0, 0))
    with pytest.raises(FalseClaimError, match="stages are on ranks"):
        checked(shared, _claim(one_f_one_b(2, 1), 4, 4, Proof.OPTIMAL))
    rows = [[Action.parse(token) for token in row.split()] for row in ("0B0 0F0", "1F0 1B0")]
    own = replace(shared, stage_ranks=(0, 1))
    with pytest.raises(FalseClaimError, match="deadlock"):
        checked(own, _claim(PipelineSchedule.of_actions("stuck", rows), 4, 4, Proof.OPTIMAL))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"micro_batches": 0}, "micro_batches is 0"),
        ({"stage_ranks": (0,)}, "1 entries for 2 stages"),
        ({"stage_ranks": (0, 2)}, "every rank from 0 on"),
        ({"footprint": Footprint((1, 1), (1, 1))}, "together or not at all"),
        ({"footprint": Footprint((1,), (1,)), "memory_bytes": (9, 9)}, "footprint of 1 stages for 2"),
        ({"footprint": Footprint((1, 1), (1, 1)), "memory_bytes": (9,)}, "1 entries for 2 ranks"),
        (
            {
                "durations": Durations(
                    (1, 0), (1, 1), activation_ns=(1,), gradient_ns=(1,), activation_link=(0,), gradient_link=(0,)
                ),
                "execution": Execution(contention=Contention.FIFO),
            },
            "stage 1: FORWARD takes 0 ns",
        ),
    ],
)
def test_questions_without_an_answer(fields: dict[str, object], message: str) -> None:
    with pytest.raises(OrderError, match=message):
        replace(OrderProblem(uniform(2, 1, 1), Execution(), 2, (0, 1)), **fields)
