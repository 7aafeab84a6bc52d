"""Run a solver and hold its claim to account: every outcome that anyone sees has passed through here.

The evaluator recomputes each claim (``formulation.outcome.checked``). A proof of CP-SAT is then compared with
that of a second exact method, which shares no search with it: a dynamic programme over the line or over device
states, or for the time of a step the branch and bound over bottlenecks.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from formulation.limits.size import TooLargeError
from formulation.outcome import FalseClaimError, Limits, Outcome, Proof, checked
from formulation.problem.options import Goal, Placement
from solvers.catalogue import SOLVERS, find_solver
from solvers.fallback import methods_after
from solvers.ingredients import independent
from solvers.search.goals import Solve, solve_in_order

if TYPE_CHECKING:
    from formulation.problem.instance import Instance
    from solvers.catalogue import SolverEntry

MAIN_SOLVER = "cpsat"
SECOND_SOLVER = "line_dp"
NOT_INDEPENDENT = "not cross-checked: no exact method that sees this instance is independent of {}"
SAME_OPTIMUM = "{} finds the same optimum"
SAME_INFEASIBLE = "{} finds no plan either"


class RefutedError(FalseClaimError):
    """A claim that the evaluator refutes, with the outcome that claims it."""

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


def solve_checked(instance: Instance, solver: SolverEntry, limits: Limits) -> Outcome:
    """Solve with one solver and check its claim.

    Raises RefutedError if the claim does not hold, and ValueError if the solver cannot take the instance.
    """
    return _checked(instance, solver.load(), limits)


def _checked(instance: Instance, solve: Solve, limits: Limits) -> Outcome:
    outcome = solve_in_order(instance, solve, limits)
    try:
        return checked(instance, outcome)
    except FalseClaimError as error:
        raise RefutedError(str(error), outcome) from error


def solve_or_ask_another(
    instance: Instance, solver: SolverEntry, limits: Limits, *, cross_check: bool = True
) -> Outcome:
    """Solve and cross-check; where an instance is too large for a solver, ask others, whose plan it then is.

    The notes say what stopped whom. Raises FalseClaimError as :func:`solve_and_cross_check` does, and ValueError
    if the solver cannot take the instance for another reason, or none can.
    """
    limits = limits.begun()
    try:
        return solve_and_cross_check(instance, solver, limits, cross_check=cross_check)
    except TooLargeError as error:
        refused = [f"{solver.name}: {error}"]
    for name, solve in methods_after(solver.name):
        try:
            outcome = _checked(instance, solve, limits)
        except ValueError as error:
            refused.append(f"{name}: {error}")
        else:
            return replace(outcome, notes=(*refused, f"{name} was asked instead", *outcome.notes))
    raise TooLargeError("; ".join(refused))


def solve_and_cross_check(
    instance: Instance, solver: SolverEntry, limits: Limits, *, cross_check: bool = True
) -> Outcome:
    """Solve, check, and compare a proof of CP-SAT with a second exact method, within the same time limit.

    The outcome is the first solver's, its notes say how the comparison went.
    Raises FalseClaimError if a claim fails its check or the two methods contradict each other.
    """
    limits = limits.begun()
    outcome = solve_checked(instance, solver, limits)
    first = outcome.of_first_goal()
    proved = first.proof in (Proof.OPTIMAL, Proof.INFEASIBLE)
    if not (cross_check and proved and solver.name == MAIN_SOLVER):
        return outcome
    if not independent(solver.name, SECOND_SOLVER):
        return _noted(outcome, NOT_INDEPENDENT.format(solver.name))
    if limits.deadline.over():
        return _noted(outcome, "not cross-checked: the time limit was used up")
    try:
        second = _second(instance, solver.name, replace(limits, progress=lambda _: None))
    except ValueError as error:
        return _noted(outcome, f"not cross-checked: {SECOND_SOLVER} cannot take this instance ({error})")
    problem = contradiction(first, second)
    if problem:
        raise FalseClaimError(problem)
    return _noted(outcome, _agreement(first, second))


def _second(instance: Instance, solver: str, limits: Limits) -> Outcome:
    """Ask an exact method that sees this instance for its first goal; the one over the line where none does.

    Only methods that are independent of ``solver`` are asked. Raises ValueError where the last one cannot take it.
    """
    first = replace(instance, goals=instance.goals[:1])
    beyond_line = instance.constraints.memory or instance.constraints.placement is not Placement.LINE
    if instance.goals[0] is Goal.ITERATION_TIME or beyond_line:
        name = "paced_dp" if instance.goals[0] is Goal.ITERATION_TIME else "state_dp"
        if independent(solver, name):
            with contextlib.suppress(ValueError):
                return solve_checked(first, find_solver(name), limits)
    return solve_checked(first, find_solver(SECOND_SOLVER), limits)


def _agreement(outcome: Outcome, second: Outcome) -> str:
    """Say what a second outcome that does not contradict a proof is worth."""
    if second.proof is outcome.proof:
        same = SAME_OPTIMUM if outcome.proof is Proof.OPTIMAL else SAME_INFEASIBLE
        return same.format(_words(second.solver))
    if second.bound is not None and second.blind_to and outcome.proof is Proof.OPTIMAL:
        blind = ", ".join(second.blind_to)
        return f"not cross-checked in full: {second.solver}, blind to {blind}, finds {second.amount(second.bound)}"
    if second.proof is Proof.FEASIBLE and second.objective is not None:
        best = second.amount(second.objective)
        return f"not cross-checked in full: the best plan of {second.solver} has {best}, {second.goals[0]}"
    return f"not cross-checked: {second.solver} says nothing here"


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


def _words(solver: str) -> str:
    """Say in words which method a name stands for."""
    return next((one.summary for one in SOLVERS if one.name == solver), solver)


def _noted(outcome: Outcome, note: str) -> Outcome:
    return replace(outcome, notes=(*outcome.notes, note))
