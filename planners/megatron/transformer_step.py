"""One optimiser step of a transformer on many devices, executed on the timeline: Megatron-LM's way to train.

Every stage is a tensor-parallel group; the pipeline runs 1F1B, or interleaved 1F1B with several chunks, with the
durations of ``transformer_time``; activations and gradients cross between stages on stages' own network adapters,
each device of a group sending its 1/t and the receiving group putting it together (scatter/gather, Megatron-LM,
SC'21, arXiv 2104.04473, §4.1); at the end replicas all-reduce their gradients and the optimiser runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from formulation.problem.units import NS_PER_SECOND, ceil_fraction
from formulation.schedules.interleaved import interleaved
from formulation.schedules.one_f_one_b import one_f_one_b
from formulation.schedules.table import PipelineSchedule
from formulation.timeline.closed_forms import megatron_bubble, uniform_iteration_ns
from formulation.timeline.durations import Durations, Execution, Transfers
from formulation.timeline.measures import compute_ns
from formulation.timeline.timeline import run
from planners.common.accelerator import Accelerator
from planners.megatron.transformer import TransformerShape
from planners.megatron.transformer_time import (
    ELEMENT_BYTES,
    LayerSetting,
    Passes,
    embedding_passes,
    head_passes,
    layer_passes,
)

__all__: list[str] = []

OPTIMISER_BYTES = 40
"""For each parameter: 16-bit gradient in, 32-bit out and twice in (norm, step); three 32-bit states in and out;
16-bit weight out."""


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A published run. ``ranks`` pipeline ranks of ``chunks`` stages each, ``replicas`` of the whole pipeline.

    ``gradient_bytes`` is the size of a number in the all-reduce of gradients. Raises ValueError for layers that do
    not divide among stages, and a batch that does not divide into micro-batches for every replica.
    """

    name: str
    shape: TransformerShape
    setting: LayerSetting
    ranks: int
    chunks: int
    replicas: int
    global_batch: int
    gradient_bytes: int = 2

    def __post_init__(self) -> None:
        if self.shape.layers % self.stages:
            raise ValueError(f"{self.name}: {self.shape.layers} layers do not divide among {self.stages} stages")
        if self.global_batch % (self.replicas * self.setting.micro_batch):
            raise ValueError(
                f"{self.name}: a batch of {self.global_batch} does not divide into micro-batches of "
                f"{self.setting.micro_batch} on {self.replicas} replicas"
            )

    @property
    def stages(self) -> int:
        """Stages of the pipeline, all chunks of all ranks."""
        return self.ranks * self.chunks

    @property
    def devices(self) -> int:
        """Devices of the run."""
        return self.ranks * self.setting.tensor_parallel_degree * self.replicas

    @property
    def micro_batches(self) -> int:
        """Micro-batches of each pipeline in one step."""
        return self.global_batch // (self.replicas * self.setting.micro_batch)


@dataclass(frozen=True, slots=True)
class TransformerStep:
    """What was predicted: the step executed, and the closed form beside it.

    ``bubble`` is the time in which ranks do not compute, over that in which they do, until the last backward pass
    stops: waiting for others and for transfers, before the update.
    """

    iteration_ns: int
    closed_form_ns: int
    bubble: Fraction
    closed_form_bubble: Fraction


def whole_ns(seconds: Fraction) -> int:
    """Return seconds as whole nanoseconds, rounded up."""
    return ceil_fraction(seconds * NS_PER_SECOND)


def schedule_of(training: TrainingRun) -> PipelineSchedule:
    """Return the order of passes. Raises ScheduleError for micro-batches that interleaving cannot take."""
    if training.chunks > 1:
        return interleaved(training.ranks, training.chunks, training.micro_batches)
    return one_f_one_b(training.ranks, training.micro_batches)


