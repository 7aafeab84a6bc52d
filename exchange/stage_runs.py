"""What foreign plans have in common: a stage for every layer and a number of devices for every stage."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from formulation.problem.groups import Group
from formulation.problem.instance import Instance
from formulation.problem.modes import Mode
from formulation.problem.plan import Span

__all__: list[str] = []


def runs(instance: Instance, stages: Sequence[int]) -> tuple[list[Span], list[str]]:
    """Return the span of every stage, given the stage of each layer in execution order, and what is wrong.

    Stages must be 0, 1, ... without a gap, and each a run of layers, because a stage is cut out of the execution
    order here. There are no spans where anything is wrong.
    """
    problems: list[str] = []
    names = [layer.name for layer in instance.layers]
    for place, (one, other) in enumerate(itertools.pairwise(stages), 1):
        if other < one:
            problems.append(
                f": layer '{names[place]}' of stage {other} comes after layer '{names[place - 1]}' of stage {one};"
                " expected stages that follow one another in execution order"
            )
    known = set(stages)
    problems += [f": no layer is in stage {stage}" for stage in range(max(known)) if stage not in known]
    if problems:
        return [], problems
    starts = [stages.index(stage) for stage in range(max(known) + 1)]
    return [Span(*ends) for ends in itertools.pairwise((*starts, len(stages)))], []


def groups(
    instance: Instance, devices: Sequence[int], replicas: Sequence[int]
) -> tuple[tuple[Group, ...], list[str]]:
    """Return a group of the next devices of the line for every stage, or what is wrong: too few devices.

    ``replicas`` are the copies that the devices of a stage hold.
    """
    total = sum(devices)
    if total > instance.devices:
        listed = " + ".join(map(str, devices)) if len(devices) > 1 else ""
        counted = f" ({listed})" if 0 < len(listed) <= 60 else ""
        return (), [
            f": found stages on {total} devices{counted}, expected at most {instance.devices}, the cluster's"
        ]
    starts = itertools.accumulate(devices, initial=0)
    rows = zip(starts, devices, replicas, strict=False)
    return tuple(Group.on_line(instance, first, count, Mode(copies)) for first, count, copies in rows), []
