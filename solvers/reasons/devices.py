"""Why each stage has these devices, this mode and these forms: the plans in which it has others.

Why devices stay idle: what the best plan with more devices takes, by a solver, and what single moves cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipecut.formulation.constraints.constraint import Violation, devices_of
from pipecut.formulation.constraints.plans.own import Own
from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.outcome import Limits, Outcome, Proof
from pipecut.formulation.problem.constraints import Recompute
from pipecut.formulation.problem.cuts import CutSpace, single_blocks
from pipecut.formulation.problem.groups import Group, forms_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.modes import modes
from pipecut.formulation.problem.plan import Plan, Span
from pipecut.formulation.problem.units import Link
from pipecut.solvers.auto.solve import plan as best_plan
from pipecut.solvers.reasons.plan_neighbours import Candidate, Neighbours, neighbours
from pipecut.solvers.reasons.priced_plans import PricedPlan, Pricing, idle_devices, laid, put, regrouped
from pipecut.solvers.reasons.terms import bounding_stages, plan_terms

QUESTIONS = 3
"""How many are asked about a stage."""


@dataclass(frozen=True, slots=True)
class StageReason:
    """A stage beside the same plan in which it has other devices, another mode or other forms.

    ``devices``: more or fewer devices of a server, another server's in their place, a device taken from any other
    stage or given to it (on the line: any number of them), or both stages' devices exchanged, in every mode.
    ``mode``: other replicas, or recomputation the other way round, on the same devices. ``form``: another form for
    one layer.
    """

    stage: int
    devices: Neighbours
    mode: Neighbours
    form: Neighbours


def stage_reasons(pricing: Pricing, base: PricedPlan) -> tuple[StageReason, ...]:
    """Return a reason for every stage. Cost: ``QUESTIONS`` a stage."""
    return tuple(
        StageReason(
            index,
            neighbours(pricing, base, device_candidates(pricing, base.plan, index)),
            neighbours(pricing, base, _modes(pricing.instance, base.plan, index)),
            neighbours(pricing, base, _forms(pricing.instance, base.plan, index)),
        )
        for index in range(len(base.plan))
    )


def device_candidates(pricing: Pricing, plan: Plan, index: int) -> Iterator[Candidate]:
    """Yield the plan with other devices for a stage; on the line others follow, one behind the other."""
    found = _on_line(pricing.instance, plan, index) if pricing.on_line else _free(pricing.instance, plan, index)
    classes = pricing.alike
    seen: set[object] = set()
    for what, other, changed in found:
        # What alike servers have of every stage may be exchanged: the plan has the same price and breaks the same.
        held: dict[int, list[tuple[int, int]]] = {}
        for at, stage in enumerate(other.stages):
            for server, count in stage.group.counts:
                held.setdefault(server, []).append((at, count))
        rows = sorted((classes[server], tuple(row)) for server, row in held.items())
        kinds = tuple((pricing.kind(stage.group), stage.span) for stage in other.stages)
        alike = tuple(rows), kinds, pricing.joints(other)
        if alike not in seen:
            seen.add(alike)
            yield what, other, changed


def _on_line(instance: Instance, plan: Plan, index: int) -> Iterator[Candidate]:
    """Yield other numbers of devices for a stage, with those that are idle or any other stage, near ones first."""
    sizes = [stage.group.devices for stage in plan.stages]
    own, idle = sizes[index], instance.devices - sum(sizes)
    asked = instance.demands.devices_per_stage or range(1, instance.devices + 1)
    for size in _near(own, (one for one in asked if one <= own + idle)):
        yield from _sized(instance, plan, {index: size})
    for other in _near(index, range(len(plan))):
        for moved in _near(0, (own - one for one in asked if sizes[other] + own - one in asked)):
            yield from _sized(instance, plan, {index: own - moved, other: sizes[other] + moved})


def _near(here: int, numbers: Iterable[int]) -> list[int]:
    """Return the other numbers, the nearest first: what is looked at where the time is short."""
    return sorted((one for one in numbers if one != here), key=lambda one: (abs(one - here), one))


def _sized(instance: Instance, plan: Plan, sizes: Mapping[int, int]) -> Iterator[Candidate]:
    """Yield the plan with so many devices for some stages, in every mode that they may have."""
    plans: list[tuple[list[str], Plan]] = [([], plan)]
    for at, size in sizes.items():
        group, before = Group.on_line(instance, 0, size), plan.stages[at].group.devices
        plans = [
            ([*said, f"{size} device{'s' * (size > 1)}{what} for stage {at}, not {before}"], put(one, at, stage))
            for said, one in plans
            for what, stage in regrouped(instance, one.stages[at], dict(group.counts))
        ]
    yield from ((" and ".join(said), one, tuple(sizes)) for said, one in plans)


def _free(instance: Instance, plan: Plan, index: int) -> Iterator[Candidate]:
    idle, stage = idle_devices(instance, plan), plan.stages[index]
    counts = dict(stage.group.counts)
    for changed in _recounted(counts, idle):
        held = devices_of(instance, sorted((at, count) for at, count in changed.items() if count))
        for what, one in regrouped(instance, stage, changed):
            yield f"{held}{what} for stage {index}", put(plan, index, one), (index,)
    for other, beside in enumerate(plan.stages):
        if other == index:
            continue
        yield from _given(instance, plan, other, index)
        yield from _given(instance, plan, index, other)
        mine, theirs = stage.on(beside.group), beside.on(stage.group)
        said = f"stages {min(index, other)} and {max(index, other)} with their devices exchanged"
        yield said, put(put(plan, index, mine), other, theirs), (index, other)


def _given(instance: Instance, plan: Plan, giver: int, taker: int) -> Iterator[Candidate]:
    """Yield the plan with a device of one stage given to another, in all modes of both."""
    poor, rich = plan.stages[giver], plan.stages[taker]
    if poor.group.devices == 1:
        return
    for server, count in poor.group.counts:
        given = {**dict(poor.group.counts), server: count - 1}
        taken = dict(rich.group.counts)
        taken[server] = taken.get(server, 0) + 1
        said = f"a device of {instance.servers[server].name} from stage {giver} to stage {taker}"
        for what, one in regrouped(instance, rich, taken):
            for _, poorer in regrouped(instance, poor, given):
                yield said + what, put(put(plan, taker, one), giver, poorer), (taker, giver)


def _recounted(counts: Mapping[int, int], idle: Mapping[int, int]) -> Iterator[dict[int, int]]:
    """Yield other counts: of one server more or fewer, or a server's devices from another one."""
    for server in sorted({*counts, *idle}):
        own = counts.get(server, 0)
        for count in range(own + idle.get(server, 0) + 1):
            if count != own and (count or len(counts) > 1 or server not in counts):
                yield {**counts, server: count}
    for server, count in counts.items():
        for other, free in idle.items():
            for moved in range(1, min(count, free) + 1):
                if other != server:
                    yield {**counts, server: count - moved, other: counts.get(other, 0) + moved}


