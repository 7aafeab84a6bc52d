"""Seats on a line of devices: which groups stages may have, which of these are alike, and what joins neighbours.

A *seat* is a number of devices from some place of the line on. Seats whose devices stand in alike servers in the
same way have the same kinds of groups, one for each mode; so a cluster of alike servers has few seats that differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipecut.formulation.costs.times import activation_ns, gradient_ns
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, line
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.modes import modes
from pipecut.formulation.problem.shares import server_classes
from pipecut.formulation.problem.units import Link
from pipecut.solvers.reduce.sums import Numbers


@dataclass(frozen=True, slots=True, eq=False)
class SeatLine:
    """The seats of a cluster: ``seat[x, s]`` is that of ``sizes[s]`` devices from place x on, -1 if there is none.

    ``groups[seat]`` are its groups, one for each mode. ``joint[x, s, t]`` is the number of the link between a
    stage of size s that ends before place x and one of size t that begins there (-1: none), ``crossing[link,
    place]`` what the tensors that cross each place to cut take over it, both ways, in ns.
    """

    sizes: tuple[int, ...]
    seat: Numbers
    groups: tuple[tuple[Group, ...], ...]
    joint: Numbers
    crossing: Numbers

    @property
    def devices(self) -> int:
        """Return how many devices stand in line."""
        return len(self.seat) - 1

    @staticmethod
    def of(instance: Instance, space: CutSpace) -> SeatLine:
        """Find the seats of an instance. Cost: places times sizes, and places times pairs of sizes."""
        total, ways = instance.devices, {n: modes(instance, n) for n in _sizes(instance)}
        sizes = tuple(n for n, found in ways.items() if found)
        seat = np.full((total + 1, len(sizes)), -1, dtype=np.int64)
        classes, servers = server_classes(instance), line(instance)
        known: dict[tuple[tuple[int, int], ...], int] = {}
        groups: list[tuple[Group, ...]] = []
        most = instance.constraints.max_servers or len(instance.servers)
        for x in range(total):
            for s, n in enumerate(sizes):
                if x + n > total or servers[x + n - 1] - servers[x] >= most:
                    continue
                counts = Group.on_line(instance, x, n).counts
                key = tuple((classes[server], count) for server, count in counts)
                if key not in known:
                    known[key] = len(groups)
                    groups.append(tuple(Group(counts, mode) for mode in ways[n]))
                seat[x, s] = known[key]
        joint, links = _joints(instance, sizes, seat, servers)
        return SeatLine(sizes, seat, tuple(groups), joint, _crossing(instance, space, links))


def _sizes(instance: Instance) -> Iterable[int]:
    asked = instance.demands.devices_per_stage
    return [n for n in range(1, instance.devices + 1) if not asked or n in asked]


def _joints(
    instance: Instance, sizes: tuple[int, ...], seat: Numbers, servers: tuple[int, ...]
) -> tuple[Numbers, list[Link]]:
    """Return the numbers of links between neighbours, and the links."""
    total = len(seat) - 1
    joint = np.full((total + 1, len(sizes), len(sizes)), -1, dtype=np.int64)
    links: dict[Link, int] = {}
    known: dict[tuple[int, int, bool], int] = {}
    for x in range(1, total):
        for s, n in enumerate(sizes):
            if x < n or seat[x - n, s] < 0:
                continue
            for t, m in enumerate(sizes):
                if seat[x, t] < 0:
                    continue
                key = int(seat[x - n, s]), int(seat[x, t]), servers[x - 1] == servers[x]
                if key not in known:
                    one, other = Group.on_line(instance, x - n, n), Group.on_line(instance, x, m)
                    link = Group.link_between(instance, one, other)
                    known[key] = -1 if link is None else links.setdefault(link, len(links))
                joint[x, s, t] = known[key]
    return joint, list(links)


def _crossing(instance: Instance, space: CutSpace, links: list[Link]) -> Numbers:
    found = np.zeros((len(links) + 1, len(space.places)), dtype=np.int64)
    for at, link in enumerate(links):
        for place, cut in list(enumerate(space.places))[1:-1]:
            found[at, place] = activation_ns(instance, cut, link) + gradient_ns(instance, cut, link)
    return found  # the last row, which -1 means, takes nothing
