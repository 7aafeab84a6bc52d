"""Device groups: which devices a stage runs on, how they share its work, and what the stage feels of them.

A :class:`Group` counts devices per server and has the mode in which they hold the stage. A stage's cost depends
only on the group's :class:`GroupKind`; solvers make one table for each kind. On the *line* devices stand in server
order and a stage takes the next ``n`` of them, the assumption of every dynamic programme of the field; under
*free* placement a stage may have any devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from formulation.limits.deadline import NEVER, Deadline, in_time
from formulation.limits.size import TooLargeError
from formulation.problem.instance import Instance
from formulation.problem.modes import ONE_COPY, Mode, modes
from formulation.problem.options import Placement, Sharing
from formulation.problem.shares import Shares, equal_shares, proportional_shares
from formulation.problem.units import Link, slowest

__all__ = [
    "Group",
    "GroupKind",
    "group_kind",
    "line",
    "line_group",
    "line_places",
    "link_between",
    "modes_by_size",
    "possible_groups",
]


@dataclass(frozen=True, slots=True)
class Group:
    """Devices of a stage: pairs (server index, count), by server, every count at least 1; and their mode."""

    counts: tuple[tuple[int, int], ...]
    mode: Mode = ONE_COPY

    @property
    def devices(self) -> int:
        """Number of devices."""
        return sum(count for _, count in self.counts)

    @property
    def replicas(self) -> int:
        """Copies of the stage."""
        return self.mode.replicas

    @property
    def recompute(self) -> bool:
        """Tell whether the forward pass runs again before the backward."""
        return self.mode.recompute

    @property
    def tensor_parallel_degree(self) -> int:
        """Devices that one replica is split over."""
        return self.mode.tensor_parallel_degree(self.devices)


@dataclass(frozen=True, slots=True)
class GroupKind:
    """All that the cost of a stage depends on: devices and how they share the work.

    ``classes`` are the indices of their device classes; ``link`` the slowest link between any two of them, over
    which replicas sum their gradients; ``inner`` the slowest link inside a replica (None: nothing is split);
    ``unequal`` what its devices share where they do not share equally.
    """

    devices: int
    classes: tuple[int, ...]
    link: Link | None
    inner: Link | None = None
    mode: Mode = ONE_COPY
    unequal: Shares | None = None

    @property
    def replicas(self) -> int:
        """Copies of the stage."""
        return self.mode.replicas

    @property
    def recompute(self) -> bool:
        """Tell whether the forward pass runs again before the backward."""
        return self.mode.recompute

    @property
    def tensor_parallel_degree(self) -> int:
        """Devices that one replica is split over."""
        return self.mode.tensor_parallel_degree(self.devices)

    @property
    def shares(self) -> Shares:
        """The largest shares of its devices and replicas."""
        return self.unequal or equal_shares(self.devices, self.replicas, len(self.classes))


MAX_GROUPS = 20_000


def possible_groups(instance: Instance, deadline: Deadline = NEVER) -> tuple[Group, ...]:
    """Return every group that a stage may run on, in a fixed order. Raises StoppedError after the deadline.

    Raises ValueError where free placement allows more than MAX_GROUPS of them (narrow it with max_servers), and
    where there is none, as no allowed tensor-parallel degree divides a number of devices that there are.
    """
    constraints = instance.constraints
    ways = modes_by_size(instance, deadline)
    if constraints.placement is Placement.LINE:
        groups = tuple(
            line_group(instance, first, stop - first, mode)
            for first, stop in in_time(_places(instance), deadline)
            for mode in ways[stop - first]
        )
    else:
        most = constraints.max_servers or len(instance.servers)
        groups = tuple(
            Group(group.counts, mode)
            for group in in_time(_free_groups(instance, most), deadline)
            for mode in ways[group.devices]
        )
    if not groups:
        degrees = ", ".join(map(str, constraints.tensor_parallel_degrees))
        raise ValueError(f"no stage of these sizes can hold a replica of tensor-parallel degree {degrees}")
    return groups


def modes_by_size(instance: Instance, deadline: Deadline = NEVER) -> dict[int, tuple[Mode, ...]]:
    """Return the modes that an instance allows, by every number of devices that a stage may have."""
    return {size: modes(instance, size) for size in in_time(range(1, instance.devices + 1), deadline)}


def line_places(instance: Instance) -> list[tuple[int, int]]:
    """Return (first device, first device after it) of every group of the line, in the order of possible_groups.

    Different places can be equal groups: either device of a server counts as one device of it. A place stands
    here once for each way in which its devices may work together.
    """
    ways = modes_by_size(instance)
    return [place for place in _places(instance) for _ in ways[place[1] - place[0]]]


def _places(instance: Instance) -> list[tuple[int, int]]:
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
        raise TooLargeError(
            f"free placement allows {number} device groups for a stage, at most {MAX_GROUPS} can be searched;"
            f" set constraints.max_servers to less than {max_servers}"
        )
    for servers in range(1, max_servers + 1):
        for chosen in itertools.combinations(range(len(sizes)), servers):
            for counts in itertools.product(*(range(1, sizes[server] + 1) for server in chosen)):
                yield Group(tuple(zip(chosen, counts, strict=True)))


def group_kind(instance: Instance, group: Group) -> GroupKind:
    """Return the kind of a group."""
    servers = tuple(server for server, count in group.counts for _ in range(count))
    classes = tuple(sorted({instance.class_index(server) for server, _ in group.counts}))
    return GroupKind(
        group.devices,
        classes,
        _slowest_among(instance, group.counts),
        _inner_link(instance, servers, group.tensor_parallel_degree),
        group.mode,
        _unequal(instance, servers, group.tensor_parallel_degree) if len(classes) > 1 else None,
    )


def _unequal(instance: Instance, servers: tuple[int, ...], degree: int) -> Shares | None:
    """Return the shares of devices of several classes, if they share in proportion to their speed."""
    if instance.cost.sharing is Sharing.EQUAL:
        return None
    speeds = [one.flops_per_second for one in instance.device_classes]
    return proportional_shares([instance.class_index(server) for server in servers], speeds, degree)


def _slowest_among(instance: Instance, counts: tuple[tuple[int, int], ...]) -> Link | None:
    """Return the slowest link between any two of these devices; None for one device."""
    links = [instance.links[server][server] for server, count in counts if count > 1]
    servers = [server for server, _ in counts]
    links += [instance.links[one][two] for at, one in enumerate(servers) for two in servers[at + 1 :]]
    known = tuple(link for link in links if link is not None)
    return slowest(known) if known else None


def _inner_link(instance: Instance, servers: tuple[int, ...], degree: int) -> Link | None:
    """Return the slowest link inside any replica, which takes ``degree`` devices in server order."""
    replicas = {servers[first : first + degree] for first in range(0, len(servers), degree)}
    counted = (tuple((one, row.count(one)) for one in dict.fromkeys(row)) for row in replicas)
    links = [_slowest_among(instance, counts) for counts in counted]
    known = tuple(link for link in links if link is not None)
    return slowest(known) if known else None


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


def line_group(instance: Instance, first: int, devices: int, mode: Mode = ONE_COPY) -> Group:
    """Return the group of ``devices`` devices from position ``first`` of the line on."""
    counts: list[tuple[int, int]] = []
    begin = 0
    for index, server in enumerate(instance.servers):
        end = begin + server.devices
        taken = min(first + devices, end) - max(first, begin)
        if taken > 0:
            counts.append((index, taken))
        begin = end
    return Group(tuple(counts), mode)
