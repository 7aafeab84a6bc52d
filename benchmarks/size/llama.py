"""Llama-like models as layer graphs, as ``pipecut trace`` makes them of the library ``transformers``; no torch.

A block has 16 layers: a norm, the products for queries, keys and values, attention and its output, a shortcut, a
norm, the gated perceptron and its shortcut; before the blocks lies the embedding, behind them a norm and the head.

``benchmarks.size.scale`` plans them, cut between blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipecut.formulation.problem.cluster import Cluster, DeviceClass, Server
from pipecut.formulation.problem.constraints import Constraints, Goal, Recompute
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Layer, LayerGraph, Split
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link

ELEMENT_BYTES = 2
MICRO_BATCHES = 32
SAMPLES = 4
"""Of one micro-batch."""
ROWS_OR_WHOLE = (0, 1)
"""Forms of a norm over the hidden width: columns would cut through what it adds up."""
NO_CUT = ("*.self_attn.*", "*.add", "*.add:1", "*.post_attention_layernorm", "*.mlp.*")
"""Leaves a cut before every block, before the last norm, and before the head."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model; the defaults are those of Llama-7B. ``key_value`` is the width of keys and values."""

    blocks: int = 32
    hidden: int = 4096
    key_value: int = 4096
    inner: int = 11008
    heads: int = 32
    vocabulary: int = 32000
    sequence: int = 2048


def llama(shape: Shape = Shape()) -> LayerGraph:
    """Return the layer graph of a model of this shape, for one sequence."""
    rows = [_matrix("model.embed_tokens", "Embedding", shape, (shape.vocabulary, shape.hidden), taken=8)]
    edges: list[tuple[int, int, int]] = []
    for block in range(shape.blocks):
        at = len(rows)
        edges += [(one + at, other + at, _bytes(shape, width)) for one, other, width in _edges(shape)]
        rows += _block(f"model.layers.{block}", shape)
    last = len(rows)
    rows.append(_norm("model.norm", shape))
    rows.append(_matrix("lm_head", "Linear", shape, (shape.hidden, shape.vocabulary)))
    edges += [(last - 1, last, rows[last].input_bytes), (last, last + 1, rows[last].output_bytes)]
    return LayerGraph(f"llama of {shape.blocks} blocks", tuple(rows), tuple(edges), ELEMENT_BYTES)


def two_servers(
    graph: LayerGraph,
    memory_bytes: int,
    *,
    degrees: tuple[int, ...] = (),
    recompute: Recompute = Recompute.NEVER,
) -> Instance:
    """Return a model, cut between its blocks, on two servers of four A100 with so much memory, Adam in bf16."""
    card = DeviceClass("A100", memory_bytes=memory_bytes, flops_per_second=312 * 10**12)
    inside, between = Link(8 * 300 * 10**9, latency_ns=5_000), Link(200 * 10**9, latency_ns=10_000)
    servers = (Server("node0", card, 4, inside), Server("node1", card, 4, inside))
    training = Training(SAMPLES * MICRO_BATCHES, MICRO_BATCHES, ELEMENT_BYTES, optimizer_bytes_per_parameter=12)
    return Instance(
        training=training,
        cost=CostModel(),
        constraints=Constraints(memory=True, no_cut=NO_CUT, tensor_parallel_degrees=degrees, recompute=recompute),
        goals=(Goal.BOTTLENECK,),
        model=graph,
        cluster=Cluster.mesh("two servers of four A100", servers, between),
    )


def _bytes(shape: Shape, width: int) -> int:
    return ELEMENT_BYTES * shape.sequence * width


def _edges(shape: Shape) -> list[tuple[int, int, int]]:
    """Return the edges into a block's layers as (producer, consumer, width), layers counted from its first."""
    hidden, inner = shape.hidden, shape.inner
    within = [(0, 1), (0, 3), (0, 5), (7, 8), (8, 9), (9, 10), (9, 12), (14, 15), (8, 15)]
    rows = [(-1, 0, hidden), (-1, 8, hidden), *((one, other, hidden) for one, other in within)]
    rows += [(1, 2, hidden), (2, 6, hidden), (3, 4, shape.key_value), (4, 6, shape.key_value)]
    rows += [(5, 6, shape.key_value), (6, 7, hidden)]
    rows += [(10, 11, inner), (11, 13, inner), (12, 13, inner), (13, 14, inner)]
    return sorted(rows)


