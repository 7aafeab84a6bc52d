"""How dnn-partitioning's program shrinks a graph before its dynamic programme (``throughput-dp/dp.cpp``).

The steps, each a function here, in the program's order: one node for each colour class, forward and backward
apart; with ``PIPEDREAM``, everything that starts an edge of one biconnected block in one class; forward twins for
classes that are only backward; cycles of the forward graph in one class; idle forward nodes with one neighbour
into its class; with ``LINEAR`` and ``PIPEDREAM``, a path through all forward nodes.

That path is one depth-first topological order among many, and the value of the plan depends on it. So numbers and
order of nodes are kept as the program has them, hash tables included
(:func:`hash_order`), except one: where a colour class belongs to two
biconnected blocks, which number survives follows the program's search.

The order in which a C++ ``std::unordered_map<int, …>`` of GNU's standard library is walked.

The standard leaves this order open, and dnn-partitioning's program lets it decide in which order independent
nodes are lined up; its published results depend on it, so it is reproduced. The rule: a key belongs to bucket
``key mod buckets``; a bucket used for the first time goes to the front of the walk, a key to the front of its
bucket; when the keys outnumber the buckets, all keys move, in the order of the walk, to the next larger table.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import networkx as nx

from pipecut_literature.dnn_partitioning.file import PlacementProblem

TABLE_SIZES = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933)
"""Numbers of buckets of a growing table, observed: each is the first prime of the library above twice the last."""


def hash_order(keys: Iterable[int]) -> list[int]:
    """Return the keys, each once, in the order of a walk after they were inserted one by one.

    Raises ValueError beyond the largest known table. Cost: linear, growth included.
    """
    sizes = iter(TABLE_SIZES)
    buckets: dict[int, list[int]] = {}
    size = 0
    for count, key in enumerate(dict.fromkeys(keys)):
        if count == size:
            size = next(sizes, 0)
            if not size:
                raise ValueError(f"{count + 1} keys, expected at most {TABLE_SIZES[-1]}")
            walked, buckets = _walk(buckets), {}
            for one in walked:
                buckets.setdefault(one % size, []).append(one)
        buckets.setdefault(key % size, []).append(key)
    return _walk(buckets)


def _walk(buckets: dict[int, list[int]]) -> list[int]:
    return [key for bucket in reversed(buckets.values()) for key in reversed(bucket)]


IDLE_S = 1e-9
"""A node that takes less than this is idle; the program writes 1e-6 and counts in ms."""
NO_COLOUR = 2**31 - 1 - 12_345_678
"""Nodes without a colour class get the numbers below this one."""
TWIN = 100_000
"""Forward twins of backward nodes get the free numbers from this one on."""
_BERT_24, _GNMT = frozenset({4, 37}), frozenset({2, 100, 40, 137, 46, 142})
SKIPPED_SOURCES: Mapping[int, frozenset[int]] = {32: _BERT_24, 64: _BERT_24, 96: _GNMT, 192: _GNMT}
"""By number of nodes (BERT-24, GNMT): classes whose outgoing edges the program leaves out of the blocks."""


class ContiguousSets(enum.Enum):
    """Which contiguous sets the program tries: all ideals, pieces of one path, pieces of a path of blocks."""

    IDEALS = "ideals"
    LINEAR = "linear"
    PIPEDREAM = "pipedream"


@dataclass(frozen=True, slots=True)
class Node:
    """A contracted node: its number and colour class, and the nodes of the problem (by position) inside it."""

    number: int
    colour: int
    backward: bool
    cpu_s: float
    accelerator_s: float
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in the program's order; edges by number, each pair once and sorted, artificial ones apart."""

    nodes: tuple[Node, ...]
    artificial: tuple[tuple[int, int], ...]
    true: tuple[tuple[int, int], ...]

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """All edges in the order in which the program walks them."""
        return self.artificial + self.true

    def forward_edges(self) -> list[tuple[int, int]]:
        """Return the edges between forward nodes."""
        forward = {node.number for node in self.nodes if not node.backward}
        return [edge for edge in self.edges if forward.issuperset(edge)]


def prepared(problem: PlacementProblem, method: ContiguousSets) -> Graph:
    """Run all steps that come before the dynamic programme. Raises ValueError for more than 172,933 nodes."""
    graph = contracted(original(problem))
    if method is ContiguousSets.PIPEDREAM:
        skipped = SKIPPED_SOURCES.get(len(problem.nodes), frozenset())
        graph = contracted(with_blocks_merged(graph, skipped))
    graph = contracted(with_cycles_merged(with_twins(graph)))
    while (smaller := with_idle_merged(graph)) is not None:
        graph = contracted(smaller)
    return graph if method is ContiguousSets.IDEALS else lined_up(graph)


def original(problem: PlacementProblem) -> Graph:
    """Return the graph of the file, its nodes numbered by position and each with a colour class."""
    fresh = itertools.count(NO_COLOUR - 1, -1)
    colours = (next(fresh) if node.colour is None else node.colour for node in problem.nodes)
    nodes = tuple(
        Node(position, colour, node.backward, node.cpu_s, node.accelerator_s, (position,))
        for position, (node, colour) in enumerate(zip(problem.nodes, colours, strict=True))
    )
    return Graph(nodes, (), problem.edges)


