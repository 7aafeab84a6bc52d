"""Llama as a layer graph: what fused kernels multiply, move and keep, one sample, 16-bit numbers, no torch.

A block (Grattafiori et al., arXiv 2407.21783, §3.2) is an RMSNorm, the projection to queries, keys and values, of
which there may be fewer heads, attention in one kernel whose scores stay on the chip, the projection back and the
shortcut; an RMSNorm, gate and perceptron in one product, the gated product of both, the product back and the
shortcut. No biases, no dropout, a head of its own. Matrices keep their input, attention what it reads and makes
(the input of the projection back), the gated product both of its factors, the loss logits in 32 bits. Attention is
counted as full squares, as traces do (``ingest.operators.work``).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import networkx as nx

from pipecut.formulation.predictor.roofline import Product, Work
from pipecut.formulation.problem.layers import Across, Axis, Layer, Split, layer_graph
from pipecut_literature.megatron.layers import (
    ELEMENT_BYTES,
    LOGIT_BYTES,
    LOGITS,
    ROWS_OR_WHOLE,
    SUMMED_BYTES,
    layer,
)

BLOCK = 10
"""Layers of a block."""


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Blocks, width, heads of queries and of keys and values, width of the perceptron, tokens, vocabulary."""

    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    inner: int
    sequence: int
    vocabulary: int

    @property
    def key_value(self) -> int:
        """Width of keys, and of values."""
        return self.hidden // self.heads * self.key_value_heads

    @property
    def matrices(self) -> int:
        """Weights of all products: those of blocks and of the head."""
        block = 2 * self.hidden * (self.hidden + self.key_value) + 3 * self.hidden * self.inner
        return self.layers * block + self.hidden * self.vocabulary

    def step_flops(self, samples: int) -> int:
        """Return the model FLOPs of a step of so many samples: 6 of each weight and token, 12 s h of attention."""
        tokens = samples * self.sequence
        return tokens * (6 * self.matrices + 12 * self.layers * self.hidden * self.sequence)


def llama_layers(shape: LlamaShape) -> nx.DiGraph:
    """Return embedding, blocks, last norm, head and loss. Cost: linear in blocks."""
    width, words = shape.sequence * shape.hidden, shape.sequence * shape.vocabulary
    table = shape.vocabulary * shape.hidden
    gather = Work((), 1, 2 * width, 2 * width)
    layers = [layer("embedding", Split.MATRIX, (shape.sequence, width), gather, weights=table)]
    for at in range(shape.layers):
        layers += _block(f"block.{at}", shape)
    layers.append(_norm("norm", shape))
    layers.append(_matrix("head", shape, shape.hidden, shape.vocabulary))
    read, written = (ELEMENT_BYTES * words * one for one in LOGITS)
    loss, taken = Work((), 2, read, written), (words, shape.sequence)
    parts = Across(Axis.VOCABULARY, sent_bytes=SUMMED_BYTES * shape.sequence)
    kept = LOGIT_BYTES * words
    layers.append(layer("loss", Split.JOIN, taken, loss, kept=kept, forms=ROWS_OR_WHOLE, across=parts))
    names, sizes = [layer.name for layer in layers], {layer.name: layer.output_bytes for layer in layers}
    pairs = list(itertools.pairwise(names))
    for at in range(shape.layers):
        first = 1 + BLOCK * at
        half = first + BLOCK // 2 - 1
        pairs += [(names[first - 1], names[half]), (names[half], names[half + BLOCK // 2])]
    edges = [(one, other, sizes[one]) for one, other in pairs]
    return layer_graph("llama", layers, edges, ELEMENT_BYTES)


def _norm(name: str, shape: LlamaShape) -> Layer:
    width = shape.sequence * shape.hidden
    work = Work((), 1, ELEMENT_BYTES * width, ELEMENT_BYTES * width)
    return layer(name, Split.FOLLOW, (width, width), work, weights=shape.hidden, kept=ELEMENT_BYTES * width)


def _matrix(name: str, shape: LlamaShape, inner: int, columns: int, *, keeps: bool = True) -> Layer:
    taken, made = shape.sequence * inner, shape.sequence * columns
    product = Product(shape.sequence, inner, columns, 1, True, ELEMENT_BYTES * taken, ELEMENT_BYTES * made)
    kept = ELEMENT_BYTES * taken * keeps
    return layer(name, Split.MATRIX, (taken, made), Work((product,)), weights=inner * columns, kept=kept)


def _attention(name: str, shape: LlamaShape) -> Layer:
    each, tokens = shape.hidden // shape.heads, shape.sequence
    taken, made = tokens * (shape.hidden + 2 * shape.key_value), tokens * shape.hidden
    scores = Product(tokens, each, tokens, shape.heads, False, read_bytes=ELEMENT_BYTES * taken)
    values = Product(tokens, tokens, each, shape.heads, False, written_bytes=ELEMENT_BYTES * made)
    sums = 4 * shape.heads * tokens
    kept = ELEMENT_BYTES * (taken + made) + sums
    heads = Across(Axis.CONTEXT, shape.key_value_heads, 2 * ELEMENT_BYTES * tokens * shape.key_value)
    return layer(name, Split.JOIN, (taken, made), Work((scores, values)), kept=kept, across=heads)


def _shortcut(name: str, shape: LlamaShape) -> Layer:
    width = shape.sequence * shape.hidden
    work = Work((), 1, 2 * ELEMENT_BYTES * width, ELEMENT_BYTES * width)
    return layer(name, Split.JOIN, (width, width), work, forms=ROWS_OR_WHOLE)


def _block(name: str, shape: LlamaShape) -> list[Layer]:
    hidden, inner, tokens = shape.hidden, shape.inner, shape.sequence
    both, gated = 2 * ELEMENT_BYTES * tokens * inner, ELEMENT_BYTES * tokens * inner
    sizes = (2 * tokens * inner, tokens * inner)
    return [
        _norm(f"{name}.norm1", shape),
        _matrix(f"{name}.qkv", shape, hidden, hidden + 2 * shape.key_value),
        _attention(f"{name}.core", shape),
        _matrix(f"{name}.projection", shape, hidden, hidden, keeps=False),
        _shortcut(f"{name}.add1", shape),
        _norm(f"{name}.norm2", shape),
        _matrix(f"{name}.fc1", shape, hidden, 2 * inner),
        layer(f"{name}.gated", Split.FOLLOW, sizes, Work((), 1, both, gated), kept=both),
        _matrix(f"{name}.fc2", shape, inner, hidden),
        _shortcut(f"{name}.add2", shape),
    ]
