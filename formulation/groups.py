"""Device groups: which devices a stage runs on, and what a stage feels of them.

A :class:`Group` counts devices per server. A stage's cost depends only on the group's :class:`GroupKind`: how
many devices, of which classes, over which slowest link; solvers make one table for each kind. On the *line*
devices stand in server order and a stage takes the next ``n`` of them, the assumption of every dynamic programme
of the field; under *free* placement a stage may have any devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from formulation.instance import Instance
from formulation.options import Placement
from formulation.units import Link, slowest


@dataclass(frozen=True, slots=True)
class Group:
    """Devices of a stage: pairs (server index, count), by server, every count at least 1."""

    counts: tuple[tuple[int, int], ...]

    @property
    def devices(self) -> int:
        """Number of devices."""
        return sum(count for _, count in self.counts)


@dataclass(frozen=True, slots=True)
class GroupKind:
    """All that the cost of a stage depends on: devices, their classes (indices), slowest link inside."""

    devices: int
    classes: tuple[int, ...]
    link: Link | None


MAX_GROUPS = 20_000


def possible_groups(instance: Instance) -> tuple[Group, ...]:
    """Return every group that a stage may run on, in a fixed order.

    Raises ValueError where free placement allows more than MAX_GROUPS of them (narrow it with max_servers).
    """
    constraints = instance.constraints
    if constraints.placement is Placement.LINE:
        return tuple(line_group(instance, first, stop - first) for first, stop in line_places(instance))
    return tuple(_free_groups(instance, constraints.max_servers or len(instance.servers)))


def line_places(instance: Instance) -> list[tuple[int, int]]:
    """Return (first device, first device after it) of every group of the line, in the order of possible_groups.

    Different places can be equal groups: either device of a server counts as one device of it.
    """
    total, most = instance.devices, instance.constraints.max_servers
    places = [(first, stop) for first in range(total) for stop in range(first + 1, total + 1)]
    servers = line(instance)
    return [place for place in places if most is None or len(set(servers[slice(*place)])) <= most]


def _free_groups(instance: Instance, max_servers: int) -> Iterator[Group]:
    sizes = [server.devices for server in instance.servers]
    number = sum(
        math.prod(sizes[server] for server in chosen)
        for servers in range(1, max_servers + 1)
        for chosen in itertools.combinations(range(len(sizes)), servers)
    )
    if number > MAX_GROUPS:
        raise ValueError(
            f"free placement allows {number} device groups for a stage, at most {MAX_GROUPS} can be searched;"
            f" set constraints.max_servers to less than {max_servers}"
        )
    for servers in range(1, max_servers + 1):
        for chosen in itertools.combinations(range(len(sizes)), servers):
            for counts in itertools.product(*(range(1, sizes[server] + 1) for server in chosen)):
                yield Group(tuple(zip(chosen, counts, strict=True)))


def group_kind(instance: Instance, group: Group) -> GroupKind:
    """Return the kind of a group; its link is the slowest between any two of its devices (None: one device)."""
    links = [instance.links[server][server] for server, count in group.counts if count > 1]
    servers = [server for server, _ in group.counts]
    links += [instance.links[one][two] for at, one in enumerate(servers) for two in servers[at + 1 :]]
    known = tuple(link for link in links if link is not None)
    classes = tuple(sorted({instance.class_index(server) for server in servers}))
    return GroupKind(group.devices, classes, slowest(known) if known else None)


def link_between(instance: Instance, one: Group, other: Group) -> Link | None:
    """Return the slowest link between a device of ``one`` and a device of ``other``.

    None if both are the only device of a server: a plan that uses it twice is priced without a transfer.

    A boundary tensor lies on every device of the sending stage and goes to every device of the receiving one,
    so the slowest pair sets its time; this does not depend on the order of devices inside a group.
    """
    links = {instance.links[a][b] for a, _ in one.counts for b, _ in other.counts}
    known = tuple(link for link in links if link is not None)
    return slowest(known) if known else None


def line(instance: Instance) -> tuple[int, ...]:
    """Return the line of devices: the server index of each, in server order."""
    return tuple(index for index, server in enumerate(instance.servers) for _ in range(server.devices))


def line_group(instance: Instance, first: int, devices: int) -> Group:
    """Return the group of ``devices`` devices from position ``first`` of the line on."""
    counts: dict[int, int] = {}
    for server in line(instance)[first : first + devices]:
        counts[server] = counts.get(server, 0) + 1
    return Group(tuple(counts.items()))
