"""Links between servers that share none: the widest path, and of several the one with the least latency."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given

from pipecut.formulation.problem.cluster import Cluster, Server, cluster_graph, servers_of
from pipecut.formulation.problem.units import Link
from tests.examples import UNIT
from tests.formulation.page.plans import rings

WIDE, NARROW = 100, 10
SHORT = [("a", "e", Link(NARROW)), ("e", "d", Link(NARROW))]


@pytest.mark.parametrize(("over_b", "over_c"), [(1, 9), (9, 1)])
@pytest.mark.parametrize("more", [[], SHORT])
def test_of_two_widest_paths_the_quicker_one_is_taken(
    over_b: int, over_c: int, more: list[tuple[str, str, Link]]
) -> None:
    """A square: from a to d over b, or over c; a narrow path may be quicker still."""
    by_b, by_c = Link(WIDE, over_b), Link(WIDE, over_c)
    square = [("a", "b", by_b), ("b", "d", by_b), ("a", "c", by_c), ("c", "d", by_c)]
    names = sorted({end for one, other, _ in (*square, *more) for end in (one, other)})
    matrix = Cluster.of(cluster_graph("square", [Server(name, UNIT, 1) for name in names], [*square, *more])).links
    assert matrix[names.index("a")][names.index("d")] == Link(WIDE, 2)
    assert matrix[names.index("d")][names.index("a")] == Link(WIDE, 2)


@given(rings())
def test_every_path_is_looked_at(graph: nx.Graph) -> None:
    names = [server.name for server in servers_of(graph)]
    for one, row in zip(names, Cluster.of(graph).links, strict=True):
        for other, found in zip(names, row, strict=True):
            if one != other and not graph.has_edge(one, other):
                paths = [list(pairwise(path)) for path in nx.all_simple_paths(graph, one, other)]
                links = [[graph.edges[pair]["link"] for pair in path] for path in paths]
                best = max((min(x.bits_per_second for x in row), -sum(x.latency_ns for x in row)) for row in links)
                assert found == Link(best[0], -best[1])


def test_links_that_are_all_drawn_are_taken_as_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No path is sought then, also where one over a switch or a third server were wider."""
    monkeypatch.setattr(nx, "maximum_spanning_tree", lambda *_: pytest.fail("a path was sought"))
    drawn = [
        ("a", "b", Link(1)),
        ("a", "c", Link(2)),
        ("b", "c", Link(3)),
        ("a", "x", Link(9)),
        ("b", "x", Link(9)),
    ]
    cluster = Cluster.of(cluster_graph("mesh", [Server(name, UNIT, 1) for name in "abc"], drawn, ["x"]))
    one, two, three = Link(1), Link(2), Link(3)
    assert cluster.links == ((None, one, two), (one, None, three), (two, three, None))
