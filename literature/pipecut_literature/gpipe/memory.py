"""Memory of a transformer under GPipe (Huang et al., NeurIPS 2019, arXiv 1811.06965, §2.3 and Table 1).

With re-materialisation an accelerator keeps the input of its cell for all N samples of the mini-batch, and, while
a micro-batch of N / M goes back, all activations of its cell for that one: ``N + L / K · N / M`` in the paper's
orders. Without it (the paper's *Naive*) all activations of all N samples are kept. What one layer keeps for one
sample is :func:`pipecut_literature.megatron.transformer_memory.layer_activation_bytes` without dropout, 16-bit
numbers. A parameter takes 12 bytes with the state of RMSProp, as the paper says of its Table 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from pipecut.formulation.problem.units import ceil_fraction
from pipecut_literature.megatron.transformer import TransformerShape
from pipecut_literature.megatron.transformer_memory import ActivationLayout, layer_activation_bytes

BYTES_PER_PARAMETER = 12
ELEMENT_BYTES = 2
_LAYOUT = ActivationLayout(dropout=False)


@dataclass(frozen=True, slots=True)
class GPipeBatch:
    """A mini-batch of ``samples`` in ``micro_batches`` equal parts. Raises ValueError where it does not divide."""

    samples: int
    micro_batches: int

    def __post_init__(self) -> None:
        if self.micro_batches < 1 or self.samples % self.micro_batches:
            raise ValueError(f"{self.samples} samples do not divide into {self.micro_batches} micro-batches")

    @property
    def micro_batch(self) -> int:
        """Samples of a micro-batch."""
        return self.samples // self.micro_batches


def parameters(shape: TransformerShape) -> int:
    """Return the weights of GPipe's transformer: L (12 h² + 13 h) + 2 V h, the head not tied to the embedding."""
    return shape.layers * shape.layer_parameters + 2 * shape.vocabulary * shape.hidden


def parameter_bytes(count: int) -> int:
    """Return the bytes of so many parameters with their optimiser state."""
    return BYTES_PER_PARAMETER * count


def sample_bytes(shape: TransformerShape) -> Fraction:
    """Return what one layer keeps for the backward pass of one sample: 2 s h (16 + a s / h)."""
    return layer_activation_bytes(shape, 1, _LAYOUT)


def boundary_bytes(shape: TransformerShape, samples: int) -> int:
    """Return the input of a cell for so many samples."""
    return ELEMENT_BYTES * samples * shape.sequence * shape.hidden


def naive_activation_bytes(shape: TransformerShape, samples: int) -> int:
    """Return the activations without re-materialisation on one accelerator: every layer, every sample."""
    return ceil_fraction(shape.layers * samples * sample_bytes(shape))


def pipeline_activation_bytes(shape: TransformerShape, batch: GPipeBatch, accelerators: int) -> int:
    """Return the peak activations with re-materialisation, summed over accelerators as in the paper's Table 1.

    Every accelerator keeps the inputs of its cell; together they recompute all layers, for a micro-batch each.
    """
    inputs = accelerators * boundary_bytes(shape, batch.samples)
    return inputs + ceil_fraction(shape.layers * batch.micro_batch * sample_bytes(shape))


def largest_naive_layers(shape: TransformerShape, samples: int, capacity_bytes: int) -> int:
    """Return the most layers that fit on one accelerator without re-materialisation; 0 where none does."""
    left = capacity_bytes - parameter_bytes(2 * shape.vocabulary * shape.hidden)
    layer = parameter_bytes(shape.layer_parameters) + samples * sample_bytes(shape)
    return max(0, left // layer)


def largest_layers(shape: TransformerShape, batch: GPipeBatch, accelerators: int, capacity_bytes: int) -> int:
    """Return the most layers that fit on all accelerators under re-materialisation; 0 where the ends do not fit.

    Layers are equal, so the best contiguous cut fills every accelerator on its own: the first also holds the
    embedding, the last the head. ``shape.layers`` is not used. Raises ValueError for no accelerator.
    """
    if accelerators < 1:
        raise ValueError(f"{accelerators} accelerators, expected 1 or more")
    end = parameter_bytes(shape.vocabulary * shape.hidden)
    layer = parameter_bytes(shape.layer_parameters) + batch.micro_batch * sample_bytes(shape)
    room = capacity_bytes - boundary_bytes(shape, batch.samples)
    if accelerators == 1:
        return max(0, (room - 2 * end) // layer)
    if room < end:
        return 0
    return 2 * ((room - end) // layer) + (accelerators - 2) * (room // layer)
