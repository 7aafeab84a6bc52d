"""Llama as a layer graph: what fused kernels multiply, move and keep, one sample, 16-bit numbers, no torch.

A block (Grattafiori et al., arXiv 2407.21783, §3.2) is an RMSNorm, the projection to queries, keys and values, of
which there may be fewer heads, attention in one kernel whose scores stay on the chip, the projection back and the
shortcut; an RMSNorm, gate and perceptron in one product, the gated product of both, the product back and the
shortcut. No biases, no dropout, a head of its own. Matrices keep their input, attention what it reads and makes
(the input of the projection back), the gated product both of its factors, the loss logits in 32 bits. Attention is
counted as full squares, as traces do (``ingest.operators.work``).
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx

from pipecut.formulation.predictor.roofline import Product, Work
from pipecut.formulation.problem.layers import Across, Axis, Layer, Split
from pipecut_literature.megatron.layers import ELEMENT_BYTES, blocks_graph, layer, loss, matrix, norm, shortcut


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
    tokens, width = shape.sequence, shape.sequence * shape.hidden
    table = shape.vocabulary * shape.hidden
    gather = Work((), 1, 2 * width, 2 * width)
    layers = [layer("embedding", Split.MATRIX, (tokens, width), gather, weights=table)]
    for at in range(shape.layers):
        layers += _block(f"block.{at}", shape)
    layers.append(norm("norm", width, shape.hidden))
    layers.append(matrix("head", tokens, shape.hidden, shape.vocabulary, weights=table))
    return blocks_graph("llama", [*layers, loss(tokens, shape.vocabulary)])


def _attention(name: str, shape: LlamaShape) -> Layer:
    each, tokens = shape.hidden // shape.heads, shape.sequence
    taken, made = tokens * (shape.hidden + 2 * shape.key_value), tokens * shape.hidden
    scores = Product(tokens, each, tokens, shape.heads, False, read_bytes=ELEMENT_BYTES * taken)
    values = Product(tokens, tokens, each, shape.heads, False, written_bytes=ELEMENT_BYTES * made)
    sums = 4 * shape.heads * tokens
    kept = ELEMENT_BYTES * (taken + made) + sums
    heads = Across(Axis.CONTEXT, shape.key_value_heads, 2 * ELEMENT_BYTES * tokens * shape.key_value)
    return layer(name, Split.JOIN, (taken, made), Work((scores, values)), kept=kept, across=heads)


def _block(name: str, shape: LlamaShape) -> list[Layer]:
    tokens, hidden, inner = shape.sequence, shape.hidden, shape.inner
    width, wide = tokens * hidden, tokens * inner
    both, gated = 2 * ELEMENT_BYTES * wide, ELEMENT_BYTES * wide

    def plain(part: str, taken: int, made: int, *, keeps: bool = True) -> Layer:
        return matrix(f"{name}.{part}", tokens, taken, made, weights=taken * made, keeps=keeps)

    return [
        norm(f"{name}.norm1", width, hidden),
        plain("qkv", hidden, hidden + 2 * shape.key_value),
        _attention(f"{name}.core", shape),
        plain("projection", hidden, hidden, keeps=False),
        shortcut(f"{name}.add1", width, mask=False),
        norm(f"{name}.norm2", width, hidden),
        plain("fc1", hidden, 2 * inner),
        layer(f"{name}.gated", Split.FOLLOW, (2 * wide, wide), Work((), 1, both, gated), kept=both),
        plain("fc2", inner, hidden),
        shortcut(f"{name}.add2", width, mask=False),
    ]
