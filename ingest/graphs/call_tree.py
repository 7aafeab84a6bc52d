"""The calls of a model's modules as a tree over its layers, and the blocks in it: what a model repeats.

Blocks are calls of two layers or more beside one another whose names differ in a number at most (``layers.0``,
``layers.1``; ``layer1``, ``layer2``; one module called again and again), of which two are of one class, and each
of which computes with what the one before it made. Experts, and branches of an Inception module, are not.

Blocks are looked for from the outside. A block that is itself a chain of blocks is opened (a stage of a ResNet or
a Swin transformer), unless more tensors cross some place inside it than its own ends: no residual block is cut.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import networkx as nx

from formulation.problem.layers import Split, layers_of
from ingest.graphs.module_calls import ModuleCall

_NUMBER = re.compile(r"\d+$")
_CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict"})
"""Classes that say nothing of what they hold."""


@dataclass(slots=True, eq=False)
class CallNode:
    """One call with the layers from ``first`` to ``stop``; ``children`` are the calls right inside it."""

    name: str
    operator: str
    first: int
    stop: int
    children: list[CallNode] = field(default_factory=list)

    def inside(self) -> Iterator[CallNode]:
        """Yield every call inside this one, outer ones first."""
        for child in self.children:
            yield child
            yield from child.inside()


def call_tree(graph: nx.DiGraph) -> CallNode:
    """Return the tree of a layer graph; its root holds all layers and has no name."""
    position = {name: index for index, name in enumerate(graph)}
    root = CallNode("", "", 0, len(position))
    path = [root]
    calls: Sequence[ModuleCall] = graph.graph.get("modules", ())
    for call in calls:
        node = CallNode(call.name, call.operator, position[call.first], position[call.last] + 1)
        while node.first >= path[-1].stop:
            path.pop()
        path[-1].children.append(node)
        path.append(node)
    return root


@dataclass(frozen=True, slots=True)
class ModelBlocks:
    """``found``: the blocks of a model in execution order; ``starts``: where it can be cut without cutting one."""

    found: tuple[CallNode, ...]
    starts: tuple[int, ...]


def blocks_of(graph: nx.DiGraph) -> ModelBlocks:
    """Find the blocks of a layer graph; none where it repeats nothing, or says nothing of its modules.

    Cost: layers and edges, once for each level of calls inside calls.
    """
    look, root = _Look(graph), call_tree(graph)
    found: list[CallNode] = []
    starts = set(look.starts(root, look.kinds(root), found))
    return ModelBlocks(tuple(found), tuple(sorted(starts - {0})) if found else ())


class _Look:
    """Tells which calls repeat one another, by their names, their classes, and what reads what."""

    def __init__(self, graph: nx.DiGraph) -> None:
        position = {name: index for index, name in enumerate(graph)}
        self._reads = [[position[one] for one in graph.predecessors(name)] for name in graph]
        self._products = [layer.split is Split.MATRIX for layer in layers_of(graph)]
        self._crossing = _crossing(self._reads)

    def kinds(self, node: CallNode) -> frozenset[str]:
        """Return the kinds of the blocks inside a call."""
        found: frozenset[str] = frozenset()
        grouped: set[str] = set()
        for group in self._groups(node):
            grouped |= {one.name for one in group}
            inside = [(one, self.kinds(one)) for one in group]
            if any(kinds for _, kinds in inside) and all(self._clean(one, kinds) for one, kinds in inside):
                found = found.union(*(kinds for _, kinds in inside))
            else:
                found |= {_kind(one) for one in group}
        return found.union(*(self.kinds(child) for child in node.children if child.name not in grouped))

    def starts(self, node: CallNode, kinds: frozenset[str], found: list[CallNode]) -> Iterator[int]:
        """Yield where the parts of a call start: its blocks, which ``found`` takes, other calls, and products."""
        behind = node.first
        for child in node.children:
            yield from self._loose(behind, child.first)
            yield child.first
            behind = child.stop
            if _kind(child) in kinds:
                found.append(child)
            elif any(_kind(one) in kinds for one in child.inside()):
                yield from self.starts(child, kinds, found)
        yield from self._loose(behind, node.stop)

    def _groups(self, node: CallNode) -> Iterator[list[CallNode]]:
        """Yield the calls right inside a call that repeat one another."""
        series: dict[str, list[CallNode]] = {}
        for child in node.children:
            if child.stop - child.first > 1:
                series.setdefault(_NUMBER.sub("", child.name), []).append(child)
        for group in series.values():
            most = Counter(one.operator for one in group).most_common(1)[0][1]
            if most > 1 and all(self._follows(*pair) for pair in itertools.pairwise(group)):
                yield group

    def _follows(self, one: CallNode, other: CallNode) -> bool:
        """Tell whether a call computes with what another one made."""
        reached = set(range(one.first, one.stop))
        for layer in range(one.stop, other.stop):
            if not reached.isdisjoint(self._reads[layer]):
                reached.add(layer)
        return not reached.isdisjoint(range(other.first, other.stop))

    def _clean(self, node: CallNode, kinds: frozenset[str]) -> bool:
        """Tell whether no more tensors cross the places inside a call than its ends."""
        most = max(self._crossing[node.first], self._crossing[node.stop])
        return not kinds or all(self._crossing[place] <= most for place in self.starts(node, kinds, []))

    def _loose(self, first: int, stop: int) -> Iterator[int]:
        """Yield the products with weights that stand between calls, such as a head that shares the embedding."""
        for layer in range(first, stop):
            if self._products[layer] and self._crossing[layer] <= self._crossing[first]:
                yield layer


def _kind(node: CallNode) -> str:
    """Return what is alike in alike blocks: the class, or the series of names where the class says nothing."""
    return _NUMBER.sub("", node.name) if node.operator in _CONTAINERS else f"class {node.operator}"


def _crossing(reads: Sequence[Sequence[int]]) -> list[int]:
    """Return for every place how many layers before it are read behind it."""
    last = list(range(len(reads)))
    for reader, producers in enumerate(reads):
        for producer in producers:
            last[producer] = max(last[producer], reader)
    change = [0] * (len(reads) + 2)
    for producer, reader in enumerate(last):
        change[producer + 1] += 1
        change[reader + 1] -= 1
    return list(itertools.accumulate(change))
