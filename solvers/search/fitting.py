"""Simple plans that fit into memory, if luck has it: a quick "yes" to the question whether there is a plan.

The line of devices, or a part of it that ends with a server, is cut into 1, 2, 3, ... groups of nearly equal size,
all of which hold their stages in the same mode; every layer takes the same form where it can. First stages get
nearly equal work, as far as memory lets them (``solvers.search.balanced``); then each takes as many layers as fit,
from the front, where single blocks may be computed again also with all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from formulation.costs.memory import capacity_bytes, stage_parts
from formulation.limits.deadline import NEVER, Deadline
from formulation.problem.constraints import Recompute
from formulation.problem.cuts import CutSpace
from formulation.problem.groups import Group, forms_on
from formulation.problem.instance import Instance
from formulation.problem.layers import FORMS, Split
from formulation.problem.plan import Plan, Span, Stage
from formulation.schedules.keeps import Keeps
from solvers.search.balanced import Forms, Known, balanced_plans, divided, stage_of


def fitting_plans(instance: Instance, *, thorough: bool = False, deadline: Deadline = NEVER) -> Iterator[Plan]:
    """Yield plans that keep the memory limit; other rules are not looked at. All devices, or thorough: parts too.

    Raises StoppedError after the deadline, also between plans that take long to find.
    Cost: O(devices * layers * log(layers)) for each of at most ``3 * devices`` tries in each mode, thorough: times
    the servers.
    """
    ends = list(itertools.accumulate(server.devices for server in instance.servers))
    known = Known(instance, deadline)
    yield from balanced_plans(instance, deadline)
    for used in (1, *ends) if thorough else ends[-1:]:
        for stages in range(1, min(used, len(instance.layers)) + 1):
            for groups, form in itertools.product(divided(instance, used, stages), FORMS):
                blocks = instance.constraints.recompute is Recompute.BLOCKS and not groups[0].mode.recompute
                for again in (False, True)[: 1 + blocks]:
                    plan = _filled(known, groups, form, again=again)
                    if plan is not None:
                        yield plan


def _filled(known: Known, groups: Sequence[Group], form: int, *, again: bool) -> Plan | None:
    """Fill group after group; None if layers are left over, or too few to go round.

    ``again``: every block is computed again by itself.
    """
    instance, space = known.instance, CutSpace.of(known.instance)

    def made(span: Span, group: Group, forms: Forms) -> Stage:
        stage = stage_of(span, group, forms)
        return replace(stage, again=space.blocks(span)) if again else stage

    places, at = space.places, 0
    stages: list[Stage] = []
    by_size = {group.devices: _in_form(instance, group, form) for group in groups}
    for index, group in enumerate(groups):
        forms = by_size[group.devices]
        low, high = at, len(places) - 1 - (len(groups) - index - 1)
        while low < high:
            middle = (low + high + 1) // 2
            span = Span(places[at], places[middle])
            if _fits(known, made(span, group, forms), index, len(groups)):
                low = middle
            else:
                high = middle - 1
        if low == at:
            return None
        stages.append(made(Span(places[at], places[low]), group, forms))
        at = low
    return Plan(tuple(stages)) if at == len(places) - 1 else None


def _fits(known: Known, stage: Stage, index: int, stages: int) -> bool:
    """Tell whether a stage fits; its memory depends on the others only by their number."""
    instance = known.instance
    known.deadline.check()
    if not instance.constraints.memory:
        return True
    parts = stage_parts(instance, stage) if stage.again else known.stage(stage)
    held = parts.times(Keeps.of(instance.training, index, stages), stage.group.mode)
    return held.total <= capacity_bytes(instance, stage.group)


def _in_form(instance: Instance, group: Group, form: int) -> Forms:
    """Return the forms of all layers: this one where a layer may have it, else its first one."""
    choices = (
        FORMS[:1] if row.split is Split.FOLLOW else forms_on(row, group) or row.allowed_forms
        for row in instance.layers
    )
    return tuple(form if form in row else row[0] for row in choices)