def _modes(instance: Instance, plan: Plan, index: int) -> Iterator[Candidate]:
    """Yield the plan with every other mode of a stage that the constraints allow."""
    stage = plan.stages[index]
    for mode in modes(instance, stage.group.devices):
        if mode != stage.group.mode:
            words = mode.in_words(stage.group.devices) or "one replica"
            there = stage.on(Group(stage.group.counts, mode))
            yield f"{words} for stage {index}", put(plan, index, there), (index,)
    if instance.constraints.recompute is Recompute.BLOCKS:
        blocks = single_blocks(instance, stage.span, stage.group.mode)
        for block in blocks:
            names = [instance.layers[layer].name for layer in (block.first, block.stop - 1)]
            again = tuple(one for one in blocks if (one in stage.again) != (one == block))
            done = "computed again" if block in again else "kept"
            yield f"{names[0]} to {names[1]} {done}", put(plan, index, replace(stage, again=again)), ()


def _forms(instance: Instance, plan: Plan, index: int) -> Iterator[Candidate]:
    """Yield the plan with every other form of every layer of a stage, all else as it is."""
    stage = plan.stages[index]
    degree = stage.group.tensor_parallel_degree
    if degree == 1:
        return
    for at, layer in enumerate(stage.span.layers):
        one = instance.layers[layer]
        if one.split is not Split.FOLLOW:
            for form in sorted(forms_on(one, stage.group)):
                if form != stage.forms[at]:
                    forms = (*stage.forms[:at], form, *stage.forms[at + 1 :])
                    words = f" ({stage.in_words(form)})" * (stage.group.mode.grid > 1)
                    yield f"form {form}{words} for {one.name}", put(plan, index, replace(stage, forms=forms)), ()


NAME = "more_devices"
QUESTIONS_IDLE = 2
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
            words = f"devices that stages take: {used}, expected at least {devices}"
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
