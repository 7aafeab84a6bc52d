"""The cluster graph: servers, their devices, and the links between them.

A *cluster graph* is a ``networkx.Graph``. Nodes are server names with the attribute ``server`` (a
:class:`Server`), or names of switches without it. Every edge carries ``link`` (a :class:`Link`). Two servers
that share no edge talk along the path with the largest bandwidth (of several the one with the least latency), at
its slowest link's bandwidth and the sum of its latencies; so racks are drawn with a tree of switches. A full mesh
is one link for every two servers that share no edge, the attribute ``mesh`` of the graph: thousands of servers
would make millions of edges.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

import networkx as nx

from pipecut.formulation.problem.units import Link, slowest_of


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """One type of accelerator: memory in bytes, peak speed in FLOP/s, price in millionths per hour.

    ``host_link`` joins each device to the memory of its host (None: not known, and not used).
    ``memory_bytes_per_second`` is the bandwidth of its memory, for a roofline (0: not known, moving bytes is
    free).
    """

    name: str
    memory_bytes: int
    flops_per_second: int
    price_per_hour: int = 0
    host_link: Link | None = None
    memory_bytes_per_second: int = 0

    def __post_init__(self) -> None:
        if self.memory_bytes_per_second < 0:
            raise ValueError(
                f"device class {self.name}: memory bandwidth {self.memory_bytes_per_second}, expected 0 or more"
            )
        if self.memory_bytes <= 0 or self.flops_per_second <= 0:
            raise ValueError(f"device class {self.name}: memory and peak speed must be above 0")
        if self.price_per_hour < 0:
            raise ValueError(f"device class {self.name}: price {self.price_per_hour}, expected 0 or more")


@dataclass(frozen=True, slots=True)
class Server:
    """A host with ``devices`` accelerators of one class; ``link`` joins every two of them.

    ``adapters``: how many transfers to other servers at once have the whole bandwidth of the link to them; its
    devices share them (0: not known, every transfer has it).
    """

    name: str
    device_class: DeviceClass
    devices: int
    link: Link | None = None
    adapters: int = 0

    def __post_init__(self) -> None:
        if self.devices <= 0:
            raise ValueError(f"server {self.name}: {self.devices} devices, expected 1 or more")
        if self.devices > 1 and self.link is None:
            raise ValueError(f"server {self.name}: {self.devices} devices and no link between them")
        if not 0 <= self.adapters <= self.devices:
            raise ValueError(
                f"server {self.name}: {self.adapters} adapters for {self.devices} devices; give several of one"
                " device as one adapter, with the bandwidth of all of them"
            )

    def lanes(self, devices: int) -> int:
        """Return how many adapters so many of its devices have: their share, rounded down, and one at least."""
        return max(1, devices * self.adapters // self.devices)


def cluster_graph(
    name: str,
    servers: Iterable[Server],
    links: Iterable[tuple[str, str, Link]],
    switches: Iterable[str] = (),
    mesh: Link | None = None,
) -> nx.Graph:
    """Build a checked cluster graph. Servers keep their order: it is the order of the line of devices.

    ``mesh`` joins every two servers between which no link is drawn.

    Raises ValueError naming repeated servers, unknown ends of links, and servers that cannot reach each other.
    """
    graph = nx.Graph(name=name) if mesh is None else nx.Graph(name=name, mesh=mesh)
    problems: list[str] = []
    for server in servers:
        if server.name in graph:
            problems.append(f"server {server.name} appears twice")
        graph.add_node(server.name, server=server)
    graph.add_nodes_from(switches)
    drawn = list(links)
    nodes = set(graph)
    for one, other, _ in drawn:
        if one not in nodes or other not in nodes or one == other:
            problems.append(f"link {one} - {other}: no such pair of servers or switches")
    if not problems:
        graph.add_edges_from((one, other, {"link": link}) for one, other, link in drawn)
    problems += _unreached(graph) if not problems else []
    if problems:
        raise ValueError(f"cluster {name}: " + "; ".join(problems))
    return graph


def _unreached(graph: nx.Graph) -> list[str]:
    if not servers_of(graph):
        return ["no server"]
    return (
        []
        if "mesh" in graph.graph or nx.is_connected(graph)
        else ["some servers cannot reach each other; add a link between them"]
    )


def servers_of(graph: nx.Graph) -> tuple[Server, ...]:
    """Return the servers in the order in which they were added."""
    return tuple(row["server"] for _, row in graph.nodes(data=True) if "server" in row)


@dataclass(frozen=True, slots=True)
class Wiring:
    """How servers are joined, as drawn: their names in line order, switches, and links (one, other, link).

    ``mesh`` is the link between every two servers between which none is drawn (None: paths are sought).
    ``between[v][w]`` is the link between two servers (None: a server and itself), derived from what is drawn, and
    ``slowest`` what bounds all of them (None: one server). Each pair takes its widest path (largest smallest
    bandwidth) and of several the one with the least sum of latencies; a direct link is always taken as drawn.
    Raises ValueError for a link to something unknown, and where two servers cannot reach each other.
    Cost: one spanning tree, and one traversal for each server; where links go round in circles also one search for
    each server and bandwidth; where every pair has a link, none of these; under a mesh a row for each server.
    """

    names: tuple[str, ...]
    switches: tuple[str, ...]
    drawn: tuple[tuple[str, str, Link], ...]
    mesh: Link | None = None
    between: tuple[tuple[Link | None, ...], ...] = field(init=False, repr=False, compare=False)
    slowest: Link | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        graph, known = self.graph(), {*self.names, *self.switches}
        if len(known) < len(self.names) + len(self.switches) or len(graph) > len(known):
            raise ValueError("links join servers and switches that are named once each")
        if not self.names or not (self.mesh or nx.is_connected(graph)):
            raise ValueError("some servers cannot reach each other; add a link between them")
        between = _meshed(graph, self.names, self.mesh) if self.mesh else _between(graph, self.names)
        object.__setattr__(self, "between", between)
        # Most links are one and the same object: thousands of servers have millions of pairs.
        found = {id(link): link for row in between for link in row}
        object.__setattr__(self, "slowest", slowest_of(found.values()))

    def graph(self) -> nx.Graph:
        """Return the servers and switches as a graph of names; edges have ``link``, ``weight``, ``latency``."""
        graph = nx.Graph()
        graph.add_nodes_from((*self.names, *self.switches))
        graph.add_edges_from(
            (one, other, {"link": link, "weight": link.bits_per_second, "latency": link.latency_ns})
            for one, other, link in self.drawn
        )
        return graph


Links = tuple[Link | None, Link | None, tuple[Link | None, Link | None] | None]
_Known = dict[tuple[tuple[tuple[int, int], ...], int, int], Links]
_Crossed = dict[tuple[tuple[int, ...], tuple[int, ...]], Link | None]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster graph that cannot change, as an instance keeps it: :meth:`of` copies a networkx graph.

    ``links[v][w]`` is the link between two servers, on the diagonal that inside a server (None: one device);
    ``slowest`` bounds all of them; ``ends`` are the devices of the line up to each server, its own among them. All
    are derived from what is drawn. ``known`` keeps what instances of it have in common, by devices of servers,
    degree and grid: the links between replicas, inside them, and along the axes of a grid; ``crossed`` the slowest
    links between some servers and others. Raises ValueError where servers and wiring name different servers.
    """

    name: str
    servers: tuple[Server, ...]
    wiring: Wiring
    links: tuple[tuple[Link | None, ...], ...] = field(init=False, repr=False, compare=False)
    slowest: Link | None = field(init=False, repr=False, compare=False)
    ends: tuple[int, ...] = field(init=False, repr=False, compare=False)
    known: _Known = field(default_factory=dict, init=False, repr=False, compare=False)
    crossed: _Crossed = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (names := tuple(server.name for server in self.servers)) != self.wiring.names:
            raise ValueError(f"cluster {self.name}: servers {names}, but links between {self.wiring.names}")
        rows = zip(self.servers, self.wiring.between, strict=True)
        full = tuple((*row[:at], server.link, *row[at + 1 :]) for at, (server, row) in enumerate(rows))
        object.__setattr__(self, "links", full)
        ends = itertools.accumulate(server.devices for server in self.servers)
        object.__setattr__(self, "ends", tuple(ends))
        inside = {server.link for server in self.servers}
        object.__setattr__(self, "slowest", slowest_of([self.wiring.slowest, *inside]))

    @classmethod
    def of(cls, graph: nx.Graph) -> Cluster:
        """Return a copy of a cluster graph, checked again. Raises ValueError as :func:`cluster_graph` does."""
        name, servers = str(graph.graph.get("name", "")), servers_of(graph)
        switches = tuple(node for node, row in graph.nodes(data=True) if "server" not in row)
        drawn = tuple(graph.edges(data="link"))
        mesh = graph.graph.get("mesh")
        cluster_graph(name, servers, drawn, switches, mesh)
        return cls(name, servers, Wiring(tuple(server.name for server in servers), switches, drawn, mesh))

    @classmethod
    def mesh(cls, name: str, servers: Iterable[Server], between: Link) -> Cluster:
        """Return a cluster in which the same link joins every two servers; their order is that of the line."""
        return cls.of(cluster_graph(name, servers, (), mesh=between))

    def graph(self) -> nx.Graph:
        """Return a new networkx graph of this cluster."""
        return cluster_graph(self.name, self.servers, self.wiring.drawn, self.wiring.switches, self.wiring.mesh)


