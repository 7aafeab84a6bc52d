"""Megatron-LM's transformer as a layer graph: what its kernels multiply and move, one sample, 16-bit numbers.

Blocks as in ``transformer``: a LayerNorm, the projections to queries, keys and values, the attention core with its
scores in memory (no kernel of 2021 or 2022 kept them out of it), the projection back, dropout with the shortcut; a
LayerNorm, the perceptron of four times the width with GELU, dropout with the shortcut. Kernels are fused as
Megatron-LM fuses them (SC'21, arXiv 2104.04473, §4.2): bias and GELU, bias, dropout and shortcut, scale, mask and
softmax. A dropout reads or writes a mask of one byte for each number. Weights of the head are those of the
embedding.

What layers keep for the backward pass is what ``transformer_memory`` lists (Korthikanti et al., arXiv 2205.05198,
§4.1); behind the last block a LayerNorm and the head keep their inputs, and the loss logits in 32 bits (§4.3).
"""

from __future__ import annotations

import itertools

import networkx as nx

from pipecut.formulation.predictor.roofline import Product, Work
from pipecut.formulation.problem.layers import Across, Axis, Layer, Split, layer_graph
from pipecut_literature.megatron.transformer import TransformerShape

ELEMENT_BYTES = 2
BLOCK = 10
"""Layers of a block."""
FORMS = (0, 1, 2)
ROWS_OR_WHOLE = (0, 1)
"""A shortcut is never split by columns: the LayerNorm behind it needs whole rows."""
LOGIT_BYTES = 4
SUMMED_BYTES = 4
"""What the loss adds up a token over parts of the vocabulary, in 32 bits (Megatron-LM, arXiv 1909.08053, §3)."""
LOGITS = (5, 2)
"""Numbers read and written for each logit by the loss: to 32 bits, then twice through them."""


def transformer_layers(shape: TransformerShape) -> nx.DiGraph:
    """Return embedding, blocks, last LayerNorm, head and loss. Cost: linear in layers."""
    tokens, width = shape.sequence, shape.sequence * shape.hidden
    table = shape.vocabulary * shape.hidden
    ends = Work((), 2, 3 * width, 8 * width)  # gather, add the position, drop out
    layers = [layer("embedding", Split.MATRIX, (tokens, width), ends, weights=table, kept=width)]
    for at in range(shape.layers):
        layers += _block(f"block.{at}", shape)
    layers.append(norm("norm", width, 2 * shape.hidden))
    layers.append(matrix("head", tokens, shape.hidden, shape.vocabulary, weights=0))
    graph = blocks_graph("transformer", [*layers, loss(tokens, shape.vocabulary)])
    graph.graph["ties"] = ((("embedding", "head"), ELEMENT_BYTES * table, ELEMENT_BYTES * table),)
    return graph


def blocks_graph(name: str, layers: list[Layer]) -> nx.DiGraph:
    """Return the graph of an embedding, blocks of BLOCK layers, and three layers behind them.

    Its edges are the chain, and the shortcuts around the first five and the last five layers of every block.
    """
    names, half = [one.name for one in layers], BLOCK // 2
    sizes = {one.name: one.output_bytes for one in layers}
    pairs = [*itertools.pairwise(names)]
    pairs += [(names[at - half], names[at]) for at in range(half, len(names) - 3, half)]
    return layer_graph(name, layers, [(one, other, sizes[one]) for one, other in pairs], ELEMENT_BYTES)


def layer(
    name: str,
    split: Split,
    sizes: tuple[int, int],
    work: Work,
    *,
    weights: int = 0,
    kept: int = 0,
    forms: tuple[int, ...] = FORMS,
    across: Across | None = None,
) -> Layer:
    """Return a layer of so many numbers taken and made, and of weights; ``kept`` are bytes."""
    taken, made = (ELEMENT_BYTES * size for size in sizes)
    macs = sum(one.macs for one in work.products)
    parameters = ELEMENT_BYTES * weights
    operator = name.rsplit(".", 1)[-1]
    return Layer(name, operator, split, parameters, taken, made, kept, macs, macs, forms, work=work, across=across)


