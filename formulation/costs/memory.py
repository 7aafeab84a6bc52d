"""How many bytes the fullest device of a stage holds, by kind (:class:`MemoryParts`).

A stage holds the weights (once for every version kept), gradients and optimiser state of its share; the
activations kept for each micro-batch in flight, and what it received of each; and the largest input and output
of one layer with their gradients while it runs. A stage that recomputes keeps for each micro-batch in flight only
what it received, and the activations of the one that runs backward (GPipe, arXiv 1811.06965, §2.3).

Parts are first those of one version and one micro-batch, and then multiplied (:meth:`MemoryParts.times`) by how
often the stage keeps them (:class:`Keeps`). Nobody needs to take one part away from a sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from formulation.costs.forms import MADE, TAKEN_BY_MATRIX, WHOLE
from formulation.costs.times import cut_bytes, is_matrix, layout_form
from formulation.problem.groups import Group, GroupKind, group_kind
from formulation.problem.instance import Instance
from formulation.problem.modes import Mode
from formulation.problem.options import Schedule, Training
from formulation.problem.plan import Plan, Stage
from formulation.problem.shares import Shares
from formulation.problem.units import ceil_fraction

__all__ = [
    "Keeps",
    "MemoryParts",
    "capacity_bytes",
    "keeps",
    "keeps_in_slot",
    "layer_parts",
    "received_bytes",
    "stage_memory",
    "stage_parts",
    "undivided",
]


@dataclass(frozen=True, slots=True)
class Keeps:
    """How often a stage keeps a part: the versions of its weights, and its micro-batches in flight."""

    versions: int
    in_flight: int

    def stashes(self, mode: Mode) -> int:
        """Return of how many micro-batches a stage in this mode has the activations: of one if it recomputes."""
        return 1 if mode.recompute else self.in_flight


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Bytes on one device, by kind. All but the working set add up over layers; of that the largest counts.

    ``stash`` are activations of the stage's own layers that wait for their backward pass, ``received`` those that
    came from another stage; ``working_set`` is what one layer needs while it runs.
    """

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    stash: int = 0
    received: int = 0
    working_set: int = 0

    @property
    def lasting(self) -> int:
        """All that is held from pass to pass: everything but the working set."""
        return self.weights + self.gradients + self.optimizer + self.stash + self.received

    @property
    def total(self) -> int:
        """All parts together."""
        return self.lasting + self.working_set

    def times(self, keeps: Keeps, mode: Mode) -> MemoryParts:
        """Return what a stage in this mode holds, if these are the parts of one version and one micro-batch."""
        return MemoryParts(
            weights=keeps.versions * self.weights,
            gradients=self.gradients,
            optimizer=self.optimizer,
            stash=keeps.stashes(mode) * self.stash,
            received=keeps.in_flight * self.received,
            working_set=self.working_set,
        )


def added(parts: Iterable[MemoryParts]) -> MemoryParts:
    """Return the parts of several layers together on one device."""
    rows = list(parts)
    return MemoryParts(
        weights=sum(one.weights for one in rows),
        gradients=sum(one.gradients for one in rows),
        optimizer=sum(one.optimizer for one in rows),
        stash=sum(one.stash for one in rows),
        received=sum(one.received for one in rows),
        working_set=max((one.working_set for one in rows), default=0),
    )


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


def keeps(training: Training, stage: int, stages: int) -> Keeps:
    """Return how often a stage keeps its weights and its micro-batches (stage counted from 0)."""
    return Keeps(
        versions=weight_versions(training.schedule, stage, stages),
        in_flight=in_flight(training.schedule, stage, stages, training.micro_batches),
    )


def keeps_in_slot(training: Training, slot: int) -> Keeps:
    """Return the same by the number of stages that come after it, which alone decides."""
    return keeps(training, 0, slot + 1)


def stage_memory(instance: Instance, plan: Plan, index: int) -> MemoryParts:
    """Return the parts of the peak on one device of stage ``index`` of a plan.

    ``versions * weights + gradients + optimiser state + in_flight * (stash + received) + largest working set``;
    with recomputation ``in_flight * received + stash of one micro-batch``.
    """
    stage = plan.stages[index]
    return stage_parts(instance, stage).times(keeps(instance.training, index, len(plan)), stage.group.mode)


def stage_parts(instance: Instance, stage: Stage) -> MemoryParts:
    """Return what one device of a stage holds of its layers: one version of weights, one micro-batch.

    What it received is kept where it is used first: the stash of a layer graph counts a tensor at the first layer
    that keeps it, which may lie before the cut.
    """
    kind = group_kind(instance, stage.group)
    layers = (layer_parts(instance, stage, layer, kind.shares) for layer in stage.span.layers)
    return added((*layers, MemoryParts(received=received_bytes(instance, kind, stage.span.first))))


def received_bytes(instance: Instance, kind: GroupKind, cut: int) -> int:
    """Return what a device of a stage that begins at this cut keeps of what one micro-batch brought it."""
    return _part(cut_bytes(instance, cut), kind.shares.device)


def layer_parts(instance: Instance, stage: Stage, layer: int, shares: Shares) -> MemoryParts:
    """Return what one device of a stage holds of a layer; ``shares`` are those of the stage's devices.

    Columns of a layer's output come with their own weights, and form 1 shards the rows of a weight matrix; all
    else is copied. Inputs and outputs are divided as they lie: by rows or columns among the devices, or whole on
    each device of a replica (``formulation.costs.forms``); of unequal shares the largest counts. What a layer
    keeps for its backward pass is taken to be as its input lies. The working set is input and output with their
    gradients.
    """
    source = layout_form(instance, stage.span, layer)
    form = 0 if source is None else stage.form(source)
    matrix = is_matrix(instance, layer)
    copied = form == 0 or (form == 1 and not matrix)
    held = Fraction(1) if copied else shares.shard
    taken = shares.replica if (TAKEN_BY_MATRIX if matrix else MADE)[form] == WHOLE else shares.device
    made = shares.replica if MADE[form] == WHOLE else shares.device
    return MemoryParts(
        weights=_part(instance.parameter_bytes[layer], held),
        gradients=_part(instance.gradient_bytes[layer], held),
        optimizer=_part(instance.optimizer_bytes[layer], held),
        stash=_part(instance.stash_bytes[layer], taken),
        working_set=_part(2 * instance.input_bytes[layer], taken) + _part(2 * instance.output_bytes[layer], made),
    )


def _part(size_bytes: int, share: Fraction) -> int:
    """Return a device's share of a tensor in whole bytes. Every part of every layer is rounded up here, alone."""
    return ceil_fraction(size_bytes * share)


def undivided(instance: Instance) -> MemoryParts:
    """Return the parts of the whole model on one device: one version of weights, one micro-batch."""
    return added(
        MemoryParts(
            weights=instance.parameter_bytes[layer],
            gradients=instance.gradient_bytes[layer],
            optimizer=instance.optimizer_bytes[layer],
            stash=instance.stash_bytes[layer],
            working_set=2 * (instance.input_bytes[layer] + instance.output_bytes[layer]),
        )
        for layer in range(len(instance.layers))
    )


def capacity_bytes(instance: Instance, group: Group) -> int:
    """Return the memory of the smallest device of a group."""
    return min(instance.servers[server].device_class.memory_bytes for server, _ in group.counts)
