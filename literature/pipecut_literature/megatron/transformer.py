"""A decoder-only transformer as published work describes it: five whole numbers, and what follows from them.

Feed-forward layers are four times as wide as the model. A FLOP is a multiplication or an addition, so a product of
an ``m x k`` by a ``k x n`` matrix costs ``2 m k n``; only matrix products count. Source: Megatron-LM (SC'21, arXiv
2104.04473, §5.1 and appendix).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields
from fractions import Fraction


class LayerRecompute(enum.StrEnum):
    """What a layer computes again before its backward pass (Korthikanti et al., arXiv 2205.05198, §5)."""

    NONE = "none"
    SELECTIVE = "selective"
    """The attention core: scores, softmax, dropout and the weighted sum of values."""
    FULL = "full"
    """The whole layer, from its input."""


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """The sizes of a transformer: number of layers, width, attention heads, tokens of a sample, of a vocabulary.

    Raises ValueError for a size below 1.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int

    def __post_init__(self) -> None:
        for field in fields(self):
            size = getattr(self, field.name)
            if type(size) is not int or size < 1:
                raise ValueError(f"transformer: {field.name} is {size!r}, expected a whole number, 1 or more")

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer, 12 h² + 13 h: four projections, two of the perceptron, biases, two LayerNorms."""
        return 12 * self.hidden**2 + 13 * self.hidden

    @property
    def parameters(self) -> int:
        """All weights, with learned positions and an output head tied to the embedding: SC'21 eq. (2)."""
        return self.layers * self.layer_parameters + (self.vocabulary + self.sequence) * self.hidden


def attention_core_flops(shape: TransformerShape, samples: int) -> int:
    """Return the FLOPs of scores and weighted values of one layer, forward: 4 B s² h."""
    return 4 * samples * shape.sequence**2 * shape.hidden


def layer_flops(shape: TransformerShape, samples: int) -> int:
    """Return the FLOPs of one layer, forward: 24 B s h² + 4 B s² h. A backward pass costs twice as many."""
    return 24 * samples * shape.sequence * shape.hidden**2 + attention_core_flops(shape, samples)


def head_flops(shape: TransformerShape, samples: int) -> int:
    """Return the FLOPs of the output head, forward: 2 B s h V."""
    return 2 * samples * shape.sequence * shape.hidden * shape.vocabulary


def iteration_flops(shape: TransformerShape, samples: int, recompute: LayerRecompute) -> int:
    """Return the FLOPs of one optimiser step over a global batch of ``samples``.

    With full recomputation 96 B s l h² (1 + s / 6h + V / 16lh), SC'21 eq. (3); without any it is what Korthikanti
    et al. call model FLOPs, 72 B s l h² (1 + s / 6h + V / 12lh).
    """
    layer, core = layer_flops(shape, samples), attention_core_flops(shape, samples)
    again = {LayerRecompute.NONE: 0, LayerRecompute.SELECTIVE: core, LayerRecompute.FULL: layer}[recompute]
    return shape.layers * (3 * layer + again) + 3 * head_flops(shape, samples)


def megatron_bubble(ranks: int, micro_batches: int, chunks: int = 1) -> Fraction:
    """Return idle over *ideal* time of uniform stages, (p - 1) / (v m).

    Exact for GPipe and 1F1B (v = 1) and interleaved 1F1B. Source: Megatron-LM, arXiv 2104.04473, §2.2.
    """
    return Fraction(ranks - 1, chunks * micro_batches)
