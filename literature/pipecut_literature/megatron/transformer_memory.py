"""Activations of a transformer, in bytes, as closed forms: Korthikanti et al. (arXiv 2205.05198, §4 and 5).

What each operator of a layer keeps for its backward pass stands in one table, :data:`KEPT`; the six formulas of
the paper's Table 2 are its sums. With s tokens, b samples, width h, a heads, 16-bit numbers (2 bytes) and dropout
masks of one byte, a layer keeps ``s b h (34 + 5 a s / h)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from pipecut.formulation.problem.units import ceil_fraction
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.timeline.durations import Durations
from pipecut.formulation.timeline.measures import Footprint
from pipecut.formulation.timeline.timeline import run
from pipecut_literature.megatron.transformer import LayerRecompute, TransformerShape
from pipecut_literature.studies.study import published


@dataclass(frozen=True, slots=True)
class Kept:
    """One tensor that a layer keeps: bytes for each token and element of the width, and for each head and pair.

    ``divided``: tensor parallelism splits it even without sequence parallelism. ``core``: selective recomputation
    drops it. ``dropout``: it exists only where dropout is on.
    """

    name: str
    hidden_bytes: int
    score_bytes: int
    divided: bool
    core: bool
    dropout: bool


KEPT = tuple(Kept(*row) for row in published(__file__)["kept"])
"""The paper's §4.1: attention 11 sbh + 5 as²b, perceptron 19 sbh, LayerNorms 4 sbh; 10 sbh are not divided."""


@dataclass(frozen=True, slots=True)
class ActivationLayout:
    """How the activations of a layer are divided and recomputed. Raises ValueError for a degree below 1."""

    tensor_parallel_degree: int = 1
    sequence_parallel: bool = False
    recompute: LayerRecompute = LayerRecompute.NONE
    dropout: bool = True

    def __post_init__(self) -> None:
        if self.tensor_parallel_degree < 1:
            raise ValueError(f"tensor-parallel degree is {self.tensor_parallel_degree}, expected 1 or more")


def layer_activation_bytes(shape: TransformerShape, samples: int, layout: ActivationLayout) -> Fraction:
    """Return the exact bytes that one layer keeps on one device for a micro-batch of ``samples``.

    With full recomputation it is the layer's input, 2 sbh, on every device of the group (the paper's §5).
    """
    tokens = samples * shape.sequence
    if layout.recompute is LayerRecompute.FULL:
        return Fraction(2 * tokens * shape.hidden)
    total = Fraction(0)
    for kept in KEPT:
        if (kept.core and layout.recompute is LayerRecompute.SELECTIVE) or (kept.dropout and not layout.dropout):
            continue
        amount = tokens * (kept.hidden_bytes * shape.hidden + kept.score_bytes * shape.heads * shape.sequence)
        share = layout.tensor_parallel_degree if kept.divided or layout.sequence_parallel else 1
        total += Fraction(amount, share)
    return total


def interleaved_factor(ranks: int, chunks: int) -> Fraction:
    """Return how many times the activations of 1F1B interleaving keeps on rank 0: 1 + (p - 1) / (p m), §4.2.3.

    1 for a single chunk, which is 1F1B itself.
    """
    return 1 + Fraction(ranks - 1, ranks * chunks) if chunks > 1 else Fraction(1)


def first_stage_bytes(
    shape: TransformerShape, samples: int, layout: ActivationLayout, ranks: int, chunks: int = 1
) -> int:
    """Return the activations of all layers on the first rank, at their peak, rounded up: the paper's eq. (5).

    Under 1F1B the first of p ranks keeps p micro-batches of L / p layers, so L layers whatever p is; it holds for
    p micro-batches or more.
    """
    layers = shape.layers * interleaved_factor(ranks, chunks)
    return ceil_fraction(layers * layer_activation_bytes(shape, samples, layout))


def extra_bytes(shape: TransformerShape, samples: int, tensor_parallel_degree: int, ranks: int) -> int:
    """Return what the first rank keeps beside layers, rounded up: the paper's §4.3.

    The mask of the dropout behind the embedding for p micro-batches, s b h p / t; on a single rank also inputs of
    the last LayerNorm and of the head, and logits of 32 bits, 4 s b h / t (1 + V / h).
    """
    tokens = samples * shape.sequence
    bytes_of_group = tokens * shape.hidden * ranks
    if ranks == 1:
        bytes_of_group += 4 * tokens * (shape.hidden + shape.vocabulary)
    return ceil_fraction(Fraction(bytes_of_group, tensor_parallel_degree))


def counted_first_stage_bytes(
    shape: TransformerShape, samples: int, layout: ActivationLayout, ranks: int, chunks: int, micro_batches: int
) -> int:
    """Return the peak of the first rank's layers when the schedule is executed, instead of eq. (5).

    Layers are as many on every stage. Raises ValueError where they cannot be, ScheduleError for micro-batches that
    interleaving cannot take. Cost: linear in ranks x chunks x micro-batches.
    """
    stages = ranks * chunks
    if shape.layers % stages:
        raise ValueError(f"{shape.layers} layers do not divide among {stages} stages")
    schedule = interleaved(ranks, chunks, micro_batches) if chunks > 1 else one_f_one_b(ranks, micro_batches)
    stash = ceil_fraction(shape.layers // stages * layer_activation_bytes(shape, samples, layout))
    free = (0,) * (stages - 1)
    timeline = run(schedule, Durations((1,) * stages, (2,) * stages, activation_ns=free, gradient_ns=free))
    return Footprint((0,) * stages, (stash,) * stages).over_time(timeline, 0).peak_bytes
