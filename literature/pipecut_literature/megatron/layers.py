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
from collections.abc import Iterator
from dataclasses import replace

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
    width, words = shape.sequence * shape.hidden, shape.sequence * shape.vocabulary
    table = shape.vocabulary * shape.hidden
    ends = Work((), 2, 3 * width, 8 * width)  # gather, add the position, drop out
    layers = [layer("embedding", Split.MATRIX, (shape.sequence, width), ends, weights=table, kept=width)]
    for at in range(shape.layers):
        layers += _block(f"block.{at}", shape)
    layers.append(_norm("norm", shape))
    head = Product(shape.sequence, shape.hidden, shape.vocabulary, 1, True, 2 * width, 2 * words)
    layers.append(layer("head", Split.MATRIX, (width, words), Work((head,)), kept=2 * width))
    read, written = (ELEMENT_BYTES * words * one for one in LOGITS)
    loss = layer(
        "loss",
        Split.JOIN,
        (words, shape.sequence),
        Work((), 2, read, written),
        forms=ROWS_OR_WHOLE,
        kept=LOGIT_BYTES * words,
    )
    layers.append(replace(loss, across=Across(Axis.VOCABULARY, sent_bytes=SUMMED_BYTES * shape.sequence)))
    sizes = {layer.name: layer.output_bytes for layer in layers}
    edges = [(one, other, sizes[one]) for one, other in _edges([layer.name for layer in layers])]
    graph = layer_graph("transformer", layers, edges, ELEMENT_BYTES)
    graph.graph["ties"] = ((("embedding", "head"), ELEMENT_BYTES * table, ELEMENT_BYTES * table),)
    return graph


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


def _norm(name: str, shape: TransformerShape) -> Layer:
    width = shape.sequence * shape.hidden
    work = Work((), 1, ELEMENT_BYTES * width, ELEMENT_BYTES * width)
    return layer(name, Split.FOLLOW, (width, width), work, weights=2 * shape.hidden, kept=2 * width)


def _matrix(name: str, shape: TransformerShape, inner: int, columns: int) -> Layer:
    """Return a product with weights and a bias, which keeps its input."""
    taken, made = shape.sequence * inner, shape.sequence * columns
    product = Product(shape.sequence, inner, columns, 1, True, ELEMENT_BYTES * taken, ELEMENT_BYTES * made)
    weights = (inner + 1) * columns
    return layer(name, Split.MATRIX, (taken, made), Work((product,)), weights=weights, kept=2 * taken)


def _shortcut(name: str, shape: TransformerShape) -> Layer:
    """Dropout and shortcut: two tensors in, one and a mask out."""
    width = shape.sequence * shape.hidden
    work = Work((), 1, 2 * ELEMENT_BYTES * width, ELEMENT_BYTES * width + width)
    return layer(name, Split.JOIN, (width, width), work, forms=ROWS_OR_WHOLE, kept=width)


def _core(name: str, shape: TransformerShape) -> Layer:
    """Scores, softmax with scale and mask, dropout, and the weighted sum of values, by heads."""
    each, pairs = shape.hidden // shape.heads, shape.heads * shape.sequence**2
    width = shape.sequence * shape.hidden
    scores = Product(
        shape.sequence, each, shape.sequence, shape.heads, False, 2 * ELEMENT_BYTES * width, ELEMENT_BYTES * pairs
    )
    values = Product(
        shape.sequence,
        shape.sequence,
        each,
        shape.heads,
        False,
        ELEMENT_BYTES * (pairs + width),
        ELEMENT_BYTES * width,
    )
    work = Work((scores, values), 2, 2 * ELEMENT_BYTES * pairs, 2 * ELEMENT_BYTES * pairs + pairs)
    kept = 2 * 3 * width + (2 + 1 + 2) * pairs
    heads = Across(Axis.CONTEXT, pieces=shape.heads, sent_bytes=2 * ELEMENT_BYTES * width)
    return layer(name, Split.JOIN, (3 * width, width), work, kept=kept, across=heads)


def _block(name: str, shape: TransformerShape) -> list[Layer]:
    hidden, inner = shape.hidden, 4 * shape.hidden
    wide = ELEMENT_BYTES * shape.sequence * inner
    sizes = shape.sequence * inner, shape.sequence * inner
    return [
        _norm(f"{name}.norm1", shape),
        _matrix(f"{name}.qkv", shape, hidden, 3 * hidden),
        _core(f"{name}.core", shape),
        _matrix(f"{name}.projection", shape, hidden, hidden),
        _shortcut(f"{name}.add1", shape),
        _norm(f"{name}.norm2", shape),
        _matrix(f"{name}.fc1", shape, hidden, inner),
        layer(f"{name}.gelu", Split.FOLLOW, sizes, Work((), 1, wide, wide), kept=wide),
        _matrix(f"{name}.fc2", shape, inner, hidden),
        _shortcut(f"{name}.add2", shape),
    ]


def _edges(names: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the chain, and the shortcuts around the first five and the last five layers of every block."""
    yield from itertools.pairwise(names)
    half = BLOCK // 2
    for at in range(half, len(names) - 3, half):
        yield names[at - half], names[at]
