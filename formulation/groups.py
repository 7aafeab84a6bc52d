"""Device groups: which devices a stage runs on, and what a stage feels of them.

A :class:`Group` counts devices per server. A stage's cost depends only on the group's :class:`GroupKind`: how
many devices, of which classes, over which slowest link; solvers make one table for each kind. Today's
placement is the *line*: devices stand in server order and a stage takes the next ``n`` of them, the assumption
of every dynamic programme of the field. Free placement only adds groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from formulation.instance import Instance
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


def group_kind(instance: Instance, group: Group) -> GroupKind:
    """Return the kind of a group; its link is the slowest between any two of its devices (None: one device)."""
    links = [instance.links[server][server] for server, count in group.counts if count > 1]
    servers = [server for server, _ in group.counts]
    links += [instance.links[one][two] for at, one in enumerate(servers) for two in servers[at + 1 :]]
    known = tuple(link for link in links if link is not None)
    classes = tuple(sorted({instance.class_index(server) for server in servers}))
    return GroupKind(group.devices, classes, slowest(known) if known else None)


def link_between(instance: Instance, one: Group, other: Group) -> Link:
    """Return the slowest link between a device of ``one`` and a device of ``other``.

    A boundary tensor lies on every device of the sending stage and goes to every device of the receiving one,
    so the slowest pair sets its time; this does not depend on the order of devices inside a group.
    """
    links = {instance.links[a][b] for a, _ in one.counts for b, _ in other.counts}
    return slowest(tuple(link for link in links if link is not None))


def line(instance: Instance) -> tuple[int, ...]:
    """Return the line of devices: the server index of each, in server order."""
    return tuple(index for index, server in enumerate(instance.servers) for _ in range(server.devices))


def line_group(instance: Instance, first: int, devices: int) -> Group:
    """Return the group of ``devices`` devices from position ``first`` of the line on."""
    counts: dict[int, int] = {}
    for server in line(instance)[first : first + devices]:
        counts[server] = counts.get(server, 0) + 1
    return Group(tuple(counts.items()))
