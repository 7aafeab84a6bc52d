"""Instances made by hand: chains for arithmetic in one's head, and VGG16 layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import networkx as nx

from pipecut.formulation.predictor.curves import Measured
from pipecut.formulation.problem.cluster import Cluster, DeviceClass, Server, Wiring, cluster_graph
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import FORMS, Layer, LayerGraph, Split, layer_graph
from pipecut.formulation.problem.options import CostModel, Samples
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link

GIGA = 1_000_000_000
UNIT = DeviceClass("unit", 1 << 40, GIGA)
"""One FLOP takes 1 ns."""
BYTE_LINK = Link(8 * GIGA)
"""One byte takes 1 ns."""
TURING = DeviceClass("RTX 2080 Ti", 11 * GIGA, 13_400 * GIGA)
PLAIN = CostModel(flops_per_mac=1, samples=Samples.FRACTIONS)
"""For arithmetic in one's head: n devices each do an nth, whatever a micro-batch has."""


def matrix(
    name: str, macs: int = 0, weights: int = 0, *, taken: int = 0, made: int = 0, allowed: tuple[int, ...] = FORMS
) -> Layer:
    """A layer with a form of its own; under PLAIN its forward pass takes ``macs`` ns on a UNIT device."""
    return Layer(name, "matrix", Split.MATRIX, weights, taken, made, 0, macs, 0, allowed)


def follow(name: str, weights: int = 0) -> Layer:
    """A layer that keeps the layout of its producer."""
    return Layer(name, "follow", Split.FOLLOW, weights, 0, 0, 0, 0)


def join(name: str, allowed: tuple[int, ...] = FORMS) -> Layer:
    """A layer that brings several inputs together."""
    return Layer(name, "join", Split.JOIN, 0, 0, 0, 0, 0, 0, allowed)


def chain(layers: Sequence[Layer], sizes: Sequence[int]) -> nx.DiGraph:
    """A chain with the given bytes on its edges; each layer makes at least what it sends."""
    rows = [
        replace(layer, output_bytes=max(layer.output_bytes, size))
        for layer, size in zip(layers, (*sizes, 0), strict=True)
    ]
    names = [layer.name for layer in rows]
    return layer_graph("chain", rows, zip(names, names[1:], sizes, strict=False))


def mesh(*devices: int, inside: Link = BYTE_LINK, between: Link = BYTE_LINK, kind: DeviceClass = UNIT) -> nx.Graph:
    """A full mesh of servers s0, s1, ... of one class, with so many devices each."""
    servers = [Server(f"s{at}", kind, count, inside if count > 1 else None) for at, count in enumerate(devices)]
    pairs = [(f"s{one}", f"s{other}", between) for one in range(len(servers)) for other in range(one)]
    return cluster_graph("mesh", servers, pairs)


def instance_of(
    layers: nx.DiGraph, cluster: nx.Graph, cost: CostModel = PLAIN, training: Training | None = None
) -> Instance:
    """An instance of one sample, if no training is given."""
    return build_instance(layers, cluster, training or Training(global_batch=1), cost)


def on_servers(instance: Instance, servers: Sequence[Server]) -> Instance:
    """The same instance with other devices on its servers, which keep their names and links."""
    return replace(instance, cluster=replace(instance.cluster, servers=tuple(servers)))


def joined(instance: Instance, links: Sequence[Sequence[Link | None]]) -> Instance:
    """The same instance with a link of its own between every two servers, and (on the diagonal) inside each."""
    servers = tuple(replace(server, link=links[at][at]) for at, server in enumerate(instance.servers))
    names = tuple(server.name for server in servers)
    pairs = ((one, other) for one in range(len(names)) for other in range(one))
    drawn = tuple((names[one], names[other], link) for one, other in pairs if (link := links[one][other]))
    return replace(instance, cluster=Cluster(instance.cluster.name, servers, Wiring(names, (), drawn)))


def times_a(instance: Instance, factor: int) -> Instance:
    """The same instance with all its times, bytes and latencies multiplied, after they were rounded.

    One sample is what a micro-batch was, and times are measured ones, so that nothing is rounded again.
    """
    by_class = (instance.device_classes, instance.forward_ns, instance.backward_ns)
    layers = tuple(
        replace(
            layer,
            parameter_bytes=factor * instance.parameter_bytes[at],
            trainable_bytes=factor * instance.gradient_bytes[at],
            input_bytes=factor * instance.input_bytes[at],
            output_bytes=factor * instance.output_bytes[at],
            stash_bytes=factor * instance.stash_bytes[at],
            measured=tuple(
                Measured(one.name, 1, factor * forward[at], factor * backward[at])
                for one, forward, backward in zip(*by_class, strict=True)
            ),
        )
        for at, layer in enumerate(instance.layers)
    )
    edges = tuple((edge.producer, edge.consumer, factor * edge.size_bytes) for edge in instance.edges)
    count, size = instance.training.micro_batches, instance.training.bytes_per_element
    slower = [
        [link and replace(link, latency_ns=factor * link.latency_ns) for link in row] for row in instance.links
    ]
    return replace(
        joined(instance, slower),
        model=LayerGraph(instance.name, layers, edges, size),
        training=replace(instance.training, global_batch=count),
    )


def vgg16() -> nx.DiGraph:
    """VGG16 of torchvision on 224 x 224 pixels: 31 features, flatten, 7 of the classifier."""
    layers: list[Layer] = []
    channels, side, elements = 3, 224, 3 * 224 * 224
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if width == 0:
            side //= 2
            layers.append(_row(len(layers), "pool", 0, elements, elements // 4, 0))
        else:
            made, weights = width * side * side, 9 * channels * width
            layers.append(_row(len(layers), "conv", weights + width, elements, made, weights * side * side))
            layers.append(_row(len(layers), "relu", 0, made, made, 0))
            channels = width
        elements = layers[-1].output_bytes // 4
    layers.append(_row(len(layers), "flatten", 0, elements, elements, 0))
    for taken, made in ((25088, 4096), (4096, 4096), (4096, 1000)):
        layers.append(_row(len(layers), "fc", taken * made + made, taken, made, taken * made))
        if made == 4096:
            layers += [
                _row(len(layers) + more, name, 0, made, made, 0) for more, name in enumerate(("relu", "drop"))
            ]
    names = [layer.name for layer in layers]
    sizes = [layer.output_bytes for layer in layers]
    return layer_graph("vgg16", layers, zip(names, names[1:], sizes, strict=False))


def _row(index: int, operator: str, parameters: int, taken: int, made: int, macs: int) -> Layer:
    split = Split.MATRIX if operator in ("conv", "fc") else Split.FOLLOW
    return Layer(f"{operator}{index}", operator, split, 4 * parameters, 4 * taken, 4 * made, 4 * taken, macs)