def _block(name: str, shape: Shape) -> list[Layer]:
    hidden, inner, narrow = shape.hidden, shape.inner, shape.key_value
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    square, into, out = (hidden, hidden), (hidden, inner), (inner, hidden)
    return [
        _norm(f"{name}.input_layernorm", shape),
        _matrix(f"{attention}.q_proj", "Linear", shape, square),
        _follow(f"{attention}.transpose", "transpose", shape, hidden),
        _matrix(f"{attention}.k_proj", "Linear", shape, (hidden, narrow), kept=False),
        _follow(f"{attention}.transpose:1", "transpose", shape, narrow),
        _matrix(f"{attention}.v_proj", "Linear", shape, (hidden, narrow), kept=False),
        _attention(f"{attention}.scaled_dot_product_attention", shape),
        _matrix(f"{attention}.o_proj", "Linear", shape, square, kept=False),
        _join(f"{name}.add", "add", shape, (2 * hidden, hidden)),
        _norm(f"{name}.post_attention_layernorm", shape),
        _matrix(f"{mlp}.gate_proj", "Linear", shape, into),
        _follow(f"{mlp}.act_fn", "SiLUActivation", shape, inner, kept=True),
        _matrix(f"{mlp}.up_proj", "Linear", shape, into, kept=False),
        _join(f"{mlp}.mul", "mul", shape, (2 * inner, inner), stash=_bytes(shape, 2 * inner)),
        _matrix(f"{mlp}.down_proj", "Linear", shape, out),
        _join(f"{name}.add:1", "add", shape, (2 * hidden, hidden)),
    ]


def _matrix(
    name: str, operator: str, shape: Shape, sizes: tuple[int, int], *, kept: bool = True, taken: int = 0
) -> Layer:
    """Return a product of (input, output) widths; of an embedding ``taken`` bytes are read for each token."""
    size, made = taken * shape.sequence or _bytes(shape, sizes[0]), _bytes(shape, sizes[1])
    macs = 0 if taken else shape.sequence * sizes[0] * sizes[1]
    weights = ELEMENT_BYTES * sizes[0] * sizes[1]
    return Layer(name, operator, Split.MATRIX, weights, size, made, size * kept, macs)


def _norm(name: str, shape: Shape) -> Layer:
    """Return a norm, which keeps its input, that in four bytes an element, and a factor for each token."""
    size = _bytes(shape, shape.hidden)
    stash = size + 2 * size + 4 * shape.sequence
    weights = ELEMENT_BYTES * shape.hidden
    return Layer(name, "LlamaRMSNorm", Split.JOIN, weights, size, size, stash, 0, allowed_forms=ROWS_OR_WHOLE)


def _attention(name: str, shape: Shape) -> Layer:
    """Return fused attention, which keeps its inputs and output, and four bytes for each head and token."""
    taken, made = _bytes(shape, shape.hidden + 2 * shape.key_value), _bytes(shape, shape.hidden)
    stash = taken + made + 4 * shape.heads * shape.sequence
    macs = 2 * shape.sequence**2 * shape.hidden
    return Layer(name, "scaled_dot_product_attention", Split.JOIN, 0, taken, made, stash, macs)


def _follow(name: str, operator: str, shape: Shape, width: int, *, kept: bool = False) -> Layer:
    size = _bytes(shape, width)
    return Layer(name, operator, Split.FOLLOW, 0, size, size, size * kept, 0)


def _join(name: str, operator: str, shape: Shape, widths: tuple[int, int], *, stash: int = 0) -> Layer:
    return Layer(name, operator, Split.JOIN, 0, _bytes(shape, widths[0]), _bytes(shape, widths[1]), stash, 0)
