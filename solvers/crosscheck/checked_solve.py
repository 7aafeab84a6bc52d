"""Hold claims to account: every outcome that anyone sees has passed through here.

The evaluator recomputes each claim (``formulation.outcome.checked``). A proof is then compared with that of a
second exact method, which rests on nothing that the first rests on (``solvers.ingredients``): a proof of CP-SAT
with a dynamic programme, a proof of a programme with CP-SAT, asked for a better plan, or with a certificate. That
an instance has nothing better than a plan of another one (``Limits.below``) is a proof too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from formulation.limits.deadline import StoppedError
from formulation.outcome import FalseClaimError, Limits, Outcome, Proof, checked
from solvers import catalogue
from solvers.catalogue import MAIN, find_solver
from solvers.crosscheck import certificate
from solvers.crosscheck.claim import Answer, Claim, Verdict
from solvers.goals import solve_in_order
from solvers.resting import independent_of, is_described, methods_of

if TYPE_CHECKING:
    from formulation.problem.instance import Instance
    from solvers.catalogue import SolverEntry

PARTLY = "line_dp"
"""Who is asked where nobody sees the whole instance: its bound holds, and its plan is one of the line."""
PATIENCE_S = 5.0
"""How long a method may check a claim that is not among the fastest for the instance."""
QUICK_BYTES = 1_000_000
"""Above this size of its model others are asked before CP-SAT on layers."""
LARGEST_BYTES = 10_000_000
"""Models above this size are not asked: CP-SAT proved none of them again within the time, given the best plan."""
LARGEST_EXECUTED_BYTES = 4_000_000
"""The same for executed times: above this size a question takes minutes."""
SAME_OPTIMUM = "{} finds the same optimum"
SAME_INFEASIBLE = "{} finds no plan either"
SAME_RULED_OUT = "{} finds none either"
TIGHT = "memory decides single stages, which no other method finds out again in seconds (--double-check asks them)"
NO_SECOND = "no other exact method sees this instance"


class RefutedError(FalseClaimError):
    """A claim that the evaluator refutes, with the outcome that claims it."""

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


def solve_checked(instance: Instance, solver: SolverEntry, limits: Limits) -> Outcome:
    """Solve with one solver, for all goals, and check its claim.

    Raises RefutedError if the claim does not hold, and ValueError if the solver cannot take the instance.
    """
    outcome = solve_in_order(instance, solver.load(), limits)
    try:
        return checked(instance, outcome, limits.deadline)
    except FalseClaimError as error:
        raise RefutedError(str(error), outcome) from error


def cross_checked(instance: Instance, outcome: Outcome, limits: Limits) -> Outcome:
    """Return an outcome about one goal with a note on what a second, independent method makes of its proof.

    Outcomes that prove nothing stay as they are; that no plan is of use (``limits.below``) is a proof. Raises
    FalseClaimError if two methods contradict each other.
    """
    same, against = _said_the_same(outcome, limits), list[str]()
    if not same or not is_described(outcome):
        return outcome
    if limits.deadline.over():
        return _noted(outcome, "not cross-checked: the time limit was used up")
    if same is not SAME_RULED_OUT:
        limits = replace(limits, below=None)
    limits = replace(limits, known=None)
    for entry, within in _seconds(instance, outcome, limits, against):
        try:
            second = solve_checked(instance, entry, within)
        except ValueError as error:
            against.append(f"{entry.name} cannot take this instance ({error})")
            continue
        problem = contradiction(outcome, second)
        if problem:
            raise FalseClaimError(problem)
        if _said_the_same(second, limits) == same or (same is SAME_RULED_OUT and second.proof is Proof.INFEASIBLE):
            return _noted(outcome, same.format(entry.summary))
        against.append(f"{entry.name} proves nothing in {second.seconds:.1f} s")
    if TIGHT not in against and _certified(instance, outcome, limits, against):
        return _noted(outcome, SAME_OPTIMUM.format("a certificate, checked without a solver,"))
    why = "; ".join(against) or NO_SECOND
    return _noted(outcome, _in_part(instance, outcome, limits) or f"not cross-checked: {why}")


def _said_the_same(outcome: Outcome, limits: Limits) -> str:
    """Return how to say that a second method proves what an outcome does; nothing where it proves nothing."""
    if limits.ruled_out(outcome):
        return SAME_RULED_OUT
    return {Proof.OPTIMAL: SAME_OPTIMUM, Proof.INFEASIBLE: SAME_INFEASIBLE}.get(outcome.proof, "")


def _seconds(
    instance: Instance, outcome: Outcome, limits: Limits, against: list[str]
) -> Iterator[tuple[SolverEntry, Limits]]:
    """Yield who sees the whole instance and is independent of the first, in order, and for how long."""
    quiet = replace(limits, progress=lambda _: None)
    able: list[tuple[SolverEntry, bool]] = []
    for entry in catalogue.SOLVERS:
        if not entry.exact or not independent_of(outcome, entry.name):
            continue
        support = entry.accepts(instance)
        if not (support.takes and support.proves):
            continue
        needed = support.bytes_needed or 0
        if entry.name == MAIN and needed > largest_bytes(instance):
            against.append(f"the model of {entry.name} is too large to prove it again")
            continue
        able.append((entry, entry.name == MAIN and needed > QUICK_BYTES))
    if _memory_decides(instance, outcome) and (against or any(large for _, large in able)):
        # Asked all the same, none of them confirmed such a proof of Llama-7B on 24, 28 or 40 GB cards in its time.
        against.append(TIGHT)
        able = [(entry, large) for entry, large in able if not large]
    for entry, _ in sorted(able, key=lambda pair: pair[1]):
        programme = entry.name not in (MAIN, "cpsat_atoms", "brute_force")
        yield entry, quiet if programme else replace(quiet.within(PATIENCE_S), start=outcome.plan)


def largest_bytes(instance: Instance) -> int:
    """Return up to which size the declarative model is worth asking about what others proved, or cannot see."""
    return LARGEST_EXECUTED_BYTES if instance.goals[0].executed else LARGEST_BYTES


def _memory_decides(instance: Instance, outcome: Outcome) -> bool:
    """Tell whether a proof over device states rests on stages that fit in time, and in no form into memory."""
    return "state_dp" in methods_of(outcome) and instance.constraints.memory and not outcome.unused


def _certified(instance: Instance, outcome: Outcome, limits: Limits, against: list[str]) -> bool:
    """Tell whether a certificate proves the same, and why not if it was stopped.

    Raises FalseClaimError where it proves otherwise.
    """
    if not independent_of(outcome, "certificate") or limits.deadline.over():
        return False
    claim = Claim(instance, outcome.solver, outcome.plan, outcome.objective, outcome.bound_by)
    patience = 2 if instance.goals[0].executed else 4
    began_s, answer = time.monotonic(), Answer(Verdict.OUT_OF_TIME)
    with contextlib.suppress(StoppedError):
        answer = certificate.ask(claim, limits.within(patience * PATIENCE_S))
    if answer.verdict is Verdict.OUT_OF_TIME and not instance.goals[0].executed:  # of these few are ready
        against.append(f"a certificate was not ready in {time.monotonic() - began_s:.1f} s")
    if answer.verdict is Verdict.DISAGREED:
        raise FalseClaimError(f"{outcome.solver}: {answer.reason}")
    return answer.verdict is Verdict.AGREED


def _in_part(instance: Instance, outcome: Outcome, limits: Limits) -> str:
    """Say what the programme over the line, which does not see the whole instance, makes of an optimum."""
    entry = find_solver(PARTLY)
    support = entry.accepts(instance)
    if outcome.proof is not Proof.OPTIMAL or not support.takes or support.proves:
        return ""
    if not independent_of(outcome, entry.name) or limits.deadline.over():
        return ""
    try:
        second = solve_checked(instance, entry, replace(limits, progress=lambda _: None))
    except ValueError:
        return ""
    problem = contradiction(outcome, second)
    if problem:
        raise FalseClaimError(problem)
    if second.bound is not None and second.blind_to:
        blind = ", ".join(second.blind_to)
        return f"not cross-checked in full: {entry.name}, blind to {blind}, finds {second.amount(second.bound)}"
    if second.proof is Proof.FEASIBLE and second.objective is not None:
        best = second.amount(second.objective)
        return f"not cross-checked in full: the best plan of {entry.name} has {best}, {second.goals[0]}"
    return ""


def better(one: Outcome, other: Outcome) -> Outcome:
    """Return what two checked outcomes about the same goal say together: the better plan, the larger bound.

    Where these are not one's own, the claim rests on both. Of two that know as much it is the other's.
    Raises FalseClaimError if they contradict each other.
    """
    problem = contradiction(one, other)
    if problem:
        raise FalseClaimError(problem)
    if other.proof in (Proof.OPTIMAL, Proof.INFEASIBLE) or one.plan is None or one.proof is Proof.UNKNOWN:
        first, second = other, one
    elif one.objective is not None and other.objective is not None and other.proof is not Proof.UNKNOWN:
        ranks = [(found.objective, -(found.bound or 0)) for found in (one, other)]
        first, second = (one, other) if ranks[0] < ranks[1] else (other, one)
    else:
        first, second = one, other
    if second.bound is None or first.proof is Proof.INFEASIBLE or second.bound <= (first.bound or 0):
        return first
    by = methods_of(second)
    return replace(_noted(first, f"bound: {', '.join(by)}"), bound=second.bound, bound_by=by)


def contradiction(one: Outcome, other: Outcome) -> str | None:
    """Say how two outcomes for one instance cannot both be true; None if they can. Both passed their check.

    What counts is the first goal, which both are about.
    Only a plan that is claimed to keep every rule (proof OPTIMAL or FEASIBLE) can refute anything.
    """
    for bounded, priced in ((one, other), (other, one)):
        if priced.proof not in (Proof.OPTIMAL, Proof.FEASIBLE) or priced.objective is None:
            continue
        found = f"{priced.solver} has a plan of {priced.amount(priced.objective)}"
        if bounded.proof is Proof.INFEASIBLE:
            return f"{bounded.solver} claims that no plan exists, but {found}"
        if bounded.bound is not None and bounded.bound > priced.objective:
            return f"{bounded.solver} claims that no plan is below {bounded.amount(bounded.bound)}, but {found}"
    return None


def _noted(outcome: Outcome, note: str) -> Outcome:
    return replace(outcome, notes=(*outcome.notes, note))
