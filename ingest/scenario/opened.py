"""What ``search: standard`` opens of the constraints that a scenario does not write, and has a use for.

Sizes of stages follow from the machines (:func:`opened_on`). Of the rest what a model does not have, what an order
of passes does not go with, and what cannot make a plan better stays closed (:func:`with_uses`), so that methods
which do not know of it are asked all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pipecut.formulation.problem.constraints import Recompute, Sharded
from pipecut.formulation.problem.layers import Axis
from pipecut.formulation.problem.options import StageTime
from pipecut.formulation.problem.training import Schedule

if TYPE_CHECKING:
    from pipecut.formulation.problem.instance import Instance

MANY_SERVERS = 16
"""On more servers than this a stage has a number of them that leaves none over, so that sizes stay few."""
MANY_LAYERS = 2_000
"""Layers times devices from which executed steps are searched in reduced form (``solvers.catalogue``)."""


def opened_on(servers: Sequence[int], written: Collection[str]) -> Mapping[str, object]:
    """Return what is opened on servers of so many devices each, without the keys that are written.

    Stages have parts of a server that divide every server, or whole servers that follow one another; replicas have
    parts of some server.
    """
    degrees = [size for size in range(1, max(servers) + 1) if any(one % size == 0 for one in servers)]
    parts = [size for size in degrees if all(one % size == 0 for one in servers)]
    total = len(servers)
    runs = [many for many in range(1, total + 1) if total <= MANY_SERVERS or total % many == 0]
    whole = {sum(servers[at : at + many]) for many in runs for at in range(total - many + 1)}
    opened: dict[str, object] = {
        "tensor_parallel_degrees": degrees,
        "devices_per_stage": sorted({*parts, *whole}),
        "sharded": list(Sharded),
        "splits": [Axis.SEQUENCE, Axis.EXPERTS, Axis.VOCABULARY],
        "recompute": Recompute.BLOCKS,
    }
    return {key: value for key, value in opened.items() if key not in written}


def with_uses(instance: Instance, opened: Collection[str]) -> Instance:
    """Return an instance in which of what was opened only that is open which it has a use for.

    Groups that hold several stages have one device a replica: the search for them takes one form a layer.
    """
    from pipecut.formulation.uses import axes_of_use, divided_for_use

    asked, axes = instance.constraints, axes_of_use(instance)
    alone = all(one.chunks > 1 for one in instance.training.choices)
    useful = {
        "tensor_parallel_degrees": (1,) if alone else asked.tensor_parallel_degrees,
        "splits": tuple(axis for axis in asked.splits if axis in axes),
        "recompute": _recompute(instance),
        "sharded": divided_for_use(instance),
    }
    closed = {key: value for key, value in useful.items() if key in opened}
    return replace(instance, constraints=replace(asked, **closed))


def _recompute(instance: Instance) -> Recompute:
    """Return what stages may compute again: blocks alone too where there are some, if they are searched or needed.

    The exact searches for executed times know whole stages alone, as do all for other orders of passes. Where the
    reduction, which knows blocks, plans for some of the choices, none of the others is to make its plan worse.
    """
    from pipecut.formulation.uses import memory_binds, memory_is_tight

    orders, cost = instance.training.choices, instance.cost
    if not memory_binds(instance):
        return Recompute.NEVER
    plain = [one for one in orders if one.schedule.flushes and not one.schedule.in_halves and one.chunks == 1]
    if instance.model.cuts is None or cost.stage_time is not StageTime.ADD:
        return Recompute.ALLOWED
    reduced = len(instance.layers) * instance.devices >= MANY_LAYERS
    if reduced and any(one.schedule is Schedule.ONE_F_ONE_B for one in plain):
        return Recompute.BLOCKS
    needed = not instance.goals[0].executed or memory_is_tight(instance)
    return Recompute.BLOCKS if needed and len(plain) == len(orders) else Recompute.ALLOWED
