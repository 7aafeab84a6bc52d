"""Why a plan is as it is, in priced plans: every statement is a plan with its price, or a claim with its proof.

What the critical chain of a plan's timeline consists of.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipecut.formulation.constraints.rules import structure_violations
from pipecut.formulation.costs.prices import updates_ns
from pipecut.formulation.outcome import Limits, Proof, begin
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.schedules.table import ScheduleError
from pipecut.formulation.timeline.critical_path import ChainPart, parts_of_chain
from pipecut.formulation.timeline.from_plan import PlanRun
from pipecut.formulation.timeline.timeline import run
from pipecut.solvers.reasons.cuts import QUESTIONS as OF_A_CUT
from pipecut.solvers.reasons.cuts import CutReason, cut_reasons
from pipecut.solvers.reasons.devices import QUESTIONS as OF_A_STAGE
from pipecut.solvers.reasons.devices import QUESTIONS_IDLE as OF_A_SERVER
from pipecut.solvers.reasons.devices import IdleReason, StageReason, idle_reason, stage_reasons
from pipecut.solvers.reasons.plan_neighbours import Neighbour, Neighbours
from pipecut.solvers.reasons.priced_plans import PricedPlan, Pricing, idle_devices
from pipecut.solvers.reasons.terms import PlanTerm, plan_terms


def chain_parts(instance: Instance, plan: Plan) -> tuple[ChainPart, ...]:
    """Return the parts of the critical chain, the longest first; their times add up to the makespan.

    Raises ScheduleError where there are too many passes to be run. Cost: that of the timeline.
    """
    made = PlanRun.of(instance, plan, steps=instance.training.steps_run(len(plan)))
    updates = [updates_ns(instance, stage)[0] for stage in plan.stages]
    return parts_of_chain(run(made.schedule, made.durations, made.execution), updates)


OF_NEIGHBOURS, ALONE = 1.5, 1.25
"""Neighbours have the time divided by this, with idle devices and without: the last price is not cut off."""


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

    @property
    def better_plan(self) -> Plan | None:
        """The best plan that turned up and beats this one, one move away or with more devices, if one did."""
        found = [(one.priced.values, one.priced.plan) for one in (self.better,) if one is not None]
        more = None if self.idle is None else self.idle.outcome
        if more is not None and more.proof is not Proof.UNKNOWN and more.plan is not None:
            value = self.priced.values[0] if more.objective is None else more.objective
            found += [((value,), more.plan)] * (value < self.priced.values[0])
        return min(found, key=lambda one: one[0])[1] if found else None

    def neighbours(self) -> list[Neighbour]:
        """Return every neighbour that is spoken of."""
        found = [one for cut in self.cuts for one in (cut.left, cut.right, cut.nearest_left, cut.nearest_right)]
        return [one for one in (*found, *(sort.best for sort in self.sorts())) if one is not None]

    def sorts(self) -> list[Neighbours]:
        """Return the neighbours of every sort."""
        found = [sort for cut in self.cuts for sort in (cut.elsewhere, cut.without)]
        found += [sort for stage in self.stages for sort in (stage.devices, stage.mode, stage.form)]
        servers = () if self.idle is None else self.idle.servers
        return found + [sort for server in servers for sort in (server.moves, server.joins)]


def reasons(instance: Instance, plan: Plan, limits: Limits | None = None) -> Reasons:
    """Say why a plan is as it is.

    The time limit, if there is one, is shared among the questions about neighbours; where devices are idle a third
    of it, and what is left, is for the best plan with more devices. What was not answered in time says so
    (``Neighbours.complete``). Raises ValueError for a plan that has no price.
    """
    broken = list(structure_violations(instance, plan))
    if broken:
        raise ValueError("; ".join(violation.message for violation in broken))
    limits, notes = begin(limits), list[str]()
    shared = limits.share(OF_NEIGHBOURS if idle_devices(instance, plan) else ALONE)
    pricing = Pricing(instance, plan, shared.deadline, _questions(instance, plan))
    base = pricing.price(plan)
    if base is None:
        raise ValueError("the plan has no price")
    # Before the neighbours, whose questions end with the time: whoever waits then waits for nothing else.
    terms = plan_terms(instance, plan)
    try:
        chain = chain_parts(instance, plan)
    except ScheduleError as error:
        chain = ()
        notes.append(f"not run on the timeline: {error}")
    cuts, stages = cut_reasons(pricing, base), stage_reasons(pricing, base)
    idle = idle_reason(pricing, base, limits)
    return Reasons(instance, base, terms, cuts, stages, idle, chain, tuple(notes))


def _questions(instance: Instance, plan: Plan) -> int:
    """Return how many questions are asked about the neighbours of a plan."""
    idle = len(idle_devices(instance, plan))
    return OF_A_CUT * (len(plan) - 1) + OF_A_STAGE * len(plan) + OF_A_SERVER * idle
