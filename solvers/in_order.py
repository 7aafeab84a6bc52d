"""Several goals in order, without weights to guess: the second decides only among the best plans of the first.

Each goal is a search of its own: its optimum, once proved, becomes a limit (rule 15, ``at_most``) of the search
for the next one. So any solver that keeps that rule can do it, and every value is proved by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from formulation.constraints import GoalLimit
from formulation.demands import with_constraints
from formulation.instance import Instance
from formulation.options import Goal
from formulation.outcome import GoalClaim, Limits, Outcome, Proof

Solve = Callable[[Instance, Limits], Outcome]


def solve_in_order(instance: Instance, solve: Solve, limits: Limits) -> Outcome:
    """Solve for the first goal, then for each of the others among the plans that are best so far.

    Ends early, and says so in the notes, where a goal is not proved: the rest would order an accident. The time
    limit is that of all goals together.
    """
    if len(instance.goals) == 1:
        return solve(instance, limits)
    began, limits = time.monotonic(), limits.begun()
    outcome = solve(instance, limits)
    claims: list[GoalClaim] = []
    notes = list(outcome.notes)
    last, value = outcome, outcome.objective
    for before, goal in zip(instance.goals, instance.goals[1:], strict=False):
        if last.proof is not Proof.OPTIMAL or value is None:
            notes.append(f"{goal} was not looked at: {before} is not proved")
            break
        instance = limited(instance, before, value, goal)
        # Nobody is told of the bounds of later goals, which are in other units.
        last = solve(instance, replace(limits, progress=lambda _: None))
        value = last.objective
        if last.plan is None or value is None:
            notes.append(f"{goal}: stopped without a plan")
            break
        claims.append(GoalClaim(goal, value, last.bound))
        notes += [f"{goal}: {note}" for note in last.notes]
        outcome = replace(outcome, plan=last.plan)
    seconds = time.monotonic() - began
    return replace(outcome, further=tuple(claims), notes=tuple(notes), seconds=seconds)


def limited(instance: Instance, before: Goal, value: int, goal: Goal) -> Instance:
    """Return the instance that is judged by ``goal`` among plans with at most ``value`` of ``before``."""
    others = (limit for limit in instance.constraints.at_most if limit.goal is not before)
    constraints = replace(instance.constraints, at_most=(*others, GoalLimit(before, value)))
    return replace(with_constraints(instance, constraints), goals=(goal,))
