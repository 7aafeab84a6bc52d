"""How many bytes the fullest device of a stage holds.

``peak = state + in_flight * stash + working``: the weights (once for every version kept), gradients and
optimiser state of its share; the activations kept for each micro-batch in flight; and the largest input and
output of one layer with their gradients while it runs. A stage that recomputes keeps for each micro-batch in
flight only what it received, and the activations of the one that runs backward (GPipe, arXiv 1811.06965, §2.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from formulation.forms import MADE, TAKEN_BY_MATRIX, WHOLE
from formulation.groups import Group, group_kind
from formulation.instance import Instance
from formulation.options import Schedule
from formulation.plan import Plan, Stage
from formulation.shares import Shares
from formulation.times import cut_bytes, is_matrix, layout_form
from formulation.units import ceil_div, ceil_fraction


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
    """Return the weight copies kept at a stage: one; without a flush one per micro-batch in flight, or two.

    Two: PipeDream-2BW (arXiv 2006.09503, §3.1); a last stage alone would do with one and keeps two all the same.
    """
    if schedule is Schedule.DOUBLE_BUFFERED:
        return 2
    return stages - stage if schedule is Schedule.ASYNC_ONE_F_ONE_B else 1


def stage_memory_bytes(instance: Instance, plan: Plan, index: int) -> int:
    """Return the peak bytes on one device of stage ``index`` of a plan.

    ``(versions + 1) * weights + optimiser state + in_flight * stash + largest working set``; the ``+ 1`` is the
    gradient, and the stash includes what the stage received. Every part of every layer is divided among the
    devices and rounded up on its own. With recomputation: ``in_flight * received + stash of one micro-batch``.
    """
    stage, stages = plan.stages[index], len(plan)
    training = instance.training
    copies = weight_versions(training.schedule, index, stages) + 1
    kept = in_flight(training.schedule, index, stages, training.micro_batches)
    shares = group_kind(instance, stage.group).shares
    held = [layer_shares(instance, stage, layer, shares) for layer in stage.span.layers]
    state = sum(copies * one.weights + one.optimizer for one in held)
    stash = (1 if stage.group.recompute else kept) * sum(one.stash for one in held)
    received = kept * received_stash_bytes(instance, stage)
    return state + stash + received + max(one.working for one in held)


def received_stash_bytes(instance: Instance, stage: Stage) -> int:
    """Return what a device keeps of the tensors that its stage received: they are kept where they are used first.

    The stash of a layer graph counts a tensor at the first layer that keeps it, which may lie before the cut.
    """
    return ceil_fraction(cut_bytes(instance, stage.span.first) * group_kind(instance, stage.group).shares.device)


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Bytes of one layer on one device: weights, optimiser state, stash of a micro-batch, working set."""

    weights: int
    optimizer: int
    stash: int
    working: int


def layer_shares(instance: Instance, stage: Stage, layer: int, shares: Shares) -> LayerBytes:
    """Return what one device of a stage holds of a layer; ``shares`` are those of the stage's devices.

    Columns of a layer's output come with their own weights, and form 1 shards the rows of a weight matrix; all
    else is copied. Inputs and outputs are divided as they lie: by rows or columns among the devices, or whole on
    each device of a replica (``formulation.forms``); of unequal shares the largest counts. What a layer keeps for
    its backward pass is taken to be as its input lies. The working set is input and output with their gradients.
    """
    source = layout_form(instance, stage.span, layer)
    form = 0 if source is None else stage.form(source)
    matrix = is_matrix(instance, layer)
    copied = form == 0 or (form == 1 and not matrix)
    taken_whole = (TAKEN_BY_MATRIX if matrix else MADE)[form] == WHOLE
    made_whole = MADE[form] == WHOLE
    held = Fraction(1) if copied else shares.shard
    taken, made = 2 * instance.input_bytes[layer], 2 * instance.output_bytes[layer]
    return LayerBytes(
        weights=ceil_fraction(instance.parameter_bytes[layer] * held),
        optimizer=ceil_fraction(optimizer_bytes(instance, layer) * held),
        stash=ceil_fraction(instance.stash_bytes[layer] * (shares.replica if taken_whole else shares.device)),
        working=ceil_fraction(taken * (shares.replica if taken_whole else shares.device))
        + ceil_fraction(made * (shares.replica if made_whole else shares.device)),
    )


def optimizer_bytes(instance: Instance, layer: int) -> int:
    """Return the optimiser state of a layer's weights, undivided."""
    training = instance.training
    parameters = ceil_div(instance.parameter_bytes[layer], training.bytes_per_element)
    return parameters * training.optimizer_bytes_per_parameter


def capacity_bytes(instance: Instance, group: Group) -> int:
    """Return the memory of the smallest device of a group."""
    return min(instance.servers[server].device_class.memory_bytes for server, _ in group.counts)
