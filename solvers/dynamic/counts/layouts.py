"""Servers that cannot be told apart, as counts: the places of stages up to an exchange or a shift of servers.

*The line*, all servers alike: a suffix of a plan that begins at the third device of a server may begin at the
third device of any server before it as well. So what the stages before it must know is the device within its
server, its *base*, and how few devices the suffix takes.

*Free placement*, stages within one server: of every class of alike servers it is known how many devices are taken,
not of which servers. A plan of counts is one only if its stages can be packed into servers, which is tried for
every plan that is found (``solvers.dynamic.counts.paths``); that there is none by counts holds in any case.

What a boundary needs of the first stage behind it is its *hand*: on the line whether the stage lies within one
server, and how many adapters it has, under free placement its servers' class and its size. Where two stages may
lie in one server or in two, either link is offered, so that bounds hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.problem.constraints import Placement
from pipecut.formulation.problem.groups import Group, modes_by_size
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.shares import lanes, same_servers
from pipecut.formulation.problem.units import Link, slowest

Hand = tuple[bool, int]
"""On the line: whether a stage lies in several servers, and how many of their adapters it has."""
MOST_COUNTS = 100_000
"""Numbers of devices taken that are told apart, the last class aside."""


@dataclass(frozen=True, slots=True)
class CountedPlace:
    """Devices of a stage up to alike servers, and the ways in which they may work together.

    ``groups`` are indices into ``CountLayout.groups``, which has one group for all that are alike. A stage on it
    before a suffix at ``base`` makes one at ``base_after``, whose first stage has this ``hand``; it takes
    ``devices`` of ``server_class``.
    """

    groups: tuple[int, ...]
    base: int
    base_after: int
    hand: int
    server_class: int
    devices: int


@dataclass(frozen=True, slots=True)
class CountLayout:
    """The places of an instance whose servers are counts.

    ``classes`` are the servers that are alike, ``capacity`` their devices together. ``links[base][before][hand]``
    are the links of which a boundary may take any, between stages of these hands. ``on_line``: bases are devices
    within a server, and a whole plan begins at base 0; else there is one base.
    """

    groups: tuple[Group, ...]
    places: tuple[CountedPlace, ...]
    classes: tuple[tuple[int, ...], ...]
    capacity: tuple[int, ...]
    links: tuple[tuple[tuple[tuple[Link, ...], ...], ...], ...]
    on_line: bool

    @property
    def bases(self) -> int:
        """How many bases there are."""
        return len(self.links)

    @property
    def counted(self) -> int:
        """The class of which the fewest devices are sought; of the others every number is told apart."""
        return max(range(len(self.capacity)), key=lambda one: self.capacity[one])


def count_layout(instance: Instance) -> CountLayout | None:
    """Return the layout of an instance; None where its servers are no counts, or where that does not help.

    Raises TooLargeError where counts are too many. Cost: O(devices of a server x sizes of stages).
    """
    classes = same_servers(instance)
    if instance.constraints.placement is Placement.LINE:
        return _line(instance) if len(classes) == 1 and len(instance.servers) > 1 else None
    if instance.constraints.max_servers != 1 or len(classes) == len(instance.servers):
        return None
    return _free(instance, classes)


def _line(instance: Instance) -> CountLayout:
    width, total = instance.servers[0].devices, instance.devices
    most = instance.constraints.max_servers or len(instance.servers)
    groups: list[Group] = []
    places: list[CountedPlace] = []
    hands: dict[Hand, int] = {}
    for devices, ways in modes_by_size(instance).items():
        for base in range(width) if ways else ():
            first = (base - devices) % width
            servers = (first + devices - 1) // width + 1
            if first + devices > total or servers > most:
                continue
            index = tuple(range(len(groups), len(groups) + len(ways)))
            groups += [Group.on_line(instance, first, devices, way) for way in ways]
            hand = servers > 1, lanes(instance, groups[-1].counts)
            places.append(CountedPlace(index, base, first, hands.setdefault(hand, len(hands)), 0, devices))
    everyone = tuple(range(len(instance.servers)))
    links = tuple(_hands_of_the_line(instance, base, tuple(hands)) for base in range(width))
    return CountLayout(tuple(groups), tuple(places), (everyone,), (total,), links, on_line=True)


def _hands_of_the_line(
    instance: Instance, base: int, hands: tuple[Hand, ...]
) -> tuple[tuple[tuple[Link, ...], ...], ...]:
    """Return by hand of the stage before and behind the link between them."""
    inside, between = instance.links[0][0], instance.links[0][1]

    def met(before: Hand, hand: Hand) -> tuple[Link, ...]:
        # Stages meet within a server unless the suffix begins with one.
        links = (between,) if base == 0 else (inside, between) if before[0] or hand[0] else (inside,)
        known = tuple(link for link in links if link is not None)
        return (slowest(known).times(min(before[1], hand[1])),) if known else ()

    return tuple(tuple(met(before, hand) for hand in hands) for before in hands)


def _free(instance: Instance, classes: list[list[int]]) -> CountLayout:
    sizes = [instance.servers[row[0]].devices for row in classes]
    capacity = tuple(len(row) * size for row, size in zip(classes, sizes, strict=True))
    told_apart = math.prod(number + 1 for number in capacity) // (max(capacity) + 1)
    if told_apart > MOST_COUNTS:
        raise TooLargeError(
            f"{told_apart} numbers of devices taken of {len(classes)} kinds of servers, at most {MOST_COUNTS} can"
            " be searched; plan on the line"
        )
    groups: list[Group] = []
    places: list[CountedPlace] = []
    for devices, ways in modes_by_size(instance).items():
        for one, row in enumerate(classes):
            if ways and devices <= sizes[one]:
                index = tuple(range(len(groups), len(groups) + len(ways)))
                groups += [Group(((row[0], devices),), way) for way in ways]
                places.append(CountedPlace(index, 0, 0, len(places), one, devices))
    links = tuple(tuple(tuple(_offered(instance, classes, one, other)) for other in places) for one in places)
    return CountLayout(tuple(groups), tuple(places), tuple(map(tuple, classes)), capacity, (links,), on_line=False)


def _offered(
    instance: Instance, classes: list[list[int]], one: CountedPlace, other: CountedPlace
) -> Iterator[Link]:
    """Yield the links over which two stages may be joined, in one server or in two."""
    mine, theirs = classes[one.server_class], classes[other.server_class]
    alike, lanes = mine == theirs, common_lanes(instance, classes, one, other)
    inside = instance.links[mine[0]][mine[0]]
    if alike and inside is not None and one.devices + other.devices <= instance.servers[mine[0]].devices:
        yield inside.times(lanes)
    if not alike or len(mine) > 1:
        link = instance.links[mine[0]][theirs[1] if alike else theirs[0]]
        if link is not None:
            yield link.times(lanes)


def common_lanes(
    instance: Instance, classes: Sequence[Sequence[int]], one: CountedPlace, other: CountedPlace
) -> int:
    """Return how many adapters two stages within one server each have for their boundary."""
    return min(lanes(instance, ((classes[place.server_class][0], place.devices),)) for place in (one, other))
