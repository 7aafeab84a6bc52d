"""Time of one transformer layer on one device of a tensor-parallel group, from FLOPs and bytes.

Three terms, one after another unless said otherwise:

* matrix products at the efficiency of the machine: 24 B s h² + 4 B s² h FLOPs forward, twice as many backward;
* what lies between the products reads and writes memory at full bandwidth (:data:`TRAFFIC`);
* tensor parallelism: two all-reduces of B s h numbers in each direction, ring, ``2 (t - 1) / t`` of the bytes.
  Sequence parallelism replaces each by a reduce-scatter and an all-gather of the same volume.

Korthikanti et al. (arXiv 2205.05198, §6.2) overlap the all-reduce of an input gradient with the weight gradient
of the same product; only what is longer than that product is then waited for. With sequence parallelism this holds
for the reduce-scatter; the all-gather before it is waited for, and the one that restores a stored input (§4.2.2)
is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from planners.common.accelerator import Accelerator
from planners.megatron.transformer import (
    LayerRecompute,
    TransformerShape,
    attention_core_flops,
    head_flops,
    layer_flops,
)

__all__: list[str] = []

ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one operator reads and writes, forward and backward.

    ``hidden`` for each token and element of the width, ``scores`` for each head and pair of tokens. ``divided``
    and ``core`` as in ``transformer_memory.Kept``.
    """

    name: str
    hidden: tuple[int, int] = (0, 0)
    scores: tuple[int, int] = (0, 0)
    divided: bool = False
    core: bool = False


TRAFFIC = (
    Traffic("two LayerNorms: 2 in, 2 out; back 2 + 2 in, 2 out", hidden=(8, 12)),
    Traffic("two dropouts with shortcut: 2 + 2 in, 2 out, mask 1; back 2 + 1 in, 2 out", hidden=(14, 10)),
    Traffic("two sums of gradients at shortcuts: back 2 + 2 in, 2 out", hidden=(0, 12)),
    Traffic("GELU, four times the width: 2 in, 2 out; back 2 + 2 in, 2 out", hidden=(16, 24), divided=True),
    Traffic("softmax with scale and mask: 2 in, 2 out; back 2 + 2 in, 2 out", (0, 0), (4, 6), True, True),
    Traffic("dropout behind softmax: 2 in, 2 out, mask 1; back 2 + 1 in, 2 out", (0, 0), (5, 5), True, True),
)
"""Fused kernels, each tensor once. What the matrix products read and write is part of their efficiency."""
HEAD_TRAFFIC = (14, 6)
"""Bytes for each logit: 16-bit logits to 32 bits, then twice through them for the loss; back to 16 bits."""
EMBEDDING_TRAFFIC = (11, 9)
"""Bytes for each token and element: gather, add the position, drop out; back the mask, and add to the table."""


@dataclass(frozen=True, slots=True)
class LayerSetting:
    """How layers are computed: samples of a micro-batch, tensor-parallel degree, and what is fused or repeated."""

    micro_batch: int
    tensor_parallel_degree: int = 1
    sequence_parallel: bool = False
    recompute: LayerRecompute = LayerRecompute.NONE
    overlap_input_gradient: bool = False


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds of a forward pass, a backward pass and the recomputation before it, exact."""

    forward_s: Fraction
    backward_s: Fraction
    recompute_s: Fraction = Fraction(0)

    def __add__(self, other: Passes) -> Passes:
        return Passes(
            self.forward_s + other.forward_s,
            self.backward_s + other.backward_s,
            self.recompute_s + other.recompute_s,
        )

    def times(self, count: int) -> Passes:
        """Return the passes of so many layers, one after another."""
        return Passes(count * self.forward_s, count * self.backward_s, count * self.recompute_s)


def all_reduce_s(shape: TransformerShape, setting: LayerSetting, machine: Accelerator) -> Fraction:
    """Return the seconds of one all-reduce of a layer's output in the tensor-parallel group."""
    degree = setting.tensor_parallel_degree
    amount = ELEMENT_BYTES * setting.micro_batch * shape.sequence * shape.hidden
    return machine.near_s(Fraction(2 * (degree - 1) * amount, degree))


