"""docs/formulation.md, "The numbers of an instance" and "Links and transfers", from what a user writes."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import ceil

import networkx as nx

from pipecut.formulation.problem.cluster import Server
from pipecut.formulation.problem.constraints import Constraints, Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Layer
from pipecut.formulation.problem.options import AllReduce, CostModel
from pipecut.formulation.problem.training import Training

Link = tuple[int, int]
"""Bandwidth in bits per second, latency in ns of a message."""


@dataclass(frozen=True)
class Numbers:
    """The numbers of an instance by layer and server; ``edges`` are (producer, consumer, bytes).

    ``copies`` by layer: e_l, and the weights, gradients, trained weights and optimiser state that it copies.
    """

    layers: list[Layer]
    weights: list[int]
    updated: list[int]
    gradients: list[int]
    optimizer: list[int]
    taken: list[int]
    made: list[int]
    stash: list[int]
    sent: list[int]
    edges: list[tuple[int, int, int]]
    copies: dict[int, tuple[int, tuple[int, ...]]]
    frozen: list[bool]
    cuts: set[int] | None
    activation_ratio: Fraction
    servers: list[Server]
    memory: list[int]
    links: dict[tuple[int, int], Link]
    training: Training
    cost: CostModel
    constraints: Constraints
    goals: tuple[Goal, ...]

    def matching(self, *globs: str) -> set[int]:
        """The layers that match one of the globs."""
        return {
            at
            for at, layer in enumerate(self.layers)
            for glob in globs
            if layer.name == glob or fnmatchcase(layer.name, glob)
        }

    @cached_property
    def again(self) -> set[int]:
        """The layers that a stage may compute again alone."""
        return self.matching(*self.constraints.recompute_layers)

    def sum_ns(self, size: Fraction | int, devices: int, link: Link | None) -> int:
        """Time to add a tensor of so many bytes over so many devices."""
        if devices == 1:
            return 0
        if self.cost.all_reduce is AllReduce.PLAIN:
            return transfer_ns(size, 1, link)
        return transfer_ns(Fraction(2 * (devices - 1), devices) * size, 2 * (devices - 1), link)

    def halves_ns(self, there: list[Fraction], devices: int, link: Link | None) -> int:
        """half() of one tensor or of two that are sent one after the other."""
        if devices == 1:
            return 0
        ring = self.cost.all_reduce is AllReduce.RING
        size, messages = (Fraction(devices - 1, devices), devices - 1) if ring else (Fraction(1, 2), 1)
        return transfer_ns(size * sum(there, Fraction(0)), messages * sum(one > 0 for one in there), link)


def transfer_ns(size: Fraction | int, messages: int, link: Link | None) -> int:
    """Time to move so many bytes in so many messages."""
    if size == 0 or link is None:
        return 0
    bandwidth, latency = link
    return ceil(Fraction(8 * 10**9) * size / bandwidth) + messages * latency


def slowest(links: list[Link]) -> Link | None:
    """The smallest bandwidth and the largest latency, each by itself."""
    if not links:
        return None
    return min(bandwidth for bandwidth, _ in links), max(latency for _, latency in links)


def numbers_of(instance: Instance) -> Numbers:
    """Read the graphs and options of an instance, and nothing that was worked out of them."""
    graph, training = instance.layer_graph, instance.training
    layers = [row["layer"] for _, row in graph.nodes(data=True)]
    place = {name: at for at, name in enumerate(graph.nodes)}
    size, chosen = graph.graph["element_bytes"], training.precision
    same, state = training.bytes_per_element, training.optimizer_bytes_per_parameter
    weight, gradient, activation, state, still = (*astuple(chosen),) if chosen else (same, same, same, state, None)
    still = weight if still is None else still
    trained = [row.parameter_bytes if row.trainable_bytes is None else row.trainable_bytes for row in layers]
    shared = [
        (sorted(place[name] for name in names), weights, gradients)
        for names, weights, gradients in graph.graph.get("ties", ())
    ]
    copies: dict[int, tuple[int, tuple[int, ...]]] = {}
    for users, weights, gradients in shared:
        for before, user in pairwise(users):
            earlier, sizes = copies.get(user, (before, (0, 0, 0, 0)))
            more = (
                ceil(Fraction(weight * gradients + still * (weights - gradients), size)),
                ceil(Fraction(gradient, size) * gradients),
                ceil(Fraction(weight, size) * gradients),
                state * ceil(Fraction(gradients, size)),
            )
            copies[user] = min(before, earlier), tuple(map(sum, zip(sizes, more, strict=True)))
    used = [
        (
            row.parameter_bytes + sum(weights for users, weights, _ in shared if at in users[1:]),
            one + sum(gradients for users, _, gradients in shared if at in users[1:]),
        )
        for at, (row, one) in enumerate(zip(layers, trained, strict=True))
    ]
    batch = Fraction(activation, size) * training.global_batch / training.micro_batches
    servers = [row["server"] for _, row in instance.cluster_graph.nodes(data=True) if "server" in row]
    kept = {server.name: 0 for server in servers}
    for reserve in instance.constraints.reserve:
        kept[reserve.server] += reserve.memory_bytes
    margin = instance.constraints.memory_margin
    return Numbers(
        layers=layers,
        weights=[
            ceil(Fraction(weight * one + still * (layer.parameter_bytes - one), size))
            for layer, one in zip(layers, trained, strict=True)
        ],
        updated=[ceil(Fraction(weight, size) * one) for one in trained],
        gradients=[ceil(Fraction(gradient, size) * one) for one in trained],
        optimizer=[state * ceil(Fraction(one, size)) for one in trained],
        taken=[ceil(batch * layer.input_bytes) for layer in layers],
        made=[ceil(batch * layer.output_bytes) for layer in layers],
        stash=[ceil(batch * layer.stash_bytes) for layer in layers],
        sent=[ceil(batch * layer.across.sent_bytes) if layer.across else 0 for layer in layers],
        edges=[(place[u], place[v], ceil(batch * size)) for u, v, size in graph.edges(data="bytes")],
        copies=copies,
        frozen=[weights > 0 and gradients == 0 for weights, gradients in used],
        cuts={place[name] for name in graph.graph["cuts"]} if "cuts" in graph.graph else None,
        activation_ratio=Fraction(activation, size),
        servers=servers,
        memory=[
            int(Fraction(server.device_class.memory_bytes - kept[server.name]) / (1 + margin))
            for server in servers
        ],
        links=_links(instance.cluster_graph, servers),
        training=training,
        cost=instance.cost,
        constraints=instance.constraints,
        goals=instance.goals,
    )


def _links(graph: nx.Graph, servers: list[Server]) -> dict[tuple[int, int], Link]:
    links: dict[tuple[int, int], Link] = {}
    for one, server in enumerate(servers):
        if server.link is not None:
            links[one, one] = server.link.bits_per_second, server.link.latency_ns
        for two, other in enumerate(servers):
            if one != two:
                links[one, two] = _between(graph, server.name, other.name)
    return links


def _between(graph: nx.Graph, one: str, other: str) -> Link:
    """The edge as drawn, or the mesh, or the widest path, of several of these the one with the least latency."""
    if graph.has_edge(one, other) or "mesh" in graph.graph:
        drawn = graph.edges[one, other]["link"] if graph.has_edge(one, other) else graph.graph["mesh"]
        return drawn.bits_per_second, drawn.latency_ns
    for width in sorted({link.bits_per_second for _, _, link in graph.edges(data="link")}, reverse=True):
        wide = nx.Graph()
        wide.add_nodes_from(graph.nodes)
        for u, v, link in graph.edges(data="link"):
            if link.bits_per_second >= width:
                wide.add_edge(u, v, latency=link.latency_ns)
        if nx.has_path(wide, one, other):
            return width, int(nx.dijkstra_path_length(wide, one, other, weight="latency"))
    raise LookupError(f"no path from {one} to {other}")
