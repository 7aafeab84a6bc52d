"""Throughput under GPipe, executed on the timeline: cells cut by GPipe's own rule, re-materialisation, transfers.

Cells are those of GPipe's partitioner (:func:`pipecut_literature.gpipe.planner.least_variance`), by FLOPs.

A machine for predictions: what its accelerators and links do at best, and one efficiency for all of it.

The efficiency is the share of the peak that matrix products reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from pipecut.formulation.problem.units import NS_PER_SECOND, ceil_fraction
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.timeline.durations import Durations
from pipecut.formulation.timeline.timeline import run
from pipecut_literature.gpipe.amoebanet import amoebanet_d
from pipecut_literature.gpipe.memory import GPipeBatch
from pipecut_literature.gpipe.planner import least_variance
from pipecut_literature.megatron.transformer import TransformerShape, head_flops, layer_flops


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Peak FLOPs a second; bytes a second of memory, and of links inside a node.

    Links carry these bytes in either direction at the same time. ``None`` stands for no limit: to see what a term
    is worth, leave it out.
    """

    name: str
    peak_flops_per_second: int
    efficiency: Fraction = Fraction(1)
    memory_bytes_per_second: int | None = None
    near_bytes_per_second: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.efficiency <= 1:
            raise ValueError(
                f"{self.name}: efficiency is {float(self.efficiency):.3g}, expected above 0, at most 1"
            )

    def products_s(self, flops: int | Fraction) -> Fraction:
        """Return the seconds of matrix products."""
        return Fraction(flops) / (self.efficiency * self.peak_flops_per_second)

    def near_s(self, amount_bytes: int | Fraction) -> Fraction:
        """Return the seconds in which a device sends bytes to another one of its node."""
        near = self.near_bytes_per_second
        return Fraction(0) if near is None else Fraction(amount_bytes) / near


@dataclass(frozen=True, slots=True)
class LayerLine:
    """Layers on a line: forward FLOPs of each for one sample, and the bytes that go on behind each.

    What stands in ``boundary_bytes`` behind the last layer is not used. Raises ValueError for another number of
    them than of layers.
    """

    name: str
    layer_flops: tuple[int, ...]
    boundary_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.boundary_bytes) != len(self.layer_flops):
            raise ValueError(
                f"{self.name}: {len(self.boundary_bytes)} boundaries for {len(self.layer_flops)} layers"
            )


def transformer_network(name: str, shape: TransformerShape, element_bytes: int) -> LayerLine:
    """Return a transformer as GPipe cuts it: embedding (no product), layers, head."""
    layers = (layer_flops(shape, 1),) * shape.layers
    boundary = element_bytes * shape.sequence * shape.hidden
    return LayerLine(name, (0, *layers, head_flops(shape, 1)), (boundary,) * (shape.layers + 2))


def amoebanet_network(layers: int, filters: int, element_bytes: int) -> LayerLine:
    """Return AmoebaNet-D (L, D) with its cells as layers. Raises ValueError for sizes that it cannot have."""
    cells = amoebanet_d(layers, filters)
    return LayerLine(
        f"AmoebaNet-D ({layers}, {filters})",
        tuple(cell.flops for cell in cells),
        tuple(element_bytes * cell.boundary_elements for cell in cells),
    )


Passes = Sequence[tuple[int, int]]
"""Forward and backward pass of every layer of a line, in ns, for one micro-batch."""


def gpipe_durations(
    network: LayerLine, cells: int, batch: GPipeBatch, machine: Accelerator, passes: Passes | None = None
) -> Durations:
    """Return the times of the cells for one micro-batch, with the forward pass again before the backward pass.

    They are those of ``passes``, or of the products alone, backward twice forward.
    """
    spans = list(pairwise(least_variance(network.layer_flops, cells)))
    if passes is None:
        products = [
            machine.products_s(batch.micro_batch * sum(network.layer_flops[slice(*span)])) for span in spans
        ]
        forward = tuple(_ns(one) for one in products)
        backward = tuple(2 * one for one in forward)
    else:
        forward, backward = (
            tuple(sum(one[way] for one in passes[slice(*span)]) for span in spans) for way in (0, 1)
        )
    transfer = tuple(
        _ns(machine.near_s(batch.micro_batch * network.boundary_bytes[stop - 1])) for _, stop in spans[:-1]
    )
    return Durations(
        forward_ns=forward,
        backward_ns=backward,
        recompute_ns=forward,
        activation_ns=transfer,
        gradient_ns=transfer,
    )


def samples_per_second(
    network: LayerLine, cells: int, batch: GPipeBatch, machine: Accelerator, passes: Passes | None = None
) -> Fraction:
    """Return the throughput of one step: samples over the makespan of GPipe's schedule."""
    durations = gpipe_durations(network, cells, batch, machine, passes)
    makespan_ns = run(gpipe(cells, batch.micro_batches), durations).makespan_ns
    return Fraction(batch.samples * NS_PER_SECOND, makespan_ns)


def closed_form_speed(cells: int, micro_batches: int) -> Fraction:
    """Return the throughput of equal cells without transfers, in that of one accelerator: K M / (M + K - 1)."""
    return Fraction(cells * micro_batches, micro_batches + cells - 1)


def _ns(seconds: Fraction) -> int:
    return ceil_fraction(seconds * NS_PER_SECOND)
