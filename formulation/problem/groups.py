"""Device groups: which devices a stage runs on, how they share its work, and what the stage feels of them.

A :class:`Group` counts devices per server and has the mode in which they hold the stage. A stage's cost depends
only on the group's :class:`GroupKind`; solvers make one table for each kind. On the *line* devices stand in server
order and a stage takes the next ``n`` of them, the assumption of every dynamic programme of the field; under
*free* placement a stage may have any devices.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pipecut.formulation.limits import NEVER, Deadline, TooLargeError, in_time
from pipecut.formulation.problem.constraints import Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FORMS, PAIRS, Axis, Layer
from pipecut.formulation.problem.modes import ONE_COPY, Mode, modes
from pipecut.formulation.problem.options import Samples, Sharing
from pipecut.formulation.problem.shares import (
    Shares,
    equal_shares,
    joined,
    proportional_shares,
    replica_link,
    ring_link,
    server_classes,
)
from pipecut.formulation.problem.units import Link


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
    def tensor_parallel_degree(self) -> int:
        """Devices that one replica is split over."""
        return self.mode.tensor_parallel_degree(self.devices)

    @property
    def grid(self) -> tuple[int, int]:
        """How many devices lie in a row of a replica's grid, and how many rows there are."""
        return self.mode.grid, self.tensor_parallel_degree // self.mode.grid

    @staticmethod
    def on_line(instance: Instance, first: int, devices: int, mode: Mode = ONE_COPY) -> Group:
        """Return the group of ``devices`` devices from position ``first`` of the line on."""
        counts: list[tuple[int, int]] = []
        ends = instance.cluster.ends
        at, index = first, bisect.bisect_right(ends, first)
        while at < first + devices and index < len(ends):
            stop = min(first + devices, ends[index])
            counts.append((index, stop - at))
            at, index = stop, index + 1
        return Group(tuple(counts), mode)

    @staticmethod
    def possible(instance: Instance, deadline: Deadline = NEVER) -> tuple[Group, ...]:
        """Return every group that a stage may run on, in a fixed order. Raises StoppedError after the deadline.

        Raises ValueError where free placement allows more than MAX_GROUPS of them (narrow it with max_servers),
        and where there is none, as its demands on the devices of a stage contradict each other.
        """
        constraints = instance.constraints
        ways = modes_by_size(instance, deadline)
        if constraints.placement is Placement.LINE:
            groups = tuple(
                Group.on_line(instance, first, stop - first, mode)
                for first, stop in in_time(_places(instance, ways), deadline)
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
            raise ValueError(_why_none(instance))
        return groups

    @staticmethod
    def link_between(instance: Instance, one: Group, other: Group, lanes: int | None = None) -> Link | None:
        """Return the link over which rows pass from ``one`` to ``other`` (``shares.joined``).

        None if both are the only device of a server: a plan that uses it twice is priced without a transfer.
        ``lanes``: how many adapters they use; without it as many as they have.

        A boundary tensor lies on every device of the sending stage and goes to every device of the receiving one,
        so the slowest pair sets its time; this does not depend on the order of devices inside a group.
        """
        return joined(instance, one.counts, other.counts, lanes)


@dataclass(frozen=True, slots=True)
class GroupKind:
    """All that the cost of a stage depends on: devices and how they share the work.

    ``classes`` are the indices of their device classes; ``link`` the slowest link between any two of them, over
    which replicas sum their gradients; ``inner`` the slowest link inside a replica (None: nothing is split);
    ``unequal`` what its devices share where they do not share in equal fractions. ``axes`` are the slowest links
    inside the rows of a grid, and across its rows.
    """

    devices: int
    classes: tuple[int, ...]
    link: Link | None
    inner: Link | None = None
    mode: Mode = ONE_COPY
    unequal: Shares | None = None
    axes: tuple[Link | None, Link | None] | None = None

    @property
    def replicas(self) -> int:
        """Copies of the stage."""
        return self.mode.replicas

    @property
    def tensor_parallel_degree(self) -> int:
        """Devices that one replica is split over."""
        return self.mode.tensor_parallel_degree(self.devices)

    @property
    def shares(self) -> Shares:
        """The largest shares of its devices and replicas."""
        return self.unequal or equal_shares(self.devices, self.replicas, len(self.classes))

    def along(self, form: int) -> tuple[tuple[int, int, Link | None], ...]:
        """Return of each form that one is made of how many devices share a layer by it, and their slowest link.

        A pair is made of two, any other form of itself.
        """
        if form not in PAIRS or self.axes is None:
            return ((form, self.tensor_parallel_degree, self.inner),)
        return tuple(zip(PAIRS[form], self.grid, self.axes, strict=True))

    @property
    def grid(self) -> tuple[int, int]:
        """How many devices lie in a row of a replica's grid, and how many rows there are."""
        return self.mode.grid, self.tensor_parallel_degree // self.mode.grid

    @staticmethod
    def of(instance: Instance, group: Group) -> GroupKind:
        """Return the kind of a group."""
        degree, grid, known = group.tensor_parallel_degree, group.mode.grid, instance.cluster.known
        classes = [(instance.class_index(server), count) for server, count in group.counts]
        if (key := (group.counts, degree, grid)) not in known:
            axes, servers = None, tuple(server for server, count in group.counts for _ in range(count))
            if grid > 1:
                axes = replica_link(instance, servers, grid), replica_link(instance, servers, degree, grid)
            known[key] = ring_link(instance, group.counts, degree), replica_link(instance, servers, degree), axes
        link, inner, axes = known[key]
        some, unequal = tuple(sorted({one for one, _ in classes})), _unequal(instance, classes, group.mode)
        return GroupKind(group.devices, some, link, inner, group.mode, unequal, axes)

    @staticmethod
    def all_of(instance: Instance, groups: Iterable[Group]) -> list[GroupKind]:
        """Return the kinds of groups; those of alike servers in the same order are found once.

        Cost: linear in the servers of all groups, and quadratic in those of every group that is told apart.
        """
        classes, known = server_classes(instance), dict[tuple[object, ...], GroupKind]()
        kinds: list[GroupKind] = []
        for group in groups:
            held = tuple((classes[server], count) for server, count in group.counts)
            if (key := (group.mode, held)) not in known:
                # Of modes of one degree and grid all but the mode is the same.
                if (alike := (group.tensor_parallel_degree, group.mode.grid, held)) not in known:
                    known[alike] = GroupKind.of(instance, group)
                known[key] = replace(known[alike], mode=group.mode)
            kinds.append(known[key])
        return kinds


def forms_on(row: Layer, group: Group | GroupKind) -> tuple[int, ...]:
    """Forms that a layer may take on a group; on replicas of one device nothing is split: form 0.

    There is one at least in every mode that the instance allows (``formulation.problem.modes.modes``). Heads and
    experts are never divided, so a replica needs a number of devices that divides theirs.
    """
    degree, grid = group.tensor_parallel_degree, group.mode.grid
    if degree == 1:
        return FORMS[:1]
    forms = row.allowed_forms if grid > 1 else tuple(form for form in row.allowed_forms if form not in PAIRS)
    if row.across is None:
        return forms
    return tuple(form for form in forms if row.across.allows(form, degree, group.devices, grid))


def layouts_on(instance: Instance, layer: int, kind: GroupKind) -> tuple[int, ...]:
    """Forms in which a layer may lie on a kind: its own, or those of the layer that it follows.

    Form 0 is among the latter, as that layer may be in another stage.
    """
    source = instance.sources[layer]
    forms = () if source is None else forms_on(instance.layers[source], kind)
    return forms if source == layer else tuple(dict.fromkeys((*FORMS[:1], *forms)))


MAX_GROUPS = 20_000
MAX_ON_LINE = 1_000_000


def _why_none(instance: Instance) -> str:
    """Say which demands leave a stage no group of devices."""
    asked, most = instance.constraints, max(server.devices for server in instance.servers)
    demands = {
        "devices_per_stage": asked.devices_per_stage,
        "tensor_parallel_degrees": asked.tensor_parallel_degrees,
        "max_servers": asked.max_servers and (asked.max_servers,),
    }
    said = "; ".join(f"{key}: {', '.join(map(str, value))}" for key, value in demands.items() if value)
    return (
        f"no stage can have devices on this cluster of {instance.devices} (at most {most} in a server) with {said}"
        f" and placement: {asked.placement}; loosen one of them"
    )


def modes_by_size(instance: Instance, deadline: Deadline = NEVER) -> dict[int, tuple[Mode, ...]]:
    """Return the modes that an instance allows, by every number of devices that a stage may have."""
    sizes = range(1, instance.devices + 1)
    wanted = [size for size in instance.demands.devices_per_stage if size in sizes] or sizes
    return dict.fromkeys(sizes, ()) | {size: modes(instance, size) for size in in_time(wanted, deadline)}


def line_places(instance: Instance) -> list[tuple[int, int]]:
    """Return (first device, first device after it) of every group of the line, in the order of possible_groups.

    Different places can be equal groups: either device of a server counts as one device of it. A place stands
    here once for each way in which its devices may work together.
    """
    ways = modes_by_size(instance)
    return [place for place in _places(instance, ways) for _ in ways[place[1] - place[0]]]


def _places(instance: Instance, ways: dict[int, tuple[Mode, ...]]) -> list[tuple[int, int]]:
    total, most = instance.devices, instance.constraints.max_servers
    sizes, servers = [size for size, found in ways.items() if found], line(instance)
    if total * len(sizes) > MAX_ON_LINE:
        raise TooLargeError(
            f"the line of {total} devices has about {total * len(sizes)} device groups for a stage, at most"
            f" {MAX_ON_LINE} can be searched one by one; narrow constraints.devices_per_stage"
        )
    places = ((first, first + size) for first in range(total) for size in sizes if first + size <= total)
    # Servers of the line follow one another.
    return [place for place in places if most is None or servers[place[1] - 1] - servers[place[0]] < most]


def _free_groups(instance: Instance, max_servers: int) -> Iterator[Group]:
    sizes = [server.devices for server in instance.servers]
    ways = [1, *[0] * max_servers]  # how many groups have devices of so many servers
    for size in sizes:
        ways = [one + size * fewer for one, fewer in zip(ways, (0, *ways), strict=False)]
        if sum(ways) - 1 > MAX_GROUPS:
            raise TooLargeError(
                f"free placement allows more than {MAX_GROUPS} device groups for a stage, as many as can be"
                f" searched; set constraints.max_servers to less than {max_servers}"
            )
    for servers in range(1, max_servers + 1):
        for chosen in itertools.combinations(range(len(sizes)), servers):
            for counts in itertools.product(*(range(1, sizes[server] + 1) for server in chosen)):
                yield Group(tuple(zip(chosen, counts, strict=True)))


def _unequal(instance: Instance, classes: Sequence[tuple[int, int]], mode: Mode) -> Shares | None:
    """Return the shares of devices that do not all have the same: of whole samples, or by speed.

    ``classes`` are pairs (device class, how many of its devices), in the order of the devices.
    """
    samples = instance.training.micro_batch if instance.cost.samples is Samples.WHOLE else 0
    rows = {Axis.SEQUENCE, Axis.CONTEXT}.isdisjoint(instance.demands.splits)
    devices, different = sum(count for _, count in classes), len({one for one, _ in classes})
    if instance.cost.sharing is Sharing.EQUAL or mode.grid > 1 or different == 1:
        if samples % devices == 0:
            return None
        return equal_shares(devices, mode.replicas, different, samples, rows=rows)
    speeds = [one.flops_per_second for one in instance.device_classes]
    each = [one for one, count in classes for _ in range(count)]
    return proportional_shares(each, speeds, mode.tensor_parallel_degree(devices), samples, rows=rows)


def line(instance: Instance) -> tuple[int, ...]:
    """Return the line of devices: the server index of each, in server order."""
    return tuple(index for index, server in enumerate(instance.servers) for _ in range(server.devices))
