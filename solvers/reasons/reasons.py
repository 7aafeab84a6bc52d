"""Why a plan is as it is, in priced plans: every statement is a plan with its price, or a claim with its proof."""

from __future__ import annotations

from dataclasses import dataclass

from formulation.constraints.rules import structure_violations
from formulation.outcome import Limits, begin
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan
from formulation.schedules.table import ScheduleError
from solvers.reasons.bounds import PlanTerm, plan_terms
from solvers.reasons.chain import ChainPart, chain_parts
from solvers.reasons.choices import Neighbour, Neighbours, most_plans
from solvers.reasons.cuts import CutReason, cut_reasons
from solvers.reasons.devices import StageReason, stage_reasons
from solvers.reasons.idle import IdleReason, idle_reason
from solvers.reasons.priced import PricedPlan, Pricing

__all__ = ["Reasons", "reasons"]

IDLE_S = 10.0
"""How long the best plan with more devices is searched for where no time limit is given."""


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why a plan is as it is.

    ``terms`` make up its first goal; ``cuts``, ``stages`` and ``idle`` are about its neighbours; ``chain`` adds up
    to the makespan of its timeline, in ns (empty where it was not run, and ``notes`` say why).
    """

    instance: Instance
    priced: PricedPlan
    terms: tuple[PlanTerm, ...]
    cuts: tuple[CutReason, ...]
    stages: tuple[StageReason, ...]
    idle: IdleReason | None
    chain: tuple[ChainPart, ...]
    notes: tuple[str, ...] = ()

    @property
    def better(self) -> Neighbour | None:
        """The best neighbour that keeps the rules and is better than the plan; None if none is."""
        found = [one for one in self.neighbours() if one.better]
        return min(found, key=lambda one: one.priced.rank, default=None)

    def neighbours(self) -> list[Neighbour]:
        """Return every neighbour that is spoken of."""
        found: list[Neighbour | None] = []
        sorts: list[Neighbours] = []
        for cut in self.cuts:
            found += [cut.left, cut.right, cut.nearest_left, cut.nearest_right]
            sorts += [cut.elsewhere, cut.without]
        for stage in self.stages:
            sorts += [stage.devices, stage.mode, stage.form]
        sorts += (
            [moves for server in self.idle.servers for moves in (server.moves, server.joins)] if self.idle else []
        )
        return [one for one in (*found, *(sort.best for sort in sorts)) if one is not None]


def reasons(instance: Instance, plan: Plan, limits: Limits | None = None) -> Reasons:
    """Say why a plan is as it is.

    Without a time limit at most ``most_plans`` are priced for each question, and the search for the best plan with
    more devices ends after ``IDLE_S``; with one all are priced, for as long as half of it lasts. Raises ValueError
    for a plan that has no price.
    """
    broken = list(structure_violations(instance, plan))
    if broken:
        raise ValueError("; ".join(violation.message for violation in broken))
    limits = begin(limits)
    timed = limits.end_s is not None
    most = None if timed else most_plans(len(instance.layers))
    pricing = Pricing(instance, plan, (limits.share(2) if timed else limits).deadline)
    base = pricing.price(plan)
    if base is None:
        raise ValueError("the plan has no price")
    cuts, stages = cut_reasons(pricing, base, most), stage_reasons(pricing, base, most)
    searching = limits if timed else limits.within(IDLE_S)
    idle = idle_reason(pricing, base, searching, most)
    notes = []
    try:
        chain = chain_parts(instance, plan)
    except ScheduleError as error:
        chain = ()
        notes.append(f"not run on the timeline: {error}")
    return Reasons(instance, base, plan_terms(instance, plan), cuts, stages, idle, chain, tuple(notes))
