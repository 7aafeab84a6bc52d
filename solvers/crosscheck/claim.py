"""A claim that is to be asked about again, and what a route may answer."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from formulation.costs.amounts import goal_amount
from formulation.evaluate import evaluate
from formulation.outcome import Limits, Outcome, Proof, Status
from formulation.problem.constraints import Goal
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan
from solvers.goals import limited


class Verdict(enum.StrEnum):
    """What a route makes of a claim."""

    AGREED = "agreed"
    """It proves the same, in its own way."""
    DISAGREED = "disagreed"
    """It and the claim cannot both be true."""
    INCONCLUSIVE = "inconclusive"
    """It ran and found nothing against the claim, and does not prove it either; the reason says why."""
    NOT_APPLICABLE = "not applicable"
    """It cannot take this instance; the reason says why."""
    OUT_OF_TIME = "out of time"


@dataclass(frozen=True, slots=True)
class Claim:
    """A proof about one goal: a plan is optimal (``objective`` is then also its bound), or there is no plan.

    ``instance`` is judged by that goal first. The claim implies that no plan takes at most ``threshold``.
    ``bound_by`` are the methods that it rests on beside its solver.
    """

    instance: Instance
    solver: str
    plan: Plan | None
    objective: int | None
    bound_by: tuple[str, ...] = ()

    @property
    def by(self) -> tuple[str, ...]:
        """The methods that the claim rests on, its solver first."""
        return (self.solver, *self.bound_by)

    @property
    def goal(self) -> Goal:
        """The goal that the claim is about."""
        return self.instance.goals[0]

    @property
    def threshold(self) -> int | None:
        """The largest value that no plan has if the claim is true; None: there is no plan at all."""
        return None if self.objective is None else self.objective - 1

    def words(self, value: int) -> str:
        """Return a value of the goal with its unit."""
        return goal_amount(self.goal, value)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a route says, why (empty where it simply agrees), and the plan that refutes the claim, if any."""

    verdict: Verdict
    reason: str = ""
    counter_plan: Plan | None = None


Ask: TypeAlias = Callable[[Claim, Limits], Answer]
"""A route: ask about a claim within limits. It raises nothing that a claim or an instance can cause."""


def claims_of(instance: Instance, outcome: Outcome) -> Iterator[Claim]:
    """Yield what an outcome claims to be proved, goal by goal up to the first open one; else nothing."""
    if outcome.of_first_goal().proof not in (Proof.OPTIMAL, Proof.INFEASIBLE):
        return
    first, *_ = instance.goals
    alone, methods = replace(instance, goals=(first,)), (outcome.solver, *outcome.bound_by)
    yield Claim(alone, outcome.solver, outcome.plan, outcome.objective, outcome.bound_by)
    before, value = first, outcome.objective
    for claim in outcome.further:
        if value is None or claim.status is not Status.PROVED or before.executed:
            return  # no instance can be limited by an executed time
        instance = limited(instance, before, value, claim.goal)
        solver, *others = claim.by or methods
        yield Claim(instance, solver, outcome.plan, claim.value, tuple(others))
        before, value = claim.goal, claim.value


def refutes(claim: Claim, plan: Plan) -> bool:
    """Tell whether a plan keeps every rule and is one that the claim says does not exist."""
    found = evaluate(claim.instance, plan)
    if not found.feasible or found.objective is None:
        return False
    return claim.threshold is None or found.objective <= claim.threshold


def refuted_by(claim: Claim, plan: Plan, who: str) -> Answer:
    """Return the answer of a route that has a plan which :func:`refutes` the claim."""
    value = evaluate(claim.instance, plan).objective or 0
    claimed = (
        "there is no plan" if claim.threshold is None else f"none is below {claim.words(claim.threshold + 1)}"
    )
    reason = f"{who} has a plan of {claim.words(value)} that keeps every rule; the claim is that {claimed}"
    return Answer(Verdict.DISAGREED, reason, plan)
