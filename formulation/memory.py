"""How many bytes the fullest device of a stage holds.

``peak = state + in_flight * stash + working``: the weights (once for every version kept), gradients and
optimiser state of its share; the activations kept for each micro-batch in flight; and the largest input and
output of one layer with their gradients while it runs.
"""

from __future__ import annotations

from formulation.groups import Group
from formulation.instance import Instance
from formulation.options import Schedule
from formulation.plan import Plan, Stage
from formulation.times import is_matrix, layout_form
from formulation.units import ceil_div


def in_flight(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> int:
    """Micro-batches forwarded but not yet backwarded at a stage, at worst (stage counted from 0).

    GPipe: all of a step. 1F1B with a flush: min(S - s, M). Without a flush there is no M to bound it: S - s
    (PipeDream, weight stashing; one replica per stage).
    """
    if schedule is Schedule.NAIVE:
        return 1
    if schedule is Schedule.GPIPE:
        return micro_batches
    if schedule is Schedule.ONE_F_ONE_B:
        return min(stages - stage, micro_batches)
    return stages - stage


def weight_versions(schedule: Schedule, stage: int, stages: int) -> int:
    """Return the weight copies kept at a stage: one, or without a flush one per micro-batch in flight."""
    return stages - stage if schedule is Schedule.ASYNC_ONE_F_ONE_B else 1


def stage_memory_bytes(instance: Instance, plan: Plan, index: int) -> int:
    """Peak bytes on one device of stage ``index`` of a plan."""
    stage, stages = plan.stages[index], len(plan)
    training = instance.training
    versions = weight_versions(training.schedule, index, stages)
    kept = in_flight(training.schedule, index, stages, training.micro_batches)
    state = sum(_state_bytes(instance, stage, layer, versions) for layer in stage.span.layers)
    stash = sum(_share(instance, stage, layer, instance.stash_bytes[layer]) for layer in stage.span.layers)
    working = max(
        2 * _share(instance, stage, layer, instance.input_bytes[layer] + instance.output_bytes[layer])
        for layer in stage.span.layers
    )
    return state + kept * stash + working


def _state_bytes(instance: Instance, stage: Stage, layer: int, versions: int) -> int:
    """Weights, gradient and optimiser state. Forms 1 and 2 shard a weight matrix; form 0 copies it."""
    size = instance.parameter_bytes[layer]
    per_element = instance.training.bytes_per_element
    optimizer = ceil_div(size, per_element) * instance.training.optimizer_bytes_per_parameter
    whole = size * (versions + 1) + optimizer
    sharded = is_matrix(instance, layer) and stage.form(layer) != 0
    return ceil_div(whole, stage.group.devices) if sharded else whole


def _share(instance: Instance, stage: Stage, layer: int, size_bytes: int) -> int:
    """Part of an activation that one device holds: 1/n, or all of it where the layer works on whole tensors.

    A matrix product of form 2 keeps its whole input; a layer without a matrix holds whole tensors when it
    follows, or chooses, the layout of form 1.
    """
    source = layout_form(instance, stage.span, layer)
    form = 0 if source is None else stage.form(source)
    whole = form == (2 if is_matrix(instance, layer) else 1)
    return size_bytes if whole else ceil_div(size_bytes, stage.group.devices)


def capacity_bytes(instance: Instance, group: Group) -> int:
    """Memory of the smallest device of a group."""
    return min(instance.servers[server].device_class.memory_bytes for server, _ in group.counts)
