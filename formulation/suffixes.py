"""What a stage keeps by how many stages come behind it, and whether that matters beside the devices they take.

Devices that the end of a plan takes: the *states* of dynamic programmes and certificates that go by slots.

The last stages of a plan, a *suffix*, leave behind one thing that the stages before them must know: which devices
are taken. On the line that is the first device of the suffix; under free placement how many devices of each server
it takes. Servers that cannot be told apart are exchanged until their counts fall, which leaves one state of many:
a plan stays a plan, at the same price, when alike servers exchange their places. What joins a suffix to the stage
before it is the link, and that depends on the servers and the adapters of its first stage: its *end*, which is
kept beside the state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from pipecut.formulation.limits import NEVER, Deadline, TooLargeError, in_time
from pipecut.formulation.problem.constraints import Placement
from pipecut.formulation.problem.groups import Group, GroupKind, line_places
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.shares import lanes, same_servers
from pipecut.formulation.schedules.keeps import Keeps


def slots_matter(instance: Instance) -> bool:
    """Tell whether what a stage may hold depends on its slot: memory counts and not all stages keep as much."""
    last = min(len(instance.layers), instance.devices) - 1
    return instance.constraints.memory and Keeps.in_slot(instance.training, 0) != Keeps.in_slot(
        instance.training, last
    )


def rules_by_slot(instance: Instance, slots: int) -> tuple[Keeps | None, ...]:
    """Return what a stage keeps in each of so many slots, the same in all where it does not matter.

    None where memory is not limited.
    """
    if not instance.constraints.memory:
        return (None,) * slots
    matter = slots_matter(instance)
    return tuple(Keeps.in_slot(instance.training, slot if matter else 0) for slot in range(slots))


State = tuple[int, ...]
"""Free placement: devices taken of each server. Line: one number, the first device taken."""
Servers = tuple[int, ...]
"""Servers, ascending."""
End = tuple[Servers, int]
"""What a boundary needs of a stage: its servers, and how many of their adapters it has."""

MAX_STATES = 20_000
MAX_STEPS = 5_000_000
MAX_COMPARED = 200_000
"""Groups that may be compared with what they become when two servers change places."""


@dataclass(frozen=True, slots=True)
class Place:
    """Devices of a stage, and the ways in which they may work together as indices into ``possible_groups``.

    ``counts`` as in :class:`formulation.problem.groups.Group`; ``lanes`` are their adapters; ``first`` and
    ``stop`` are device numbers on the line, 0 under free placement.
    """

    counts: tuple[tuple[int, int], ...]
    lanes: int
    groups: tuple[int, ...]
    first: int = 0
    stop: int = 0

    @property
    def end(self) -> End:
        """The servers of the devices, and their adapters."""
        return tuple(server for server, _ in self.counts), self.lanes


@dataclass(frozen=True, slots=True)
class Step:
    """A stage on ``place`` put before a suffix: the state after it and the end of the first stage there.

    ``moved[s]`` is the server of the new state that server ``s`` of the old one is exchanged for.
    """

    place: int
    state: State
    first: End
    moved: Servers


class Suffixes(Protocol):
    """The states of an instance, and how stages lead from one to another."""

    places: tuple[Place, ...]
    alike: Servers
    """For every server one that stands for it and those that cannot be told from it."""

    def empty(self) -> list[State]:
        """Return the states behind the last stage, where nothing is taken yet."""
        ...

    def before(self, state: State) -> Iterator[Step]:
        """Yield every stage that may come before a suffix in this state."""
        ...

    def complete(self, state: State) -> bool:
        """Tell whether a whole plan may end up in this state."""
        ...

    def possible(self, state: State) -> bool:
        """Tell whether numbers are a state at all."""
        ...


def suffixes(instance: Instance, deadline: Deadline = NEVER, *, demanded: bool = False) -> Suffixes:
    """Return the states of an instance; with ``demanded`` those in which demands tell servers apart, too.

    Raises ValueError for too many of them and as possible_groups does, and StoppedError after the deadline.
    """
    if instance.constraints.placement is Placement.LINE:
        return LineSuffixes(instance, deadline)
    return FreeSuffixes(instance, deadline, demanded=demanded)


class LineSuffixes:
    """Stages take the next devices of the line; the suffix starts at a device, and the last ones may be idle."""

    def __init__(self, instance: Instance, deadline: Deadline = NEVER) -> None:
        ways: dict[tuple[int, int], list[int]] = {}
        for index, place in in_time(enumerate(line_places(instance)), deadline):
            ways.setdefault(place, []).append(index)
        groups = Group.possible(instance, deadline)
        self.places = tuple(
            Place(counts := groups[ways[place][0]].counts, lanes(instance, counts), tuple(ways[place]), *place)
            for place in sorted(ways)
        )
        self.alike = tuple(range(len(instance.servers)))
        self._ending: dict[int, list[int]] = {}
        for index, place in enumerate(self.places):
            self._ending.setdefault(place.stop, []).append(index)

    def empty(self) -> list[State]:
        """Return every end of a stage."""
        return [(stop,) for stop in sorted(self._ending)]

    def before(self, state: State) -> Iterator[Step]:
        """Yield the stages that end where the suffix starts."""
        for index in self._ending.get(state[0], []):
            place = self.places[index]
            yield Step(index, (place.first,), place.end, self.alike)

    def complete(self, state: State) -> bool:
        """Tell whether the suffix starts at the first device."""
        return state == (0,)

    def possible(self, state: State) -> bool:
        """Tell whether the state is one device of the line."""
        return len(state) == 1 and 0 <= state[0] < max(self._ending)


class FreeSuffixes:
    """Stages take any devices that are left."""

    def __init__(self, instance: Instance, deadline: Deadline = NEVER, *, demanded: bool = False) -> None:
        ways: dict[tuple[tuple[int, int], ...], list[int]] = {}
        groups = Group.possible(instance, deadline)
        for index, group in enumerate(groups):
            ways.setdefault(group.counts, []).append(index)
        self.places = tuple(Place(counts, lanes(instance, counts), tuple(found)) for counts, found in ways.items())
        self._sizes = tuple(server.devices for server in instance.servers)
        self._alike = alike_servers(instance, groups, demanded=demanded)
        self.alike = _stands_for(self._alike)
        states = math.prod(math.comb(len(row) + self._sizes[row[0]], len(row)) for row in self._alike)
        if states > MAX_STATES or states * len(self.places) > MAX_STEPS:
            raise TooLargeError(
                f"{states} ways to take devices and {len(self.places)} device groups, at most {MAX_STATES} and"
                f" {MAX_STEPS} pairs of them can be searched; lower constraints.max_servers or plan on the line"
            )

    def empty(self) -> list[State]:
        """Return the one state in which no device is taken."""
        return [(0,) * len(self._sizes)]

    def before(self, state: State) -> Iterator[Step]:
        """Yield the stages for which enough devices are left."""
        for index, place in enumerate(self.places):
            if all(state[server] + count <= self._sizes[server] for server, count in place.counts):
                counts = list(state)
                for server, count in place.counts:
                    counts[server] += count
                yield self._arranged(index, counts, place.end)

    def complete(self, state: State) -> bool:
        """Agree always: a whole plan may leave any devices idle."""
        return True

    def possible(self, state: State) -> bool:
        """Tell whether the state is a number of devices for each server, as many as it has at most."""
        rows = zip(state, self._sizes, strict=False)
        return len(state) == len(self._sizes) and all(0 <= count <= size for count, size in rows)

    def _arranged(self, place: int, counts: list[int], end: End) -> Step:
        """Exchange alike servers: most devices taken first, and of equal ones those of the first stage first."""
        moved, (first, lanes) = list(range(len(counts))), end
        for row in self._alike:
            order = sorted(row, key=lambda server: (-counts[server], server not in first))
            for new, old in zip(row, order, strict=True):
                moved[old] = new
        state = [0] * len(counts)
        for old, new in enumerate(moved):
            state[new] = counts[old]
        arranged = tuple(sorted(moved[server] for server in first))
        return Step(place, tuple(state), (arranged, lanes), tuple(moved))


def _stands_for(classes: list[list[int]]) -> Servers:
    first = {server: row[0] for row in classes for server in row}
    return tuple(first[server] for server in sorted(first))


def alike_servers(instance: Instance, groups: tuple[Group, ...], *, demanded: bool = False) -> list[list[int]]:
    """Return the servers by classes of those that cannot be told apart: any two may change places in any plan.

    They have the same devices and the same links to all others, and when they change places every group keeps its
    kind, all that the price of a stage depends on. The devices of a replica, and of the rows of its grid, follow
    one another in server order: a group can change its kind though links join its servers in the same way. No key
    of a scenario says whether that matters; the kinds of the groups do. Where more than MAX_COMPARED groups would
    be compared, every server counts as one of its own. Demands are looked at with ``demanded`` alone: a pin to one
    server tells it apart from others.
    """
    classes = _of_equal_groups(instance, groups)
    if not demanded:
        return classes
    return [part for row in classes for part in _parts(row, lambda *pair: not instance.demands.tell_apart(*pair))]


def _of_equal_groups(instance: Instance, groups: tuple[Group, ...]) -> list[list[int]]:
    classes = same_servers(instance)
    kinds = dict(zip(groups, GroupKind.all_of(instance, groups), strict=True))
    told = _told_by_order(kinds, {server: row[0] for row in classes for server in row})
    if not told:
        return classes
    holding: dict[int, list[Group]] = {}
    for group in told:
        for server, _ in group.counts:
            holding.setdefault(server, []).append(group)
    compared = sum(len(row) * sum(len(holding.get(server, ())) for server in row) for row in classes)
    if compared > MAX_COMPARED:
        return [[server] for server in range(len(instance.servers))]
    return [part for row in classes for part in _parts(row, lambda *pair: _kinds_stay(kinds, holding, *pair))]


def _told_by_order(kinds: dict[Group, GroupKind], stands_for: dict[int, int]) -> list[Group]:
    """Return the groups that differ in kind from another with as many devices of servers of the same classes."""
    found: dict[tuple[object, ...], dict[GroupKind, list[Group]]] = {}
    for group, kind in kinds.items():
        held = tuple(sorted((stands_for[server], count) for server, count in group.counts))
        found.setdefault((group.mode, held), {}).setdefault(kind, []).append(group)
    return [group for row in found.values() if len(row) > 1 for same in row.values() for group in same]


def _parts(servers: list[int], same: Callable[[int, int], bool]) -> list[list[int]]:
    """Return servers by classes; ``same`` must be an equivalence, as to change places without effect is."""
    found: list[list[int]] = []
    for server in servers:
        known = next((row for row in found if same(row[0], server)), None)
        if known is None:
            found.append([server])
        else:
            known.append(server)
    return found


def _kinds_stay(kinds: dict[Group, GroupKind], holding: dict[int, list[Group]], one: int, other: int) -> bool:
    """Tell whether every group that holds one of two servers keeps its kind when they change places."""
    swapped = {one: other, other: one}
    for group in (*holding.get(one, ()), *holding.get(other, ())):
        counts = tuple(sorted((swapped.get(server, server), count) for server, count in group.counts))
        if kinds.get(replace(group, counts=counts)) != kinds[group]:
            return False
    return True
