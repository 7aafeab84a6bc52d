"""Least latency through a network: values of suffixes from behind, of gaps from the front, and the least path.

Level by level of devices taken, min-plus in numpy: O(arcs).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipecut.formulation.costs.tables import Times
from pipecut.solvers.dynamic.iteration_time.network import Arcs, Network

INFINITE = 1 << 60


@dataclass(frozen=True, slots=True, eq=False)
class LatencyValues:
    """Least cost of paths, INFINITE or near where there is none.

    ``suffix`` and ``gap``: from a vertex to the end; ``total``: of the best path, None if there is none.
    """

    network: Network
    suffix: Times
    gap: Times
    total: int | None


def values(network: Network) -> LatencyValues:
    """Find the least cost from every vertex to the end."""
    suffix = np.full(len(network.suffixes), INFINITE)
    gap = np.full(len(network.gaps), INFINITE)
    gap[network.sinks()] = 0
    for level in range(len(network.stages.levels) - 1):
        _relax(network.stages, level, suffix, gap)
        _relax(network.bridges, level, gap, suffix)
    sources = network.sources()
    best = int(suffix[sources].min()) if len(sources) else INFINITE
    return LatencyValues(network, suffix, gap, best if best < INFINITE // 2 else None)


def through(found: LatencyValues) -> tuple[Times, Times]:
    """Return for every stage and every bridge the least cost of a whole path through it."""
    network = found.network
    suffix = np.full(len(network.suffixes), INFINITE)
    gap = np.full(len(network.gaps), INFINITE)
    suffix[network.sources()] = 0
    for level in reversed(range(len(network.stages.levels) - 1)):
        _relax_back(network.bridges, level, gap, suffix)
        _relax_back(network.stages, level, suffix, gap)
    stages, bridges = network.stages, network.bridges
    return (
        suffix[stages.head] + stages.cost + found.gap[stages.tail],
        gap[bridges.head] + bridges.cost + found.suffix[bridges.tail],
    )


def least_path(found: LatencyValues) -> list[int]:
    """Return the stages (arc numbers) of a path of least cost, from the front. Raises LookupError if none is."""
    network = found.network
    if found.total is None:
        raise LookupError("no path leads through the network")
    sources = network.sources()
    vertex = int(sources[np.argmin(found.suffix[sources])])
    ends = set(network.sinks().tolist())
    path: list[int] = []
    while True:
        path.append(_leading(network.stages, vertex, found.gap))
        gap = int(network.stages.tail[path[-1]])
        if gap in ends:
            return path
        vertex = int(network.bridges.tail[_leading(network.bridges, gap, found.suffix)])


def _leading(arcs: Arcs, head: int, behind: Times) -> int:
    own = np.flatnonzero(arcs.head == head)
    return int(own[np.argmin(arcs.cost[own] + behind[arcs.tail[own]])])


def _relax(arcs: Arcs, level: int, value: Times, behind: Times) -> None:
    own = slice(arcs.levels[level], arcs.levels[level + 1])
    np.minimum.at(value, arcs.head[own], behind[arcs.tail[own]] + arcs.cost[own])


def _relax_back(arcs: Arcs, level: int, value: Times, before: Times) -> None:
    own = slice(arcs.levels[level], arcs.levels[level + 1])
    np.minimum.at(before, arcs.tail[own], value[arcs.head[own]] + arcs.cost[own])
