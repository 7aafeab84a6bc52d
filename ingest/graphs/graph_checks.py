"""What every graph that is read from a file must keep: names once, edges between nodes, no cycle."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import networkx as nx

SHOWN = 8


def check_graph(what: str, names: Sequence[object], edges: Iterable[tuple[int, int]]) -> None:
    """Raise ValueError for a repeated name, an edge outside the nodes, or a cycle, which is named."""
    if len(set(names)) != len(names):
        raise ValueError(f"{what}: two nodes have the same name")
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(names)))
    for producer, consumer in edges:
        if not (0 <= producer < len(names) and 0 <= consumer < len(names)):
            raise ValueError(f"{what}: edge {producer} -> {consumer}, expected numbers below {len(names)}")
        graph.add_edge(producer, consumer)
    if nx.is_directed_acyclic_graph(graph):
        return
    circle = [str(names[node]) for node, _ in nx.find_cycle(graph)]
    if len(circle) > SHOWN:
        circle[SHOWN - 1 :] = [f"… ({len(circle) - SHOWN + 1} more)"]
    raise ValueError(f"{what}: a cycle, {' -> '.join([*circle, circle[0]])}")


def check_reals(what: str, values: Iterable[float]) -> None:
    """Raise ValueError for a negative or infinite number, or none."""
    for value in values:
        if not 0 <= value < math.inf:
            raise ValueError(f"{what}: found {value!r}, expected a finite number, 0 or more")
