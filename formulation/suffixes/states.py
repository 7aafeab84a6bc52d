"""Devices that the end of a plan takes: the *states* of dynamic programmes and certificates that go by slots.

The last stages of a plan, a *suffix*, leave behind one thing that the stages before them must know: which devices
are taken. On the line that is the first device of the suffix; under free placement how many devices of each server
it takes. Servers that cannot be told apart are exchanged until their counts fall, which leaves one state of many:
a plan stays a plan, at the same price, when alike servers exchange their places. What joins a suffix to the stage
before it is the link, and that depends on the servers and the adapters of its first stage: its *end*, which is
kept beside the state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from formulation.limits.deadline import NEVER, Deadline, in_time
from formulation.limits.size import TooLargeError
from formulation.problem.groups import Group, GroupKind, line_places
from formulation.problem.instance import Instance
from formulation.problem.options import Placement
from formulation.problem.shares import same_servers

__all__ = ["End", "State", "Step", "Suffixes", "alike_servers", "suffixes"]

State = tuple[int, ...]
"""Free placement: devices taken of each server. Line: one number, the first device taken."""
Servers = tuple[int, ...]
"""Servers, ascending."""
End = tuple[Servers, int]
"""What a boundary needs of a stage: its servers, and how many of their adapters it has."""

MAX_STATES = 20_000
MAX_STEPS = 5_000_000
MAX_COMPARED = 20_000


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
            Place(counts := groups[ways[place][0]].counts, instance.lanes(counts), tuple(ways[place]), *place)
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
        self.places = tuple(Place(counts, instance.lanes(counts), tuple(found)) for counts, found in ways.items())
        self._sizes = tuple(server.devices for server in instance.servers)
        self._alike = alike_servers(instance, groups)
        if demanded:
            self._alike = [part for row in self._alike for part in _demanded_alike(instance, row)]
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


def alike_servers(instance: Instance, groups: tuple[Group, ...]) -> list[list[int]]:
    """Return the servers by classes of those that cannot be told apart: same devices, same links to all others.

    Replicas are laid out in server order, so with tensor-parallel degrees the kinds of all groups are compared as
    well; where that would be too many, every server counts as one of its own. Demands are not looked at.
    """
    classes = same_servers(instance)
    if any(degree > 1 for degree in instance.constraints.tensor_parallel_degrees):
        pairs = [pair for row in classes for pair in itertools.pairwise(row)]
        if len(pairs) * len(groups) > MAX_COMPARED or not all(
            _kinds_stay(instance, groups, *pair) for pair in pairs
        ):
            return [[server] for server in range(len(instance.servers))]
    return classes


def _demanded_alike(instance: Instance, servers: list[int]) -> list[list[int]]:
    """Return servers by classes of those that no demand tells apart."""
    found: list[list[int]] = []
    for server in servers:
        known = next((row for row in found if not instance.demands.tell_apart(row[0], server)), None)
        if known is None:
            found.append([server])
        else:
            known.append(server)
    return found


def _kinds_stay(instance: Instance, groups: tuple[Group, ...], one: int, other: int) -> bool:
    """Tell whether every group keeps its kind when two servers exchange their places."""
    swapped = {one: other, other: one}
    for group in groups:
        counts = tuple(sorted((swapped.get(server, server), count) for server, count in group.counts))
        if GroupKind.of(instance, group) != GroupKind.of(instance, replace(group, counts=counts)):
            return False
    return True
