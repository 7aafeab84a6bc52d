"""Several goals in order, without weights to guess: the second decides only among the best plans of the first.

Each goal is a search of its own: its optimum, once proved, becomes a limit (rule 15, ``at_most``) of the search
for the next one. So any solver that keeps that rule can do it, and every value is proved by itself. No search
keeps to an executed time while it works on another goal: behind one, every plan is tried where there are few, and
where there are many nobody looks at the later goals, which the outcome says.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import FalseClaimError, GoalClaim, Limits, Outcome, Proof, Status, checked
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers import exhaustive

Solve = Callable[[Instance, Limits], Outcome]


def solve_in_order(instance: Instance, solve: Solve, limits: Limits) -> Outcome:
    """Solve for the first goal, then for each of the others among the plans that are best so far.

    The outcome has a claim for every goal: proved, open with its bound, or not looked at, as a goal before it is
    not proved and the rest would order an accident. It is OPTIMAL only if all are proved. The time limit is that
    of all goals together. Raises FalseClaimError where the answer about a later goal contradicts itself or the
    plan at hand.
    """
    if len(instance.goals) == 1:
        return solve(instance, limits)
    began, limits = time.monotonic(), limits.begun()
    outcome = solve(instance, limits)
    if outcome.plan is None or outcome.objective is None:
        return outcome
    plan, claims, notes = outcome.plan, list[GoalClaim](), list(outcome.notes)
    # Beside a plan that breaks what its solver is blind to, nothing can be ordered.
    proved = outcome.bound == outcome.objective and evaluate(instance, plan).feasible
    value, narrowed, held, search = outcome.objective, instance, list[tuple[Goal, int]](), solve
    for before, goal in itertools.pairwise(instance.goals):
        claim = GoalClaim(goal, 0, None, looked_at=False)
        if proved:
            held += [(before, value)] if before.executed else []
            narrowed = limited(narrowed, before, value, goal)
            search, refused = _search_for(narrowed, held, solve)
            notes += [f"{goal}: {refused}"] if refused else []
            proved = not refused
        if proved:
            # Nobody is told of the bounds of later goals, which are in other units.
            quiet = replace(limits, progress=lambda _: None, start=plan, below=None, known=None)
            found = _best_by(narrowed, plan, search, quiet)
            plan, claim = found.plan, found.claim
            notes += [f"{goal}: {note}" for note in found.notes]
            proved, value = claim.status is Status.PROVED, claim.value
        claims.append(claim)
    values = evaluate(instance, plan).further
    return replace(
        outcome,
        plan=plan,
        proof=outcome.proof if proved or outcome.proof is not Proof.OPTIMAL else Proof.FEASIBLE,
        further=tuple(replace(claim, value=worth) for claim, worth in zip(claims, values, strict=False)),
        notes=tuple(notes),
        seconds=time.monotonic() - began,
    )


def there_is(
    instance: Instance, plan: Plan, solver: str, note: str = "", bound: int | None = None, seconds: float = 0.0
) -> Outcome:
    """Return the claim that a plan keeps every rule: of the first goal a bound is said, of others nothing."""
    priced = evaluate(instance, plan)
    rest = zip(instance.goals[1:], priced.further, strict=True)
    further = tuple(GoalClaim(goal, value, None, looked_at=False) for goal, value in rest)
    value, notes = priced.objective, (note,) if note else ()
    bound = None if bound is None else min(bound, value or 0)
    return Outcome(solver, Proof.FEASIBLE, plan, value, bound, seconds, notes, (), further, instance.goals)


def _search_for(narrowed: Instance, held: Sequence[tuple[Goal, int]], solve: Solve) -> tuple[Solve, str]:
    """Return who searches for the goal of an instance among plans that keep to executed times, or why none."""
    if not held:
        return solve, ""
    if reason := exhaustive.accepts(narrowed).reason:
        return (
            solve,
            f"not looked at, as no search keeps to {held[0][0]}, and there are {reason.partition(': ')[2]}",
        )
    judged = replace(narrowed, goals=tuple(goal for goal, _ in held))

    def keeps(plan: Plan) -> bool:
        found = evaluate(judged, plan)
        values = (found.objective, *found.further)
        return found.feasible and all(
            value is not None and value <= most for value, (_, most) in zip(values, held, strict=True)
        )

    return lambda instance, limits: exhaustive.solve(instance, limits, keeps), ""


@dataclass(frozen=True, slots=True)
class _Found:
    """The best plan known of a later goal, what is claimed of it, and the notes of its search."""

    plan: Plan
    claim: GoalClaim
    notes: tuple[str, ...]


def _best_by(narrowed: Instance, plan: Plan, solve: Solve, limits: Limits) -> _Found:
    """Search for the best plan by a later goal; ``plan``, the best so far, stays where none is better."""
    goal, known = narrowed.goals[0], evaluate(narrowed, plan)
    if known.objective is None or not known.feasible:
        raise FalseClaimError(
            f"{goal}: the plan that is best by the goals before it does not keep to their values"
        )
    found = checked(narrowed, solve(narrowed, limits), limits.deadline)
    value, notes = known.objective, found.notes
    if found.proof is Proof.INFEASIBLE:
        raise FalseClaimError(f"{found.solver}: {goal}: claims that no plan exists, but there is one already")
    if found.proof is Proof.UNKNOWN or found.plan is None or found.objective is None:
        notes = (*notes, "stopped without a plan")
    elif found.objective <= value:
        plan, value = found.plan, found.objective
    bound = max(lower_bound(narrowed), found.bound or 0)
    return _Found(plan, GoalClaim(goal, value, bound, by=(found.solver, *found.bound_by)), notes)


def limited(instance: Instance, before: Goal, value: int, goal: Goal) -> Instance:
    """Return the instance that is judged by ``goal`` among plans with at most ``value`` of ``before``.

    Of an executed time the instance cannot say that.
    """
    if before.executed:
        return replace(instance, goals=(goal,))
    others = (limit for limit in instance.constraints.at_most if limit.goal is not before)
    constraints = replace(instance.constraints, at_most=(*others, GoalLimit(before, value)))
    return replace(replace(instance, constraints=constraints), goals=(goal,))