def norm(name: str, width: int, weights: int) -> Layer:
    """Return a normalisation of so many numbers, which keeps its input."""
    moved = ELEMENT_BYTES * width
    return layer(name, Split.FOLLOW, (width, width), Work((), 1, moved, moved), weights=weights, kept=moved)


def matrix(name: str, tokens: int, inner: int, columns: int, *, weights: int, keeps: bool = True) -> Layer:
    """Return a product with weights, and a bias if these count it, which keeps its input or not."""
    taken, made = tokens * inner, tokens * columns
    product = Product(tokens, inner, columns, 1, True, ELEMENT_BYTES * taken, ELEMENT_BYTES * made)
    kept = ELEMENT_BYTES * taken * keeps
    return layer(name, Split.MATRIX, (taken, made), Work((product,)), weights=weights, kept=kept)


def shortcut(name: str, width: int, *, mask: bool) -> Layer:
    """Return a shortcut, two tensors in and one out, with dropout in front of it where there is a ``mask``."""
    moved = ELEMENT_BYTES * width
    work = Work((), 1, 2 * moved, moved + width * mask)
    return layer(name, Split.JOIN, (width, width), work, forms=ROWS_OR_WHOLE, kept=width * mask)


def loss(tokens: int, vocabulary: int) -> Layer:
    """Return the loss of so many tokens, which keeps the logits in 32 bits."""
    words = tokens * vocabulary
    read, written = (ELEMENT_BYTES * words * one for one in LOGITS)
    parts = Across(Axis.VOCABULARY, sent_bytes=SUMMED_BYTES * tokens)
    work, kept = Work((), 2, read, written), LOGIT_BYTES * words
    return layer("loss", Split.JOIN, (words, tokens), work, forms=ROWS_OR_WHOLE, kept=kept, across=parts)


def _core(name: str, shape: TransformerShape) -> Layer:
    """Scores, softmax with scale and mask, dropout, and the weighted sum of values, by heads."""
    tokens, each, heads = shape.sequence, shape.hidden // shape.heads, shape.heads
    pairs, width = heads * tokens**2, tokens * shape.hidden
    scores = Product(tokens, each, tokens, heads, False, 2 * ELEMENT_BYTES * width, ELEMENT_BYTES * pairs)
    read = ELEMENT_BYTES * (pairs + width)
    values = Product(tokens, tokens, each, heads, False, read, ELEMENT_BYTES * width)
    work = Work((scores, values), 2, 2 * ELEMENT_BYTES * pairs, 2 * ELEMENT_BYTES * pairs + pairs)
    kept = 2 * 3 * width + (2 + 1 + 2) * pairs
    parts = Across(Axis.CONTEXT, pieces=heads, sent_bytes=2 * ELEMENT_BYTES * width)
    return layer(name, Split.JOIN, (3 * width, width), work, kept=kept, across=parts)


def _block(name: str, shape: TransformerShape) -> list[Layer]:
    tokens, hidden, inner = shape.sequence, shape.hidden, 4 * shape.hidden
    width, wide = tokens * hidden, ELEMENT_BYTES * tokens * inner

    def biased(part: str, taken: int, made: int) -> Layer:
        return matrix(f"{name}.{part}", tokens, taken, made, weights=(taken + 1) * made)

    return [
        norm(f"{name}.norm1", width, 2 * hidden),
        biased("qkv", hidden, 3 * hidden),
        _core(f"{name}.core", shape),
        biased("projection", hidden, hidden),
        shortcut(f"{name}.add1", width, mask=True),
        norm(f"{name}.norm2", width, 2 * hidden),
        biased("fc1", hidden, inner),
        layer(f"{name}.gelu", Split.FOLLOW, (tokens * inner, tokens * inner), Work((), 1, wide, wide), kept=wide),
        biased("fc2", inner, hidden),
        shortcut(f"{name}.add2", width, mask=True),
    ]