def contracted(graph: Graph) -> Graph:
    """Merge the nodes of each colour class: one forward node with its number, one backward with a new number."""
    colours = sorted({node.colour for node in graph.nodes})
    backward = {colour: colours[-1] + 1 + place for place, colour in enumerate(colours)}
    number = {node.number: backward[node.colour] if node.backward else node.colour for node in graph.nodes}
    inside: dict[int, list[Node]] = {}
    for node in graph.nodes:
        inside.setdefault(number[node.number], []).append(node)
    nodes = tuple(
        Node(
            one,
            inside[one][0].colour,
            inside[one][0].backward,
            sum(node.cpu_s for node in inside[one]),
            sum(node.accelerator_s for node in inside[one]),
            tuple(member for node in inside[one] for member in node.members),
        )
        for one in hash_order(inside)
    )

    def moved(edges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        return tuple(sorted({(number[a], number[b]) for a, b in edges if number[a] != number[b]}))

    return Graph(nodes, moved(graph.artificial), moved(graph.true))


class _Classes:
    """Union-find that keeps the name of the second class, as the program's does."""

    def __init__(self, names: Iterable[int]) -> None:
        self.parent = {name: name for name in names}

    def find(self, name: int) -> int:
        while self.parent[name] != name:
            name = self.parent[name]
        return name

    def join(self, names: Iterable[int]) -> None:
        for one, other in itertools.pairwise(names):
            self.parent[self.find(one)] = self.find(other)


def _recoloured(graph: Graph, groups: Iterable[Iterable[int]]) -> Graph:
    """Give the colour classes of each group one name."""
    classes = _Classes(node.colour for node in graph.nodes)
    for group in groups:
        classes.join(group)
    return replace(graph, nodes=tuple(replace(node, colour=classes.find(node.colour)) for node in graph.nodes))


def with_blocks_merged(graph: Graph, skipped: frozenset[int]) -> Graph:
    """Merge, as PipeDream would, the classes of all nodes where an edge of one biconnected block starts."""
    tails: dict[frozenset[int], set[int]] = {}
    for source, target in graph.edges:
        if source not in skipped:
            tails.setdefault(frozenset((source, target)), set()).add(source)
    undirected = nx.Graph([(min(pair), max(pair)) for pair in tails])
    blocks = _Classes(node.number for node in graph.nodes)
    for block in nx.biconnected_component_edges(undirected):
        blocks.join(sorted(set().union(*(tails[frozenset(edge)] for edge in block))))
    groups: dict[int, list[int]] = {}
    for node in graph.nodes:
        groups.setdefault(blocks.find(node.number), []).append(node.colour)
    return _recoloured(graph, groups.values())


def with_twins(graph: Graph) -> Graph:
    """Give each class that is only backward an empty forward node, with its edges mirrored."""
    forward = {node.colour: node.number for node in graph.nodes if not node.backward}
    backward = {node.number: node.colour for node in graph.nodes if node.backward}
    orphans = {number for number, colour in backward.items() if colour not in forward}
    taken = {node.number for node in graph.nodes}
    free = (number for number in itertools.count(TWIN) if number not in taken)
    twins = []
    for number in hash_order(number for number in backward if number in orphans):
        twins.append(Node(next(free), backward[number], False, 0.0, 0.0, ()))
        forward[backward[number]] = twins[-1].number
    mirrored = tuple(
        (forward[backward[b]], forward[backward[a]])
        for a, b in graph.edges
        if a in backward and b in backward and not orphans.isdisjoint((a, b))
    )
    return Graph(graph.nodes + tuple(twins), graph.artificial + mirrored, graph.true)


def with_cycles_merged(graph: Graph) -> Graph:
    """Merge the classes of forward nodes that lie on a common cycle."""
    components = nx.strongly_connected_components(nx.DiGraph(graph.forward_edges()))
    forward = [node for node in graph.nodes if not node.backward]
    groups = ([node.colour for node in forward if node.number in cycle] for cycle in components)
    return _recoloured(graph, groups)


def with_idle_merged(graph: Graph) -> Graph | None:
    """Merge the first idle forward node that has one neighbour, a forward one; None if there is none."""
    nodes = {node.number: node for node in graph.nodes}
    beside: dict[int, list[int]] = {number: [] for number in nodes}
    for source, target in graph.edges:
        beside[target].append(source)
        beside[source].append(target)
    work: dict[int, float] = {}
    for node in graph.nodes:
        if node.backward:
            work[node.colour] = work.get(node.colour, 0.0) + node.cpu_s + node.accelerator_s
    for node in graph.nodes:
        busy = node.backward or max(node.cpu_s, node.accelerator_s, work.get(node.colour, 0.0)) >= IDLE_S
        if not busy and len(beside[node.number]) == 1 and not nodes[beside[node.number][0]].backward:
            return _recoloured(graph, [(node.colour, nodes[beside[node.number][0]].colour)])
    return None


def lined_up(graph: Graph) -> Graph:
    """Add edges that make the forward nodes a path, in a depth-first topological order (last found, first out)."""
    edges = graph.forward_edges()
    waiting = {node.number: 0 for node in graph.nodes if not node.backward}
    targets: dict[int, list[int]] = {number: [] for number in waiting}
    for source, target in edges:
        waiting[target] += 1
        targets[source].append(target)
    ready = [number for number, count in waiting.items() if count == 0]
    order: list[int] = []
    while ready:
        order.append(ready.pop())
        for target in targets[order[-1]]:
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    return replace(graph, artificial=graph.artificial + tuple(itertools.pairwise(order)))
