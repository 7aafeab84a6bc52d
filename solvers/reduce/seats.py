"""Seats on a line of devices: which groups stages may have, which of these are alike, and what joins neighbours.

A *seat* is a number of devices from some place of the line on. Seats whose devices stand in alike servers in the
same way have the same kinds of groups, one for each mode; so a cluster of alike servers has few seats that differ.
Where all stages of a plan have equally many devices and replicas, as many devices with other numbers of replicas
are another *size*, or in another mode where they have all of it in common; and no boundary joins two sizes.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipecut.formulation.costs.times import activation_ns, cut_bytes, gradient_ns
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, line
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.modes import Mode, in_common, modes
from pipecut.formulation.problem.shares import server_classes
from pipecut.formulation.problem.units import Link
from pipecut.solvers.reduce.form_sums import Numbers
from pipecut.solvers.search.support import devices_of


@dataclass(frozen=True, slots=True, eq=False)
class SeatLine:
    """The seats of a cluster: ``seat[x, s]`` is that of ``sizes[s]`` devices from place x on, -1 if there is none.

    ``common[s]`` is what of its mode each stage of such a size has (``modes.in_common``). ``groups[seat]``
    are its groups, one for each mode, ``of_class[seat]`` the devices that it has of each class of servers, and
    ``in_class`` those that there are. ``joint[x, s, t]`` is the number of the link between a stage of size s that
    ends before place x and one of size t that begins there (-1: none), ``crossing[link, place]`` what the tensors
    that cross each place to cut take over it, both ways, in ns: FORBIDDEN between sizes that no plan has both.
    """

    sizes: tuple[int, ...]
    common: tuple[object, ...]
    seat: Numbers
    groups: tuple[tuple[Group, ...], ...]
    of_class: Numbers
    in_class: Numbers
    joint: Numbers
    crossing: Numbers

    @property
    def devices(self) -> int:
        """Return how many devices stand in line."""
        return len(self.seat) - 1

    def seat_of(self, x: int, group: Group) -> int:
        """Return the seat of a group from place x on; -1 where no plan that keeps the rules has one there."""
        own = group.replicas, group.mode, None
        sizes = [at for at, n in enumerate(self.sizes) if n == group.devices and self.common[at] in own]
        return int(self.seat[x, sizes[0]]) if sizes and x < self.devices else -1

    @staticmethod
    def of(instance: Instance, space: CutSpace) -> SeatLine:
        """Find the seats of an instance. Cost: places times sizes, and places times pairs of sizes.

        Of alike servers only places in the first one are looked at, all others are like one of them.
        """
        total, ways = devices_of(instance), ways_of(instance)
        sizes, common = tuple(n for n, _ in ways), tuple(one for _, one in ways)
        seat = np.full((total + 1, len(sizes)), -1, dtype=np.int64)
        classes, servers = server_classes(instance), line(instance)
        known: dict[tuple[object, tuple[tuple[int, int], ...]], int] = {}
        groups: list[tuple[Group, ...]] = []
        most = instance.constraints.max_servers or len(instance.servers)
        period = _period(instance, classes)
        for x in range(period):
            for s, ((n, one), allowed) in enumerate(ways.items()):
                if x + n > total or servers[x + n - 1] - servers[x] >= most:
                    continue
                counts = Group.on_line(instance, x, n).counts
                key = one, tuple((classes[server], count) for server, count in counts)
                if key not in known:
                    known[key] = len(groups)
                    groups.append(tuple(Group(counts, mode) for mode in allowed))
                seat[x : total + 1 - n : period, s] = known[key]
        joint, links = _joints(instance, sizes, seat, period)
        if instance.constraints.equal_stages:
            joint[:, ~np.eye(len(sizes), dtype=bool)] = len(links)
        of_class = np.zeros((len(groups), max(classes) + 1), dtype=np.int64)
        for row, (_, key) in zip(of_class, known, strict=True):
            np.add.at(row, [one for one, _ in key], [count for _, count in key])
        in_class = np.bincount([classes[server] for server in servers[:total]], minlength=max(classes) + 1)
        crossing = _crossing(instance, space, links)
        return SeatLine(sizes, common, seat, tuple(groups), of_class, in_class, joint, crossing)


def has_a_first_stage(instance: Instance) -> bool:
    """Tell whether there is a group for the first stage of a plan, which begins where the line does."""
    servers, most = line(instance), instance.constraints.max_servers or len(instance.servers)
    return any(modes(instance, n) for n in sizes_of(instance) if servers[n - 1] - servers[0] < most)


def sizes_of(instance: Instance) -> list[int]:
    """Return how many devices a stage may have."""
    asked = instance.demands.devices_per_stage
    return [n for n in range(1, devices_of(instance) + 1) if not asked or n in asked]


def ways_of(instance: Instance) -> Mapping[tuple[int, object], Sequence[Mode]]:
    """Return the modes of sizes: numbers of devices, and what of their modes all stages have in common."""
    found = defaultdict[tuple[int, object], list[Mode]](list)
    for n in sizes_of(instance):
        for mode in modes(instance, n):
            found[n, in_common(instance.constraints, mode)].append(mode)
    return found


def _period(instance: Instance, classes: tuple[int, ...]) -> int:
    """Return after how many devices the line is the same again: those of a server where all are alike."""
    return instance.servers[0].devices if len(set(classes)) == 1 else instance.devices


def _joints(instance: Instance, sizes: tuple[int, ...], seat: Numbers, period: int) -> tuple[Numbers, list[Link]]:
    """Return the numbers of links between neighbours, and the links; ``period`` as of the line."""
    total, servers = len(seat) - 1, line(instance)
    joint = np.full((total + 1, len(sizes), len(sizes)), -1, dtype=np.int64)
    links: dict[Link, int] = {}
    known: dict[tuple[int, int, bool], int] = {}
    for rest, (s, n) in itertools.product(range(period), enumerate(sizes)):
        # The first place behind so many devices that is in its server where this one is.
        x = n + (rest - n) % period
        if x >= total or seat[x - n, s] < 0:
            continue
        for t, m in enumerate(sizes):
            if seat[x, t] < 0:
                continue
            key = int(seat[x - n, s]), int(seat[x, t]), servers[x - 1] == servers[x]
            if key not in known:
                one, other = Group.on_line(instance, x - n, n), Group.on_line(instance, x, m)
                link = Group.link_between(instance, one, other)
                known[key] = -1 if link is None else links.setdefault(link, len(links))
            stands = (seat[x - n : total + 1 - n : period, s] >= 0) & (seat[x::period, t] >= 0)
            joint[x::period, s, t][stands] = known[key]
    return joint, list(links)


def _crossing(instance: Instance, space: CutSpace, links: list[Link]) -> Numbers:
    found = np.zeros((len(links) + 2, len(space.places)), dtype=np.int64)
    found[-2] = FORBIDDEN
    known: dict[int, Numbers] = {}
    for place, cut in list(enumerate(space.places))[1:-1]:
        sent = cut_bytes(instance, cut)  # beside the link all that counts
        if sent not in known:
            times = [activation_ns(instance, cut, link) + gradient_ns(instance, cut, link) for link in links]
            known[sent] = np.array(times, dtype=np.int64)
        found[:-2, place] = known[sent]
    return found  # the last row, which -1 means, takes nothing; the one before it joins what no plan has both
