"""Every plan there is, one after another, as the rules define them (formulation.constraints.rules).

Stages cover the layers in order; on the line each takes the next devices and idle ones come last, under free
placement it takes any that are left; every layer takes one of its forms; where warm-ups are to be chosen and
matter, each stage one of those that it may have. Rules on what a plan needs, such as memory, are left to the
evaluator.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from pipecut.formulation.constraints.rules import check_mode
from pipecut.formulation.problem.constraints import Goal, Placement, Recompute
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, forms_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FORMS, Split
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.plan import Plan, Span, Stage

Used = tuple[int, ...]
"""Devices used of each server."""


def _freely() -> None:
    """Let any number be looked at."""


def plans(instance: Instance) -> Iterator[Plan]:
    """Yield every plan that keeps the rules on layers, devices and forms, in a fixed order."""
    if instance.training.chunks > 1:
        for spans, groups, choices in dealt(instance):
            held = [groups[instance.training.rank_of(at, len(spans))] for at in range(len(spans))]
            runs = [runs_of(instance, span, group) for span, group in zip(spans, held, strict=True)]
            for forms, again in itertools.product(itertools.product(*choices), itertools.product(*runs)):
                rows = zip(spans, held, again, strict=True)
                yield Plan(tuple(Stage(at, own, forms[at.first : at.stop], again=one) for at, own, one in rows))
        return
    for stages in _stages(instance, 0, (0,) * len(instance.servers)):
        for warm_ups in warm_ups_of(instance, len(stages)):
            yield Plan(tuple(replace(one, warm_up=own) for one, own in zip(stages, warm_ups, strict=True)))


def warm_ups_of(instance: Instance, stages: int) -> Iterator[tuple[int | None, ...]]:
    """Yield the forward passes before the first backward pass that stages may choose, if that matters.

    Each at least as many as there are stages from it on, none more than the stage before it. Fewer matter to no
    goal but the executed step, as each holds a micro-batch.
    """
    most = instance.training.micro_batches
    if not instance.training.chooses_warm_ups or Goal.STEP_TIME not in instance.goals:
        yield (None,) * stages
        return
    yield from _falling([min(stages - stage, most) for stage in range(stages)], most)


def _falling(least: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """Yield numbers of at least these, none more than the one before it, the first at most ``most``."""
    if not least:
        yield ()
        return
    for first in range(least[0], most + 1):
        for rest in _falling(least[1:], first):
            yield (first, *rest)


Dealt = tuple[tuple[Span, ...], tuple[Group, ...], list[tuple[int, ...]]]
"""Spans of stages, groups that they are dealt out to, and the forms that each layer may take."""


def numbers_of_groups(instance: Instance) -> Iterator[int]:
    """Yield on how many groups a plan may run, if there are enough layers."""
    chunks = instance.training.chunks
    for groups in range(1, min(instance.devices, len(instance.layers) // chunks) + 1):
        if chunks == 1 or (groups > 1 and instance.training.dealt_to(groups)):
            yield groups


def dealt(instance: Instance, look: Callable[[], None] = _freely) -> Iterator[Dealt]:
    """Yield every way to deal stages out to groups of one size and mode, round and round or as a V."""
    total, chunks = len(instance.layers), instance.training.chunks
    for number in numbers_of_groups(instance):
        for groups in _alike(instance, number, (0,) * len(instance.servers), look):
            choices = choices_of(instance, 0, total, groups[0])
            for inner in itertools.combinations(range(1, total), number * chunks - 1):
                spans = tuple(Span(*ends) for ends in itertools.pairwise((0, *inner, total)))
                yield spans, groups, choices


def _alike(instance: Instance, number: int, used: Used, look: Callable[[], None]) -> Iterator[tuple[Group, ...]]:
    """Yield so many groups, one after another, that have as many devices and the same mode."""
    for group in groups_left(instance, used, look):
        if number == 1:
            yield (group,)
            continue
        for rest in _alike(instance, number - 1, used_with(used, group), look):
            if (rest[0].devices, rest[0].mode) == (group.devices, group.mode):
                yield (group, *rest)


def _stages(instance: Instance, first: int, used: Used) -> Iterator[tuple[Stage, ...]]:
    """Yield every way to put the layers from ``first`` on the devices that are left."""
    total = len(instance.layers)
    if first == total:
        yield ()
        return
    groups = [*groups_left(instance, used)]
    for stop in range(first + 1, total + 1) if groups else ():
        for group in groups:
            for rest in _stages(instance, stop, used_with(used, group)):
                span = Span(first, stop)
                for forms in itertools.product(*choices_of(instance, first, stop, group)):
                    yield from (
                        (Stage(span, group, forms, again=again), *rest) for again in runs_of(instance, span, group)
                    )


def groups_left(instance: Instance, used: Used, look: Callable[[], None] = _freely) -> Iterator[Group]:
    """Yield the groups that the next stage may have; ``look`` is called before each one that may be none."""
    if instance.constraints.placement is Placement.LINE:
        place = sum(used)
        groups = (Group.on_line(instance, place, count) for count in range(1, instance.devices - place + 1))
    else:
        left = [range(server.devices - taken + 1) for server, taken in zip(instance.servers, used, strict=True)]
        counts = (tuple((at, count) for at, count in enumerate(row) if count) for row in itertools.product(*left))
        groups = (Group(row) for row in counts if row)
    most = instance.constraints.max_servers
    for group in groups:
        look()
        if most is not None and len(group.counts) > most:
            continue
        for mode in Mode.every(group.devices):
            look()
            one = replace(group, mode=mode)
            if not any(check_mode(instance, 0, one)):
                yield one


def used_with(used: Used, group: Group) -> Used:
    """Return the devices used of each server, those of a group included."""
    taken = dict(group.counts)
    return tuple(count + taken.get(server, 0) for server, count in enumerate(used))


def choices_of(instance: Instance, first: int, stop: int, group: Group) -> list[tuple[int, ...]]:
    """Return the forms that each layer of a stage may take."""
    return [
        FORMS[:1] if layer.split is Split.FOLLOW else forms_on(layer, group)
        for layer in instance.layers[first:stop]
    ]


def runs_of(instance: Instance, span: Span, group: Group) -> list[tuple[Span, ...]]:
    """Return every set of blocks that a stage may compute again, each by itself; the empty one first."""
    if instance.constraints.recompute is not Recompute.BLOCKS or group.mode.recompute:
        return [()]
    inside = CutSpace.of(instance).blocks(span)
    return [some for count in range(len(inside) + 1) for some in itertools.combinations(inside, count)]