def _meshed(graph: nx.Graph, names: tuple[str, ...], mesh: Link) -> tuple[tuple[Link | None, ...], ...]:
    """Return the links of a mesh: rows of the same link but for the server itself, and what is drawn."""
    place, rows = {name: at for at, name in enumerate(names)}, list[tuple[Link | None, ...]]()
    for at, one in enumerate(names):
        drawn = {place[other]: row["link"] for other, row in graph.adj[one].items() if other in place}
        row: list[Link | None] = [mesh] * len(names)
        for other, link in (drawn | {at: None}).items():
            row[other] = link
        rows.append(tuple(row))
    return tuple(rows)


def _between(graph: nx.Graph, names: tuple[str, ...]) -> tuple[tuple[Link | None, ...], ...]:
    switches = set(graph).difference(names)
    if all(len(graph.adj[one]) - len(switches.intersection(graph.adj[one])) == len(names) - 1 for one in names):
        # Every link is drawn, half a million among a thousand servers: no path is sought.
        drawn = ({other: row["link"] for other, row in graph.adj[one].items()} for one in names)
        return tuple(tuple(map(row.get, names)) for row in drawn)
    tree = nx.maximum_spanning_tree(graph)
    circles = graph.number_of_edges() > tree.number_of_edges()
    rows: list[tuple[Link | None, ...]] = []
    for one in names:
        reached = _links_from(tree, one)
        if circles:
            far = {
                name: reached[name].bits_per_second for name in names if name != one and name not in graph.adj[one]
            }
            reached |= _quickest(graph, one, far)
        reached |= {other: row["link"] for other, row in graph.adj[one].items()}
        rows.append(tuple(None if one == other else reached[other] for other in names))
    return tuple(rows)


def _quickest(graph: nx.Graph, start: str, widths: dict[str, int]) -> dict[str, Link]:
    """Return the links along paths of these widths, the largest that there are, with the least latency."""
    found: dict[str, Link] = {}
    for width in set(widths.values()):
        wide = nx.subgraph_view(
            graph, filter_edge=lambda one, other, width=width: graph.edges[one, other]["weight"] >= width
        )
        latencies = nx.single_source_dijkstra_path_length(wide, start, weight="latency")
        found |= {name: Link(width, int(latencies[name])) for name, bits in widths.items() if bits == width}
    return found


def _links_from(tree: nx.Graph, start: str) -> dict[str, Link]:
    """Return the links along the paths of a tree. Of a maximum spanning tree every path is a widest one."""
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