def layer_passes(shape: TransformerShape, setting: LayerSetting, machine: Accelerator) -> Passes:
    """Return the seconds of one layer."""
    degree = setting.tensor_parallel_degree
    forward_products = machine.products_s(Fraction(layer_flops(shape, setting.micro_batch), degree))
    reduce_s = all_reduce_s(shape, setting, machine)
    forward = forward_products + machine.traffic_s(_traffic(shape, setting, 0)) + 2 * reduce_s
    backward = 2 * forward_products + machine.traffic_s(_traffic(shape, setting, 1))
    backward += _backward_communication_s(shape, setting, machine, reduce_s)
    again = Fraction(0)
    if setting.recompute is LayerRecompute.FULL:
        again = forward
    elif setting.recompute is LayerRecompute.SELECTIVE:
        again = machine.products_s(Fraction(attention_core_flops(shape, setting.micro_batch), degree))
        again += machine.traffic_s(_traffic(shape, setting, 0, core_only=True))
    return Passes(forward, backward, again)


def _traffic(shape: TransformerShape, setting: LayerSetting, way: int, *, core_only: bool = False) -> Fraction:
    """Return the bytes between the products of one layer; ``way`` 0 forward, 1 backward."""
    tokens = setting.micro_batch * shape.sequence
    total = Fraction(0)
    for one in TRAFFIC:
        if core_only and not one.core:
            continue
        amount = tokens * (one.hidden[way] * shape.hidden + one.scores[way] * shape.heads * shape.sequence)
        divided = one.divided or setting.sequence_parallel
        total += Fraction(amount, setting.tensor_parallel_degree if divided else 1)
    return total


def _backward_communication_s(
    shape: TransformerShape, setting: LayerSetting, machine: Accelerator, reduce_s: Fraction
) -> Fraction:
    """Return the seconds that a backward pass waits for its tensor-parallel group."""
    if not setting.overlap_input_gradient:
        return 2 * reduce_s
    gathered = reduce_s / 2 if setting.sequence_parallel else Fraction(0)
    exposed = 2 * gathered
    for width in (3, 4):  # columns of the projection to q, k, v and of the perceptron's first layer, over h
        flops = 2 * setting.micro_batch * shape.sequence * width * shape.hidden**2
        weight_gradient = machine.products_s(Fraction(flops, setting.tensor_parallel_degree))
        exposed += max(Fraction(0), reduce_s - gathered - weight_gradient)
    return exposed


def embedding_passes(shape: TransformerShape, setting: LayerSetting, machine: Accelerator) -> Passes:
    """Return the seconds of the embedding, whose vocabulary is divided: one all-reduce forward."""
    tokens = setting.micro_batch * shape.sequence * shape.hidden
    forward, backward = (machine.traffic_s(tokens * amount) for amount in EMBEDDING_TRAFFIC)
    return Passes(forward + all_reduce_s(shape, setting, machine), backward)


def head_passes(shape: TransformerShape, setting: LayerSetting, machine: Accelerator) -> Passes:
    """Return the seconds of the last LayerNorm, the head with a divided vocabulary, and the loss."""
    degree = setting.tensor_parallel_degree
    tokens = setting.micro_batch * shape.sequence
    products = machine.products_s(Fraction(head_flops(shape, setting.micro_batch), degree))
    norm = [tokens * shape.hidden * amount for amount in (4, 6)]
    logits = [Fraction(tokens * shape.vocabulary * amount, degree) for amount in HEAD_TRAFFIC]
    forward, backward = (machine.traffic_s(one + other) for one, other in zip(norm, logits, strict=True))
    return Passes(products + forward, 2 * products + backward + all_reduce_s(shape, setting, machine))
