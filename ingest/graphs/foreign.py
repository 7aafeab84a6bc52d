"""One error for all foreign formats: every problem of a file, each with its place.

What every graph that is read from a file must keep: names once, edges between nodes, no cycle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import networkx as nx

SHOWN = 20
"""Problems that a message lists; the rest is counted."""
LONGEST = 60
"""Characters of a value that a message quotes."""


class FormatError(ValueError):
    """A file is not of the format that was expected; ``problems`` holds one readable sentence for each reason."""

    def __init__(self, path: Path, problems: Sequence[str]) -> None:
        self.path, self.problems = path, tuple(problems)
        more = len(self.problems) - SHOWN
        lines = [*self.problems[:SHOWN], *([f"... and {more} more"] if more > 0 else [])]
        super().__init__("\n".join(f"{path}{line}" for line in lines))

    def __reduce__(self) -> tuple[type[FormatError], tuple[Path, tuple[str, ...]]]:
        return type(self), (self.path, self.problems)


def quoted(value: object) -> str:
    """Show what stands in a file, at a bounded length."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > LONGEST:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


SHOWN_GRAPH_CHECKS = 8


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
    if len(circle) > SHOWN_GRAPH_CHECKS:
        circle[SHOWN_GRAPH_CHECKS - 1 :] = [f"… ({len(circle) - SHOWN_GRAPH_CHECKS + 1} more)"]
    raise ValueError(f"{what}: a cycle, {' -> '.join([*circle, circle[0]])}")


def check_reals(what: str, values: Iterable[float]) -> None:
    """Raise ValueError for a negative or infinite number, or none."""
    for value in values:
        if not 0 <= value < math.inf:
            raise ValueError(f"{what}: found {value!r}, expected a finite number, 0 or more")
