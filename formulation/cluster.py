"""The cluster graph: servers, their devices, and the links between them.

A *cluster graph* is a ``networkx.Graph``. Nodes are server names with the attribute ``server`` (a
:class:`Server`), or names of switches without it. Every edge carries ``link`` (a :class:`Link`). Two servers
that share no edge talk along the path with the largest bandwidth, at its slowest link's bandwidth and the sum
of its latencies; so a full mesh is drawn with edges between servers, and racks with a tree of switches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import networkx as nx

from formulation.units import Link


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """One type of accelerator: memory in bytes, peak speed in FLOP/s, price in millionths per hour."""

    name: str
    memory_bytes: int
    flops_per_second: int
    price_per_hour: int = 0

    def __post_init__(self) -> None:
        if self.memory_bytes <= 0 or self.flops_per_second <= 0:
            raise ValueError(f"device class {self.name}: memory and peak speed must be above 0")
        if self.price_per_hour < 0:
            raise ValueError(f"device class {self.name}: price {self.price_per_hour}, expected 0 or more")


@dataclass(frozen=True, slots=True)
class Server:
    """A host with ``devices`` accelerators of one class; ``link`` joins every two of them."""

    name: str
    device_class: DeviceClass
    devices: int
    link: Link | None = None

    def __post_init__(self) -> None:
        if self.devices <= 0:
            raise ValueError(f"server {self.name}: {self.devices} devices, expected 1 or more")
        if self.devices > 1 and self.link is None:
            raise ValueError(f"server {self.name}: {self.devices} devices and no link between them")


def cluster_graph(
    name: str, servers: Iterable[Server], links: Iterable[tuple[str, str, Link]], switches: Iterable[str] = ()
) -> nx.Graph:
    """Build a checked cluster graph. Servers keep their order: it is the order of the line of devices.

    Raises ValueError naming repeated servers, unknown ends of links, and servers that cannot reach each other.
    """
    graph = nx.Graph(name=name)
    problems: list[str] = []
    for server in servers:
        if server.name in graph:
            problems.append(f"server {server.name} appears twice")
        graph.add_node(server.name, server=server)
    graph.add_nodes_from(switches)
    for one, other, link in links:
        unknown = [end for end in (one, other) if end not in graph]
        if unknown or one == other:
            problems.append(f"link {one} - {other}: no such pair of servers or switches")
        else:
            graph.add_edge(one, other, link=link)
    if not servers_of(graph):
        problems.append("no server")
    elif not problems and not nx.is_connected(graph):
        problems.append("some servers cannot reach each other; add a link between them")
    if problems:
        raise ValueError(f"cluster {name}: " + "; ".join(problems))
    return graph


def servers_of(graph: nx.Graph) -> tuple[Server, ...]:
    """Return the servers in the order in which they were added."""
    return tuple(row["server"] for _, row in graph.nodes(data=True) if "server" in row)


def link_matrix(graph: nx.Graph) -> tuple[tuple[Link | None, ...], ...]:
    """Return the link between every two servers; on the diagonal the link inside a server (None: one device).

    Each pair takes its widest path (largest smallest bandwidth), which the maximum spanning tree contains;
    a direct edge is always taken as drawn. Cost: one spanning tree and one traversal for each server.
    """
    servers = servers_of(graph)
    tree = nx.maximum_spanning_tree(_weighted(graph))
    rows: list[tuple[Link | None, ...]] = []
    for one in servers:
        reached = _links_from(tree, one.name)
        row: list[Link | None] = []
        for other in servers:
            if one is other:
                row.append(one.link)
            elif graph.has_edge(one.name, other.name):
                row.append(graph.edges[one.name, other.name]["link"])
            else:
                row.append(reached[other.name])
        rows.append(tuple(row))
    return tuple(rows)


def _weighted(graph: nx.Graph) -> nx.Graph:
    copy = nx.Graph()
    copy.add_nodes_from(graph)
    for one, other, link in graph.edges(data="link"):
        copy.add_edge(one, other, link=link, weight=link.bits_per_second)
    return copy


def _links_from(tree: nx.Graph, start: str) -> dict[str, Link]:
    reached: dict[str, Link] = {}
    for before, after in nx.bfs_edges(tree, start):
        step: Link = tree.edges[before, after]["link"]
        sofar = reached.get(before)
        reached[after] = (
            step
            if sofar is None
            else Link(min(sofar.bits_per_second, step.bits_per_second), sofar.latency_ns + step.latency_ns)
        )
    return reached
