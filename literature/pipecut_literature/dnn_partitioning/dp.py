"""dnn-partitioning's dynamic programme for the largest load (Tarnawski et al., NeurIPS 2020; ``throughput-dp``).

A device takes a *contiguous* set: the difference of two ideals (downsets of the forward graph), with the backward
nodes of the same colour classes. With K accelerators and L host processors::

    dp[l, k](I)    = min over J subset of I of  max( dp[l-1, k](J), cpu(I - J) ),  max( dp[l, k-1](J), acc(I - J) )
    cpu(S)         = sum of cpu times of S                                               (no transfers)
    acc(S)         = sum of accelerator times of S
                   + sum of transfer(u) over nodes u, inside or outside of S, whose output crosses the border of S
                     infinite if S is too large for the device or holds a node that it does not support

A node pays once for each device, however many edges it has, and backward nodes pay like forward ones. The answer
is dp[L, K] of all nodes. :class:`~pipecut_literature.dnn_partitioning.graph.ContiguousSets` restricts the ideals
to those of a path (the paper's linearisation) or of a path of biconnected blocks (its comparison with PipeDream).

Cost: ideals^2 pairs, for each the distinct groups of nodes that one output joins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut_literature.common.downsets import NothingFitsError, bits, downsets, masks
from pipecut_literature.dnn_partitioning.file import PlacementProblem
from pipecut_literature.dnn_partitioning.graph import ContiguousSets, Graph, prepared

Reals = NDArray[np.float64]
IDEALS = 5_000
"""Ideals that are tried unless the caller says otherwise: 25 million pairs, under a GB (the program: 60,000)."""


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What one device does: identifiers of nodes, and its load in seconds."""

    accelerator: bool
    nodes: tuple[int, ...]
    load_s: float


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """The least largest load, one plan that has it, and how many ideals and pairs of ideals were searched."""

    max_load_s: float
    shares: tuple[DeviceShare, ...]
    ideals: int
    pairs: int


@dataclass(frozen=True, slots=True)
class _Pairs:
    """For each ideal: the ideals inside it, and the load of the difference on an accelerator and on a host."""

    inside: list[NDArray[np.int64]]
    accelerator: list[Reals]
    cpu: list[Reals]


def place(
    problem: PlacementProblem, method: ContiguousSets = ContiguousSets.IDEALS, limit: int = IDEALS
) -> PlacementPlan:
    """Place a graph as the program does.

    Raises TooManyDownsetsError beyond ``limit`` ideals and NothingFitsError. Which of several
    equally good plans is returned is not the program's choice.
    """
    graph = prepared(problem, method)
    classes = [node.colour for node in graph.nodes if not node.backward]
    found = downsets(_required(graph, classes), limit)
    ideals = sorted(found, key=int.bit_count)
    pairs = _pairs(problem, graph, classes, ideals)
    best, choice = _solve(problem, pairs)
    if np.isinf(best[problem.cpus, problem.accelerators, -1]):
        raise NothingFitsError("no placement fits: capacity or support of the accelerators, and too few hosts")
    shares = []
    for accelerator, members in _walk(problem, ideals, pairs, choice):
        colours = {classes[place] for place in bits(members)}
        inside = sorted(n for node in graph.nodes if node.colour in colours for n in node.members)
        names = tuple(problem.nodes[n].identifier for n in inside)
        shares.append(DeviceShare(accelerator, names, load(problem, inside, accelerator)))
    return PlacementPlan(
        float(best[problem.cpus, problem.accelerators, -1]),
        tuple(shares),
        len(ideals),
        sum(len(row) for row in pairs.inside),
    )


def load(problem: PlacementProblem, members: Iterable[int], accelerator: bool) -> float:
    """Return the load in seconds of one device with these nodes (by position), from the definition alone."""
    inside = set(members)
    if not accelerator:
        return sum(problem.nodes[node].cpu_s for node in inside)
    crossing = {a for a, b in problem.edges if (a in inside) != (b in inside)}
    work = sum(problem.nodes[node].accelerator_s for node in inside)
    return work + sum(problem.nodes[node].transfer_s for node in crossing)


