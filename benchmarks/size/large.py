"""Models and clusters as large as people have them, for ``benchmarks.size.scale``.

Llama of 70 and 405 billion parameters on servers of eight H100, three types of cards in 192 servers, and
chains of many operators.

Llama's layers take Megatron's forms inside a replica: column- and row-parallel pairs, else whole.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from benchmarks.size.llama import ELEMENT_BYTES, NO_CUT, Shape, llama
from pipecut.formulation.constraints.layers.forms import FormLimit
from pipecut.formulation.problem.cluster import Cluster, DeviceClass, Server
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Layer, LayerGraph, Split
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link

GB, TERA = 10**9, 10**12
A100 = DeviceClass("A100", 80 * GB, 312 * TERA)
A40 = DeviceClass("A40", 48 * GB, 150 * TERA)
V100 = DeviceClass("V100", 32 * GB, 125 * TERA)
H100 = DeviceClass("H100", 80 * GB, 989 * TERA)
NVLINK = Link(8 * 450 * GB, latency_ns=5_000)
SLOWER = {A100: Link(8 * 300 * GB, latency_ns=5_000), A40: Link(8 * 32 * GB, latency_ns=5_000)}
"""Links inside servers of these cards."""
BETWEEN = Link(3_200 * GB, latency_ns=10_000)
LLAMA_70B = Shape(80, 8192, 1024, 28672, 64, 32000, 4096)
LLAMA_405B = Shape(126, 16384, 1024, 53248, 128, 128256, 8192)
DEGREES = (1, 2, 4, 8)
FORMS = (
    FormLimit("model.embed_tokens", (1,)),
    FormLimit("*norm", (1,)),
    *(FormLimit(f"*.{one}_proj", (2,)) for one in ("q", "k", "v")),
    FormLimit("*.o_proj", (1,)),
    FormLimit("*.scaled_dot_product_attention", (2,)),
    FormLimit("*.add*", (1,)),
    FormLimit("*.gate_proj", (2,)),
    FormLimit("*.up_proj", (2,)),
    FormLimit("*.mul", (2,)),
    FormLimit("*.down_proj", (1,)),
    FormLimit("lm_head", (2,)),
)


def every_form(instance: Instance) -> Instance:
    """Return the instance with every form that a layer can have, not only those of Megatron."""
    return replace(instance, constraints=replace(instance.constraints, forms=()))


def h100(shape: Shape, servers: int, training: Training, sizes: tuple[int, ...], goal: Goal) -> Instance:
    """Return a Llama on so many servers of eight H100, with memory, any replicas, and recomputation allowed."""
    rows = [Server(f"node{at}", H100, 8, NVLINK) for at in range(servers)]
    return Instance(
        training=training,
        cost=CostModel(),
        constraints=_constraints(sizes),
        goals=(goal,),
        model=llama(shape),
        cluster=Cluster.mesh(f"{servers} servers of eight H100", rows, BETWEEN),
    )


def llama_70b(goal: Goal, numbers: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)) -> Instance:
    """Return Llama-70B on 8 servers: steps of 512 sequences in one of these numbers of micro-batches."""
    training = Training(512, numbers[0], ELEMENT_BYTES, 12, micro_batch_choices=numbers)
    return h100(LLAMA_70B, 8, training, (), goal)


def llama_405b() -> Instance:
    """Return Llama-405B on 2,048 servers; a stage has 1, 2 or 4 devices, or up to 64 whole servers."""
    training = Training(2_048, 16, ELEMENT_BYTES, 12)
    return h100(LLAMA_405B, 2_048, training, (1, 2, 4, *range(8, 520, 8)), Goal.BOTTLENECK)


def three_types(servers: int, placement: Placement, sizes: tuple[int, ...]) -> Instance:
    """Return Llama-70B on so many servers each of eight A100, A40 and V100, all joined alike, with memory."""
    rows = [
        Server(f"{card.name}-{at}", card, 8, SLOWER.get(card, SLOWER[A100]))
        for card in (A100, A40, V100)
        for at in range(servers)
    ]
    return Instance(
        training=Training(1_024, 256, ELEMENT_BYTES, 12),
        cost=CostModel(),
        constraints=_constraints(sizes, placement),
        goals=(Goal.BOTTLENECK,),
        model=llama(LLAMA_70B),
        cluster=Cluster.mesh(f"three types of {servers} servers", rows, Link(800 * GB, latency_ns=10_000)),
    )


def many_operators(layers: int) -> Instance:
    """Return a chain of so many products of different widths, on eight servers of eight A100, cut anywhere."""
    rows, edges = list[Layer](), list[tuple[int, int, int]]()
    widths = [1024 + 64 * (at * 37 % 16) for at in range(layers + 1)]
    for at, (taken, made) in enumerate(pairwise(widths)):
        size, out = (2 * 512 * width for width in (taken, made))
        rows.append(
            Layer(f"layer{at}", "Linear", Split.MATRIX, 2 * taken * made, size, out, size, 512 * taken * made)
        )
        edges += [(at - 1, at, size)] if at else []
    servers = [Server(f"node{at}", A100, 8, SLOWER[A100]) for at in range(8)]
    return Instance(
        training=Training(512, 64, ELEMENT_BYTES, 12),
        cost=CostModel(),
        constraints=Constraints(),
        goals=(Goal.BOTTLENECK,),
        model=LayerGraph(f"{layers} operators", tuple(rows), tuple(edges), ELEMENT_BYTES),
        cluster=Cluster.mesh("eight servers of eight A100", servers, BETWEEN),
    )


def _constraints(sizes: tuple[int, ...], placement: Placement = Placement.LINE) -> Constraints:
    free = placement is Placement.FREE
    return Constraints(
        memory=True,
        no_cut=NO_CUT,
        forms=FORMS,
        tensor_parallel_degrees=DEGREES,
        devices_per_stage=sizes,
        recompute=Recompute.ALLOWED,
        placement=placement,
        max_servers=1 if free else None,
    )
