"""What plans of an instance may differ in, and what they may not differ in though it might pay: in a few words.

Derived from what the instance asks, whoever wrote it, and from what it has a use for (``formulation.uses``).
``formulation.scope`` says the same in full, and where a claim holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipecut.formulation.problem.constraints import OnHost, Placement, Recompute, Sharded
from pipecut.formulation.problem.cuts import AtomGraph, CutSpace
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Axis
from pipecut.formulation.problem.options import StageTime
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.uses import axes_of_use, divided_for_use, memory_binds

AXES = {
    Axis.SEQUENCE: "sequence",
    Axis.EXPERTS: "experts",
    Axis.VOCABULARY: "vocabulary",
    Axis.CONTEXT: "context parallelism",
}
GRIDS_FROM = 4
"""Devices of a replica from which they may lie in a grid."""
TWO_EACH = 4
"""Places where stages start, with the first layer, from which two groups can hold two stages each."""


def searched(instance: Instance) -> list[str]:
    """Return what plans may differ in beside cuts and devices."""
    asked, training, several = instance.constraints, instance.training, instance.devices > 1
    widest, axes = _widest(instance), axes_of_use(instance) & {*asked.splits}
    rows = {
        f"tp 1-{widest}": widest > 1,
        "replicas": several and widest == 1 and asked.tensor_parallel_degrees != (),
        _zero(asked.sharded): several and len(asked.sharded) > 1,
        **{AXES[axis]: several for axis in AXES if axis in axes},
        "two splits at once": widest >= GRIDS_FROM and Axis.PAIRS in asked.splits,
        "recompute": asked.recompute is Recompute.ALLOWED,
        "recompute by blocks": asked.recompute is Recompute.BLOCKS,
        "optimiser on the host": asked.optimizer_on_host is OnHost.ALLOWED,
        f"{len(training.micro_batch_choices)} numbers of micro-batches": len(training.micro_batch_choices) > 1,
        f"{len(training.schedule_choices)} schedules": len(training.schedule_choices) > 1,
        f"{len(training.chunk_choices)} numbers of stages a group": len(training.chunk_choices) > 1,
        "interleaved grids": bool(training.dealt),
        "warm-ups": training.chooses_warm_ups,
        "free placement": several and asked.placement is Placement.FREE,
    }
    return [words for words, open_ in rows.items() if open_] or ["cuts and devices of stages"]


def not_searched(instance: Instance) -> list[str]:
    """Return what plans may not differ in, though it might make them better: what mostly pays most comes first."""
    asked, training = instance.constraints, instance.training
    binds, several, widest = memory_binds(instance), instance.devices > 1, _widest(instance)
    atoms, schedules = CutSpace.of(instance).stops, {one.schedule for one in training.choices}
    stages = several and atoms > 1 and training.schedule.flushes
    one_a_group = all(one.chunks == 1 for one in training.choices)
    closed = tuple(one for one in divided_for_use(instance) if one not in asked.sharded)
    whole_passes = not any(one.in_halves for one in schedules)
    blocks = whole_passes and instance.model.cuts is not None and instance.cost.stage_time is StageTime.ADD
    hosts = all(one.host_link is not None for one in instance.device_classes)
    left = {AXES[axis]: several for axis in AXES if axis in axes_of_use(instance) - {*asked.splits}}
    rows = {
        "free placement": keeps_order(instance),
        "replicas": several and not asked.tensor_parallel_degrees,
        _zero(closed): bool(closed),
        "recompute": binds and asked.recompute is Recompute.NEVER,
        "recompute by blocks": binds and blocks and asked.recompute is Recompute.ALLOWED,
        f"{'uneven ' * bool(training.dealt)}interleaved stages": stages and one_a_group and atoms >= TWO_EACH,
        **left,
        "other micro-batches": training.global_batch > 1 and not training.micro_batch_choices,
        "zero bubble": stages and whole_passes,
        "longer warm-ups": stages and training.warm_up == "classic" and Schedule.ONE_F_ONE_B in schedules,
        "other orders": not (instance.model.free_order or AtomGraph.of(instance).in_one_order_only),
        "other sizes of stages": bool(instance.demands.devices_per_stage),
        "two splits at once": widest >= GRIDS_FROM and Axis.PAIRS not in asked.splits,
        "optimiser on the host": binds and hosts and asked.optimizer_on_host is OnHost.NEVER,
    }
    return [words for words, open_ in rows.items() if open_]


def keeps_order(instance: Instance) -> bool:
    """Tell whether plans have to take servers that are not alike in the order in which they are written.

    Where a card of a kind stands on the line says little of what it is good for.
    """
    unlike = len({(one.device_class, one.devices) for one in instance.servers}) > 1
    return unlike and instance.constraints.placement is Placement.LINE


def _widest(instance: Instance) -> int:
    """Return the most devices of a replica over which some layer may be divided."""
    if all(set(layer.allowed_forms) <= {0} for layer in instance.layers):
        return 1
    sizes = instance.demands.devices_per_stage or (instance.devices,)
    return min(instance.devices, max(instance.constraints.tensor_parallel_degrees or sizes))


def _zero(kinds: Sequence[Sharded]) -> str:
    """Return kinds of what is divided as stages of ZeRO, none as 0."""
    places = [at for at, one in enumerate(Sharded) if one in kinds]
    run = len(places) > 1 and places == [*range(places[0], places[-1] + 1)]
    return f"ZeRO {places[0]}-{places[-1]}" if run else f"ZeRO {', '.join(map(str, places))}"