def _required(graph: Graph, classes: list[int]) -> list[int]:
    place = {node.number: classes.index(node.colour) for node in graph.nodes if not node.backward}
    return masks(len(classes), [(place[b], place[a]) for a, b in graph.forward_edges()])


def _pairs(problem: PlacementProblem, graph: Graph, classes: list[int], ideals: list[int]) -> _Pairs:
    """Weigh every pair of nested ideals, one larger ideal at a time."""
    where = {member: classes.index(node.colour) for node in graph.nodes for member in node.members}
    weights = np.zeros((4, len(classes)))
    for position, node in enumerate(problem.nodes):
        row = node.accelerator_s, node.cpu_s, node.size_bytes, float(not node.on_accelerator)
        weights[:, where[position]] += row
    member = np.array([[one >> place & 1 for place in range(len(classes))] for one in ideals])
    totals = member @ weights.T
    joined, sizes, prices = _joined(problem, where, len(classes))
    touched = member @ joined
    pairs = _Pairs([], [], [])
    for j, ideal in enumerate(ideals):
        inside = np.array([k for k in range(j + 1) if ideals[k] & ~ideal == 0])
        work, cpu, space, unsupported = (totals[j] - totals[inside]).T
        count = touched[j] - touched[inside]
        crossing = ((count > 0) & (count < sizes)) @ prices
        allowed = (space <= problem.capacity_bytes) & (unsupported < 0.5)
        pairs.inside.append(inside)
        pairs.accelerator.append(np.where(allowed, work + crossing, np.inf))
        pairs.cpu.append(cpu)
    return pairs


def _joined(
    problem: PlacementProblem, where: dict[int, int], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], Reals]:
    """Return the groups of classes that one output joins (as columns), their sizes, and what a cut costs.

    An output crosses the border of a set when the set holds some, but not all, of its producer and consumers.
    """
    groups: dict[int, int] = {}
    for producer, consumer in problem.edges:
        groups[producer] = groups.get(producer, 1 << where[producer]) | 1 << where[consumer]
    prices: dict[int, float] = {}
    for producer, group in groups.items():
        if group.bit_count() > 1:
            prices[group] = prices.get(group, 0.0) + problem.nodes[producer].transfer_s
    columns = np.array([[group >> place & 1 for group in prices] for place in range(size)])
    return columns.reshape(size, len(prices)), columns.sum(axis=0), np.array(list(prices.values()))


def _solve(problem: PlacementProblem, pairs: _Pairs) -> tuple[Reals, NDArray[np.int64]]:
    """Fill the table; ``choice[l, k, I]`` is (1 for an accelerator, index of the ideal before)."""
    size = len(pairs.inside)
    best = np.full((problem.cpus + 1, problem.accelerators + 1, size), np.inf)
    choice = np.zeros((problem.cpus + 1, problem.accelerators + 1, size, 2), dtype=np.int64)
    for hosts in range(problem.cpus + 1):
        for accelerators in range(problem.accelerators + 1):
            table = best[hosts, accelerators]
            table[0] = 0.0
            options = []
            if hosts:
                options.append((0, best[hosts - 1, accelerators], pairs.cpu))
            if accelerators:
                options.append((1, best[hosts, accelerators - 1], pairs.accelerator))
            for kind, before, loads in options:
                for j in range(1, size):
                    found = np.maximum(before[pairs.inside[j]], loads[j])
                    at = int(found.argmin())
                    if found[at] < table[j]:
                        table[j] = found[at]
                        choice[hosts, accelerators, j] = kind, pairs.inside[j][at]
    return best, choice


def _walk(
    problem: PlacementProblem, ideals: list[int], pairs: _Pairs, choice: NDArray[np.int64]
) -> list[tuple[bool, int]]:
    """Follow the choices back from all nodes; devices that stay empty are left out."""
    hosts, accelerators, current = problem.cpus, problem.accelerators, len(ideals) - 1
    found = []
    while current:
        kind, before = (int(value) for value in choice[hosts, accelerators, current])
        if before != current:
            found.append((bool(kind), ideals[current] & ~ideals[before]))
        hosts, accelerators, current = hosts - (1 - kind), accelerators - kind, before
    return found[::-1]
