"""Hypothesis strategies for small random instances, used by the tests of every room.

Sizes are chosen so that computation, synchronisation of weights, changes of layout and boundaries all take
times of the same order: instances where one of them always wins would let wrong formulas for the others pass.
"""

from __future__ import annotations

from fractions import Fraction

import networkx as nx
from hypothesis import strategies as st

from formulation.problem.cluster import DeviceClass, Server, cluster_graph
from formulation.problem.groups import Group
from formulation.problem.instance import Instance, build_instance
from formulation.problem.layers import FORMS, Layer, Split, layer_graph
from formulation.problem.modes import Mode
from formulation.problem.options import (
    AllReduce,
    Boundary,
    BoundaryCharge,
    Combine,
    CostModel,
    Count,
    Sharing,
    StageTime,
    Synchronisation,
    Training,
)
from formulation.problem.units import Link

CLASSES = (
    DeviceClass("slow", 6_000_000, 500_000_000),
    DeviceClass("middle", 11_000_000, 1_000_000_000),
    DeviceClass("fast", 24_000_000, 3_000_000_000),
)
RESTRICTED = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2))

tensor_bytes = st.one_of(st.integers(0, 9), st.integers(1_000, 100_000))
links = st.builds(
    Link, st.sampled_from([30_000_000, 100_000_000, 1_000_000_000]), st.sampled_from([0, 0, 7, 100_000])
)
cost_models = st.builds(
    CostModel,
    count=st.sampled_from(Count),
    flops_per_mac=st.sampled_from([1, 2]),
    backward_factor=st.sampled_from([Fraction(2), Fraction(0), Fraction(1, 3)]),
    all_reduce=st.sampled_from(AllReduce),
    stage_time=st.sampled_from(StageTime),
    boundary=st.sampled_from(Boundary),
    boundary_charge=st.sampled_from(BoundaryCharge),
    combine=st.sampled_from(Combine),
    sharing=st.sampled_from(Sharing),
    synchronisation=st.sampled_from([*[Synchronisation.CHARGED] * 3, Synchronisation.OVERLAPPED]),
)


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    """Up to 3 micro-batches of up to 2 samples, in 2 or 4 bytes an element."""
    micro_batches = draw(st.integers(1, 3))
    return Training(
        global_batch=micro_batches * draw(st.integers(1, 2)),
        micro_batches=micro_batches,
        bytes_per_element=draw(st.sampled_from([2, 4])),
    )


@st.composite
def layer_graphs(
    draw: st.DrawFn, max_layers: int = 5, splits: tuple[Split, ...] = tuple(Split), places: bool = False
) -> nx.DiGraph:
    """Chains and skips: FOLLOW with and without weights, JOIN, restricted forms, layers without a producer.

    With ``places`` every other model can be cut at some layers only.
    """
    layers: list[Layer] = []
    edges: list[tuple[str, str, int]] = []
    for index in range(draw(st.integers(1, max_layers))):
        split = draw(st.sampled_from(splits))
        layers.append(_layer(draw, f"layer{index}", split))
        for producer in _producers(draw, index, split):
            edges.append((f"layer{producer}", f"layer{index}", draw(tensor_bytes)))
    cuts = None
    if places and draw(st.booleans()):
        cuts = sorted(draw(st.sets(st.sampled_from([layer.name for layer in layers[1:]])))) if layers[1:] else []
    return layer_graph("random", layers, edges, cuts=cuts)


def _layer(draw: st.DrawFn, name: str, split: Split) -> Layer:
    matrix, follow = split is Split.MATRIX, split is Split.FOLLOW
    weights = draw(tensor_bytes if matrix else st.one_of(st.just(0), tensor_bytes))
    return Layer(
        name=name,
        operator="any",
        split=split,
        parameter_bytes=weights,
        input_bytes=draw(tensor_bytes),
        output_bytes=draw(tensor_bytes),
        stash_bytes=draw(tensor_bytes),
        macs=draw(st.integers(0, 1_000_000)) if matrix else 0,
        torchstat_flops=draw(st.integers(0, 1_000_000)),
        trainable_bytes=draw(st.sampled_from([None, None, None, 0, weights // 2])),
        allowed_forms=FORMS if follow else draw(st.one_of(st.just(FORMS), st.sampled_from(RESTRICTED))),
    )


def _producers(draw: st.DrawFn, index: int, split: Split) -> set[int]:
    if index == 0 or draw(st.integers(0, 9)) == 0:
        return set()
    any_before = st.integers(0, index - 1)
    if split is Split.FOLLOW:
        return {draw(st.one_of(st.just(index - 1), any_before))}
    return {index - 1} | draw(st.sets(any_before, max_size=2))


@st.composite
def cluster_graphs(draw: st.DrawFn, max_devices: int = 4, max_servers: int = 3) -> nx.Graph:
    """One to three servers of one to three classes, in a full mesh or around a switch."""
    servers: list[Server] = []
    left = max_devices
    for index in range(draw(st.integers(1, min(max_servers, max_devices)))):
        if left == 0:
            break
        devices = draw(st.integers(1, min(3, left)))
        link = draw(links) if devices > 1 else None
        servers.append(Server(f"server{index}", draw(st.sampled_from(CLASSES)), devices, link))
        left -= devices
    names = [server.name for server in servers]
    if draw(st.booleans()):
        return cluster_graph("star", servers, [(name, "switch", draw(links)) for name in names], ["switch"])
    pairs = [(one, other) for at, one in enumerate(names) for other in names[:at]]
    return cluster_graph("mesh", servers, [(*pair, draw(links)) for pair in pairs])


@st.composite
def flat_clusters(draw: st.DrawFn, max_devices: int = 4) -> nx.Graph:
    """One server: one class of devices and one link."""
    devices = draw(st.integers(1, max_devices))
    return cluster_graph("flat", [Server("server0", draw(st.sampled_from(CLASSES)), devices, draw(links))], [])


@st.composite
def instances(
    draw: st.DrawFn,
    layers: st.SearchStrategy[nx.DiGraph] | None = None,
    clusters: st.SearchStrategy[nx.Graph] | None = None,
    costs: st.SearchStrategy[CostModel] = cost_models,
) -> Instance:
    """Small random instances; every part can be replaced."""
    return build_instance(
        draw(layers if layers is not None else layer_graphs()),
        draw(clusters if clusters is not None else cluster_graphs()),
        draw(trainings()),
        draw(costs),
    )


@st.composite
def groups(draw: st.DrawFn, instance: Instance) -> Group:
    """Draw any device group of an instance's cluster, on the line or not."""
    counts = [draw(st.integers(0, server.devices)) for server in instance.servers]
    if not any(counts):
        counts[draw(st.integers(0, len(counts) - 1))] = 1
    replicas = draw(st.sampled_from([one for one in range(1, sum(counts) + 1) if sum(counts) % one == 0]))
    held = tuple((server, count) for server, count in enumerate(counts) if count)
    return Group(held, Mode(replicas, draw(st.booleans())))
