"""The neighbours of a plan, priced: what was asked about, how many were looked at, and the best of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from formulation.problem.plan import Plan
from solvers.reasons.priced import PricedPlan, Pricing
from solvers.reasons.regrouping import laid

__all__ = ["Neighbour", "Neighbours"]

MOST, MOST_LAYERS = 400, 40_000
"""How many plans are priced for one statement, and layers in all of them, where no time limit asks for all."""

Candidate = tuple[str, Plan, tuple[int, ...]]
"""What is done, the plan with the forms that the layers had, and the stages whose forms are chosen anew."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A plan one move away: what is done, and what it costs more than the plan (less than 0: it is better).

    ``costs`` are the differences of every goal of the instance, in its unit.
    """

    what: str
    priced: PricedPlan
    costs: tuple[int, ...]

    @property
    def better(self) -> bool:
        """Tell whether it keeps the rules and is better than the plan."""
        return self.priced.feasible and self.costs < (0,) * len(self.costs)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """All neighbours of one sort: the best one, how many were priced, and how many of these keep the rules.

    Where none keeps the rules ``best`` is the one that would be best, and its violations say why it is no plan.
    ``complete``: every neighbour of the sort was priced. None in ``best``: there is no such neighbour.
    """

    best: Neighbour | None
    looked_at: int
    kept_rules: int
    complete: bool


def most_plans(layers: int) -> int:
    """Return how many plans of so many layers are priced for one statement."""
    return max(1, min(MOST, MOST_LAYERS // layers))


def neighbours(
    pricing: Pricing, base: PricedPlan, candidates: Iterable[Candidate], most: int | None
) -> Neighbours:
    """Price candidates up to ``most`` (None: until the deadline) and return the best.

    Cost: for each one evaluation, or two, and the forms of its stages.
    """
    best: Neighbour | None = None
    looked_at = kept = 0
    for what, plan, changed in candidates:
        if pricing.deadline.over() or (most is not None and looked_at >= most):
            return Neighbours(best, looked_at, kept, complete=False)
        found = neighbour(pricing, base, what, plan, changed)
        if found is None:
            continue
        looked_at += 1
        kept += found.priced.feasible
        if best is None or found.priced.rank < best.priced.rank:
            best = found
    return Neighbours(best, looked_at, kept, complete=True)


def neighbour(
    pricing: Pricing, base: PricedPlan, what: str, plan: Plan, changed: Iterable[int]
) -> Neighbour | None:
    """Price one neighbour; None where it is the plan itself, or none at all."""
    if pricing.on_line:
        plan = laid(pricing.instance, plan)
    before = [stage.group for stage in base.plan.stages]
    moved = (at for at, stage in enumerate(plan.stages) if stage.group not in before)
    priced = pricing.best(plan, {*changed, *moved})
    if priced is None or priced.plan == base.plan:
        return None
    costs = tuple(one - other for one, other in zip(priced.values, base.values, strict=True))
    return Neighbour(what, priced, costs)
