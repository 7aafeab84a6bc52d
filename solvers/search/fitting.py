"""Simple plans that fit into memory, if luck has it: a quick "yes" to the question whether there is a plan.

The line of devices, or a part of it that ends with a server, is cut into 1, 2, 3, ... groups of nearly equal size;
every layer takes the same form where it can, and each stage takes as many layers as fit, from the front on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from formulation.costs.forms import forms_on
from formulation.costs.memory import capacity_bytes, keeps, stage_parts
from formulation.problem.groups import Group, line_group
from formulation.problem.instance import Instance
from formulation.problem.layers import FORMS, Split
from formulation.problem.plan import Plan, Span, Stage


def fitting_plans(instance: Instance, *, thorough: bool = False) -> Iterator[Plan]:
    """Yield plans that keep the memory limit; other rules are not looked at. All devices, or thorough: parts too.

    Cost: O(devices * layers * log(layers)) for each of at most ``3 * devices`` tries, thorough: times the servers.
    """
    ends = list(itertools.accumulate(server.devices for server in instance.servers))
    for used in (1, *ends) if thorough else ends[-1:]:
        for stages in range(1, min(used, len(instance.layers)) + 1):
            cuts = [index * used // stages for index in range(stages + 1)]
            groups = [line_group(instance, first, stop - first) for first, stop in itertools.pairwise(cuts)]
            for form in FORMS:
                plan = _filled(instance, groups, form)
                if plan is not None:
                    yield plan


def _filled(instance: Instance, groups: list[Group], form: int) -> Plan | None:
    """Fill group after group; None if layers are left over, or too few to go round."""
    total, first = len(instance.layers), 0
    stages: list[Stage] = []
    for index, group in enumerate(groups):
        most = total - (len(groups) - index - 1)
        low, high = first, most
        while low < high:
            middle = (low + high + 1) // 2
            if _fits(instance, _stage(instance, Span(first, middle), group, form), index, len(groups)):
                low = middle
            else:
                high = middle - 1
        if low == first:
            return None
        stages.append(_stage(instance, Span(first, low), group, form))
        first = low
    return Plan(tuple(stages)) if first == total else None


def _fits(instance: Instance, stage: Stage, index: int, stages: int) -> bool:
    """Tell whether a stage fits; its memory depends on the others only by their number."""
    if not instance.constraints.memory:
        return True
    held = stage_parts(instance, stage).times(keeps(instance.training, index, stages), stage.group.mode)
    return held.total <= capacity_bytes(instance, stage.group)


def _stage(instance: Instance, span: Span, group: Group, form: int) -> Stage:
    choices = [
        FORMS[:1] if row.split is Split.FOLLOW else forms_on(row.allowed_forms, group.tensor_parallel_degree)
        for row in instance.layers[span.first : span.stop]
    ]
    return Stage(span, group, tuple(form if form in row else row[0] for row in choices))
