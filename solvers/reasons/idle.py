"""Why devices stay idle: what the best plan with more devices takes, by a solver, and what single moves cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from formulation.constraints.plans.own import Own
from formulation.constraints.violation import Violation
from formulation.limits.size import TooLargeError
from formulation.outcome import Limits, Outcome, Proof
from formulation.problem.cuts import CutSpace
from formulation.problem.groups import Group
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan, Span
from formulation.problem.units import Link
from solvers.auto.solve import plan as best_plan
from solvers.reasons.bounds import bounding_stages, plan_terms
from solvers.reasons.choices import Candidate, Neighbours, neighbours
from solvers.reasons.devices import device_candidates
from solvers.reasons.priced import PricedPlan, Pricing
from solvers.reasons.regrouping import idle_devices, laid, regrouped

NAME = "more_devices"
QUESTIONS = 2
"""How many are asked about a server with idle devices, beside the search for a best plan."""


@dataclass(frozen=True, slots=True)
class IdleServer:
    """A server with idle devices: how many, and the fastest link from one of them to a device that a stage has.

    ``moves`` are the plans in which one of them joins a stage, perhaps for another device, or takes a part of the
    layers of one; ``joins`` those in which one joins a stage that bounds the plan.
    """

    server: int
    idle: int
    link: Link | None
    moves: Neighbours
    joins: Neighbours


@dataclass(frozen=True, slots=True)
class IdleReason:
    """Why no more than ``used`` devices are used.

    ``outcome`` is about the best plan with at least one device more: what a solver claims, with its proof; None
    where nobody takes the question, and ``note`` says why.
    """

    used: int
    servers: tuple[IdleServer, ...]
    outcome: Outcome | None
    note: str = ""


def idle_reason(pricing: Pricing, base: PricedPlan, limits: Limits) -> IdleReason | None:
    """Return why devices are idle; None if none is. Cost: moves to every server, and a search within limits."""
    instance, plan = pricing.instance, base.plan
    idle = idle_devices(instance, plan)
    if not idle:
        return None
    bounding = bounding_stages(plan_terms(instance, plan))
    servers = tuple(
        IdleServer(
            server,
            count,
            _nearest(instance, plan, server),
            neighbours(pricing, base, _moves(pricing, plan, server)),
            neighbours(pricing, base, _joining(pricing, plan, server, bounding)),
        )
        for server, count in idle.items()
    )
    used = _devices(plan)
    starts = [one.moves.best.priced for one in servers if one.moves.best is not None]
    more = [one for one in starts if one.feasible and _devices(one.plan) > used]
    start = min(more, key=lambda one: one.rank, default=None)
    if limits.deadline.over():
        return IdleReason(used, servers, None, "the time was over")
    try:
        question = using_more(instance, used + 1)
        within = limits if start is None else replace(limits, start=start.plan)
        outcome = best_plan(question, within, cross_check=False)
    except (TooLargeError, ValueError) as error:
        return IdleReason(used, servers, None, str(error))
    return IdleReason(used, servers, _no_worse(outcome, start))


def using_more(instance: Instance, devices: int) -> Instance:
    """Return the problem of the first goal among plans with at least so many devices."""

    def check(_: Instance, plan: Plan) -> Iterator[Violation]:
        used = _devices(plan)
        if used < devices:
            words = f"stages take {used} devices, expected at least {devices}"
            yield Violation(NAME, "plan", used, devices, "devices", words)

    def post(v: Any) -> Iterator[tuple[tuple[int, ...], Any]]:  # noqa: ANN401 (as Own says)
        sizes = [group.devices for group in v.tables.groups]
        used = sum(sizes[g] * literal for row in v.runs for g, literal in enumerate(row))
        yield (0,), v.model.add(used >= devices)

    constraints = instance.constraints
    asked = replace(constraints, own=(*constraints.own, Own(NAME, check, post)))
    return replace(replace(instance, constraints=asked), goals=instance.goals[:1])


def _no_worse(outcome: Outcome, start: PricedPlan | None) -> Outcome:
    """Return the outcome with the plan of a single move where a search that was stopped has none as good."""
    if start is None or outcome.proof in (Proof.OPTIMAL, Proof.INFEASIBLE):
        return outcome
    if outcome.objective is not None and outcome.proof is Proof.FEASIBLE and outcome.objective <= start.values[0]:
        return outcome
    return replace(outcome, plan=start.plan, objective=start.values[0], proof=Proof.FEASIBLE)


def _nearest(instance: Instance, plan: Plan, server: int) -> Link | None:
    used = {at for stage in plan.stages for at, _ in stage.group.counts}
    links = [link for at in used if (link := instance.links[server][at]) is not None]
    return max(links, key=lambda link: (link.bits_per_second, -link.latency_ns), default=None)


def _moves(pricing: Pricing, plan: Plan, server: int) -> Iterator[Candidate]:
    """Yield the plans in which a stage gets a device of this server, or one takes over a part of a stage."""
    yield from _joining(pricing, plan, server, range(len(plan)))
    found = _splitting(pricing, plan, server)
    yield from (one for one in found if _used(pricing, one[1], server) > _used(pricing, plan, server))


def _joining(pricing: Pricing, plan: Plan, server: int, stages: Iterable[int]) -> Iterator[Candidate]:
    """Yield the plans with other devices for one of these stages that use more devices of this server."""
    before = _used(pricing, plan, server)
    for index in stages:
        for what, other, changed in device_candidates(pricing, plan, index):
            if _used(pricing, other, server) > before:
                yield what, other, changed


def _splitting(pricing: Pricing, plan: Plan, server: int) -> Iterator[Candidate]:
    """Yield the plans in which a device of this server, or the next of the line, has part of a stage."""
    instance = pricing.instance
    counts = dict(Group.on_line(instance, 0, 1).counts) if pricing.on_line else {server: 1}
    name = f"a device of {instance.servers[server].name}"
    places = CutSpace.of(instance).places
    for index, stage in enumerate(plan.stages):
        for place in places:
            if stage.span.first < place < stage.span.stop:
                for behind in (True, False):
                    part = f"{'from' if behind else 'before'} {instance.layers[place].name}"
                    words = f"a stage more, for the layers of stage {index} {part}{' on' if behind else ''}"
                    for other in _split(instance, plan, index, place, counts, behind=behind):
                        yield f"{words}, with {name}", other, (index, index + 1)


def _split(
    instance: Instance, plan: Plan, index: int, place: int, counts: dict[int, int], *, behind: bool
) -> Iterator[Plan]:
    """Yield the plan with a stage cut in two, of which one half gets devices of its own."""
    stage = plan.stages[index]
    at = place - stage.span.first
    halves = (
        stage.over(Span(stage.span.first, place), stage.forms[:at]),
        stage.over(Span(place, stage.span.stop), stage.forms[at:]),
    )
    for _, half in regrouped(instance, replace(halves[behind], group=Group(())), counts):
        rows = (halves[0], half) if behind else (half, halves[1])
        yield Plan((*plan.stages[:index], *rows, *plan.stages[index + 1 :]))


def _devices(plan: Plan) -> int:
    return sum(stage.group.devices for stage in plan.stages)


def _used(pricing: Pricing, plan: Plan, server: int) -> int:
    """Return how many devices of a server a plan uses, once it is laid on the line where that is asked."""
    placed = laid(pricing.instance, plan) if pricing.on_line else plan
    return sum(count for stage in placed.stages for at, count in stage.group.counts if at == server)
