"""How one plan becomes another, step by step: every step is a plan with its price, and the effects add up.

The order of the steps: stages that the second plan does not have are joined to the one before them; stages that
the first does not have are split off, on the devices that the second gives them; cuts are moved; then stages
change their devices, their mode and their forms, one after another; last all of them warm up as in the second
plan. What a step costs depends on the steps before it: the sum does not. Plans between the two may break rules,
which is said of each; a layer has form 0 while its stage is not split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pipecut.formulation.constraints.constraint import Violation, devices_of
from pipecut.formulation.constraints.rules import structure_violations
from pipecut.formulation.costs.goals import goal_value
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.modes import ONE_COPY
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.reasons.cuts import matched, merged, moved_cut
from pipecut.solvers.reasons.priced_plans import put

ChangeOf = str
"""``stages``, ``cut``, ``devices``, ``mode``, ``forms`` or ``warm_up``."""


@dataclass(frozen=True, slots=True)
class PlanChange:
    """A step: what changes at which stage of the plan after it, that plan, and what it does to every measure."""

    of: ChangeOf
    stage: int
    what: str
    plan: Plan
    values: tuple[int, ...]
    effects: tuple[int, ...]
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """Two plans, measured, and the steps from the one to the other; effects add up to ``after - before``.

    ``measures`` are the goals of the instance and, where they are none of them, the bottleneck and the memory.
    """

    instance: Instance
    measures: tuple[Goal, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    changes: tuple[PlanChange, ...]


def differences(instance: Instance, one: Plan, other: Plan) -> PlanDifference:
    """Return the steps from one plan to another. Cost: a price for each step.

    Raises ValueError for a plan that has no price.
    """
    for name, plan in (("first", one), ("second", other)):
        broken = [violation.message for violation in structure_violations(instance, plan)]
        if broken:
            raise ValueError(f"the {name} plan has no price: {'; '.join(broken)}")
    measures = tuple(dict.fromkeys((*instance.goals, Goal.BOTTLENECK, Goal.MEMORY)))
    before = latest = _measured(instance, one, measures)[0]
    changes: list[PlanChange] = []
    for of, stage, what, plan in _steps(instance, one, other):
        values, violations = _measured(instance, plan, measures)
        effects = tuple(now - then for now, then in zip(values, latest, strict=True))
        changes.append(PlanChange(of, stage, what, plan, values, effects, violations))
        latest = values
    return PlanDifference(instance, measures, before, latest, tuple(changes))


Change = tuple[ChangeOf, int, str, Plan]


def _measured(
    instance: Instance, plan: Plan, measures: tuple[Goal, ...]
) -> tuple[tuple[int, ...], tuple[Violation, ...]]:
    found = evaluate(instance, plan)
    return tuple(goal_value(goal, instance, plan, found.stages) for goal in measures), found.violations


def _steps(instance: Instance, one: Plan, other: Plan) -> Iterator[Change]:
    """Yield every step with the plan after it; the last one is the other plan."""
    plan = one
    for change in _stages(instance, one, other):
        plan = change[3]
        yield change
    for change in _cuts(instance, plan, other):
        plan = change[3]
        yield change
    for index, stage in enumerate(other.stages):
        for change in _inside(instance, plan, index, stage):
            plan = change[3]
            yield change
    before, after = (at.warm_ups(instance.training) for at in (plan, other))
    if before != after:
        words = f"{' '.join(map(str, before))} forward passes before the first backward pass, now"
        first = next(at for at, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1])
        yield "warm_up", first, f"{words} {' '.join(map(str, after))}", other


def _stages(instance: Instance, plan: Plan, other: Plan) -> Iterator[Change]:
    """Yield stages joined and split off, until there are as many as in the other plan."""
    cuts, wanted = (tuple(stage.span.first for stage in one.stages[1:]) for one in (plan, other))
    pairs = matched(cuts, wanted)
    for at in sorted({*range(len(cuts))} - {one for one, _ in pairs}, reverse=True):
        stage = at + 1
        plan = merged(plan, stage, plan.stages[stage - 1])
        yield "stages", stage - 1, f"stage {stage} joined to stage {stage - 1}, its devices left", plan
    for at in sorted({*range(len(wanted))} - {two for _, two in pairs}):
        place, new = wanted[at], other.stages[at + 1]
        index = next(at for at, stage in enumerate(plan.stages) if place in stage.span)
        plan = _split_off(plan, index, place, new.group)
        held = devices_of(instance, new.group.counts)
        words = f"stage {index + 1} split off before {instance.layers[place].name}, on {held}"
        yield "stages", index + 1, words, plan


def _split_off(plan: Plan, index: int, place: int, group: Group) -> Plan:
    """Return the plan with a stage cut in two, the second half on a group."""
    stage = plan.stages[index]
    halves = (Span(stage.span.first, place), Span(place, stage.span.stop))
    forms = stage.forms[: len(halves[0])], stage.forms[len(halves[0]) :]
    behind = stage.over(halves[1], forms[1]).on(group)
    rows = (stage.over(halves[0], forms[0]), behind)
    return Plan((*plan.stages[:index], *rows, *plan.stages[index + 1 :]))


def _cuts(instance: Instance, plan: Plan, other: Plan) -> Iterator[Change]:
    """Yield cut after cut moved to its place, whichever has the room first."""
    places = [stage.span.first for stage in other.stages]
    waiting = [at for at in range(1, len(other)) if plan.stages[at].span.first != places[at]]
    while waiting:
        # The last of neighbours that move right has room, and so has the first of those that move left.
        at = next(at for at in waiting if plan.stages[at - 1].span.first < places[at] < plan.stages[at].span.stop)
        place, before = places[at], plan.stages[at].span.first
        plan = moved_cut(plan, at, place)
        waiting.remove(at)
        layers, ways = abs(place - before), (at - 1, at) if place < before else (at, at - 1)
        words = f"{layers} layer{'s' * (layers > 1)} from stage {ways[0]} to stage {ways[1]}"
        yield "cut", at, f"{words}, cut before {instance.layers[place].name}", plan


def _inside(instance: Instance, plan: Plan, index: int, wanted: Stage) -> Iterator[Change]:
    """Yield the devices, the mode and the forms of a stage changed."""
    stage = plan.stages[index]
    counts, mode = wanted.group.counts, wanted.group.mode
    if stage.group.counts != counts:
        devices = sum(count for _, count in counts)
        kept = stage.group.mode if devices == stage.group.devices else replace(stage.group.mode, grid=1)
        kept = kept if devices % kept.replicas == 0 else ONE_COPY
        held = devices_of(instance, stage.group.counts), devices_of(instance, counts)
        stage = stage.on(Group(counts, kept))
        plan = put(plan, index, stage)
        yield "devices", index, f"stage {index} from {held[0]} to {held[1]}", plan
    if stage.group.mode != mode:
        stage = stage.on(wanted.group)
        plan = put(plan, index, stage)
        words = mode.in_words(stage.group.devices) or "one replica"
        yield "mode", index, f"stage {index} as {words}", plan
    if stage.again != wanted.again:
        stage = replace(stage, again=wanted.again)
        plan = put(plan, index, stage)
        yield "recompute", index, f"stage {index}: {stage.shared_in_words or 'computes nothing again'}", plan
    if stage.forms != wanted.forms:
        changed = sum(one != two for one, two in zip(stage.forms, wanted.forms, strict=True))
        words = f"stage {index}: another form for {changed} layer{'s' * (changed > 1)}"
        yield "forms", index, words, put(plan, index, replace(stage, forms=wanted.forms))
