"""Which row every message and synchronisation is drawn in: as few rows as keep those of one time apart."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from report.trace.events import NETWORK, TraceRow, thread


@dataclass(frozen=True, slots=True)
class Lasting:
    """An entry of the program, or its message, that lasts; ``family`` orders and ``name`` names its rows."""

    entry: int
    family: tuple[int, ...]
    name: str
    start_ns: int
    stop_ns: int


@dataclass(frozen=True, slots=True)
class NetworkRows:
    """The rows of the network: their names in order, and the row of every entry."""

    names: tuple[str, ...]
    row_of: dict[int, TraceRow]

    def described(self) -> Iterator[str]:
        """Yield the metadata events of all rows."""
        for at, name in enumerate(self.names):
            yield from thread(TraceRow(NETWORK, at), name)


def rows_of(lasting: Iterable[Lasting]) -> NetworkRows:
    """Put everything that lasts into rows. Cost: n log n.

    The first row of a family has its name; further ones, which are there only if things of the family happen at
    the same time, have a number behind it, from 2 on.
    """
    families: dict[tuple[int, ...], list[Lasting]] = {}
    for one in lasting:
        families.setdefault(one.family, []).append(one)
    names: list[str] = []
    row_of: dict[int, TraceRow] = {}
    for family in sorted(families):
        members = families[family]
        lanes = lanes_of([(one.start_ns, one.stop_ns) for one in members])
        for one, lane in zip(members, lanes, strict=True):
            row_of[one.entry] = TraceRow(NETWORK, len(names) + lane)
        name = members[0].name
        names += [name if lane == 0 else f"{name} ({lane + 1})" for lane in range(max(lanes) + 1)]
    return NetworkRows(tuple(names), row_of)


def lanes_of(intervals: list[tuple[int, int]]) -> list[int]:
    """Return a lane for each interval (start, stop), always the lowest free one, so that none overlap in a lane.

    Taken by start, this needs no more lanes than there are intervals at the busiest moment. One that stops when
    another starts does not overlap it. Cost: n log n.
    """
    lanes = [0] * len(intervals)
    free: list[int] = []
    taken: list[tuple[int, int]] = []  # (stop, lane), the first to stop on top
    opened = 0
    for at in sorted(range(len(intervals)), key=lambda one: intervals[one]):
        start, stop = intervals[at]
        while taken and taken[0][0] <= start:
            heapq.heappush(free, heapq.heappop(taken)[1])
        if free:
            lanes[at] = heapq.heappop(free)
        else:
            lanes[at], opened = opened, opened + 1
        heapq.heappush(taken, (stop, lanes[at]))
    return lanes