def durations_of(training: TrainingRun, machine: Accelerator) -> Durations:
    """Return the times of every stage: its layers, and at the ends the embedding, the head and the loss.

    Raises ValueError for tensor-parallel groups wider than a node, or stages that share one.
    """
    degree = training.setting.tensor_parallel_degree
    if degree > machine.devices_per_node or (training.ranks > 1 and degree != machine.devices_per_node):
        raise ValueError(
            f"{training.name}: {degree} devices for each stage on nodes of {machine.devices_per_node}: links are "
            f"known for stages of a whole node, and for a single stage within one"
        )
    layer = layer_passes(training.shape, training.setting, machine)
    passes = [layer.times(training.shape.layers // training.stages)] * training.stages
    passes[0] += embedding_passes(training.shape, training.setting, machine)
    passes[-1] += head_passes(training.shape, training.setting, machine)
    transfer = (whole_ns(_transfer_s(training, machine)),) * (training.stages - 1)
    sync, update = zip(*(_update_s(training, machine, stage) for stage in range(training.stages)), strict=True)
    return Durations(
        forward_ns=tuple(whole_ns(one.forward_s) for one in passes),
        backward_ns=tuple(whole_ns(one.backward_s) for one in passes),
        recompute_ns=tuple(whole_ns(one.recompute_s) for one in passes),
        sync_ns=tuple(map(whole_ns, sync)),
        optimizer_ns=tuple(map(whole_ns, update)),
        activation_ns=transfer,
        gradient_ns=transfer,
    )


def predict(
    training: TrainingRun, machine: Accelerator, transfers: Transfers = Transfers.SENDER
) -> TransformerStep:
    """Execute one step and put the closed form beside it. Cost: linear in stages x micro-batches."""
    schedule = schedule_of(training)
    timeline = run(schedule, durations_of(training, machine), Execution(transfers=transfers))
    layer = layer_passes(training.shape, training.setting, machine).times(training.shape.layers // training.stages)
    busy = sum(compute_ns(timeline))
    last = int(timeline.times.stop_ns[: len(schedule)].max())
    return TransformerStep(
        timeline.makespan_ns,
        closed_form_ns(training, layer),
        Fraction(schedule.ranks * last - busy, busy),
        megatron_bubble(training.ranks, training.micro_batches, training.chunks),
    )


def closed_form_ns(training: TrainingRun, stage: Passes) -> int:
    """Return (v m + p - 1) (f + b) of equal stages without ends, transfers or update (SC'21, §2.2)."""
    forward, backward = whole_ns(stage.forward_s), whole_ns(stage.backward_s + stage.recompute_s)
    return uniform_iteration_ns(training.ranks, training.micro_batches, forward, backward, training.chunks)


def _transfer_s(training: TrainingRun, machine: Accelerator) -> Fraction:
    """Return the seconds in which a stage's output reaches every device of the next stage.

    A 1/t on each device's adapter, then an all-gather in the node; sequence parallelism needs no all-gather, its
    outputs lie divided.
    """
    degree, shape = training.setting.tensor_parallel_degree, training.shape
    amount = ELEMENT_BYTES * training.setting.micro_batch * shape.sequence * shape.hidden
    gather = Fraction(0) if training.setting.sequence_parallel else Fraction((degree - 1) * amount, degree)
    return machine.far_s(Fraction(amount, degree)) + machine.near_s(gather)


def _update_s(training: TrainingRun, machine: Accelerator, stage: int) -> tuple[Fraction, Fraction]:
    """Return the seconds of synchronising the gradients of a stage, and of its optimiser.

    Replicas all-reduce around a ring, 2 (d - 1) / d of the bytes. A ring has as many adapters of a node as it has
    devices there, and is no faster than the links inside the node. First and last stage also sum the gradient of
    the embedding that they share.
    """
    degree, replicas, shape = training.setting.tensor_parallel_degree, training.replicas, training.shape
    count = shape.layers // training.stages * shape.layer_parameters
    table = shape.vocabulary * shape.hidden
    if stage in (0, training.stages - 1):
        count += table
    amount = Fraction(2 * (replicas - 1) * training.gradient_bytes * count, replicas * degree)
    rings = Fraction(degree, machine.devices_per_node)
    sync = max(machine.far_s(amount * rings), machine.near_s(amount))
    if training.stages > 1 and stage in (0, training.stages - 1):
        sync += machine.far_s(Fraction(training.gradient_bytes * table, degree))
    return sync, machine.traffic_s(Fraction(OPTIMISER_BYTES * count, degree))
