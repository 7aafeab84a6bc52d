"""Which suffixes of a plan exist within a threshold T where alike servers are counts.

    V[k][b, h, i, u] = the fewest devices of the counted class with which stages in slots k .. 0 can hold the
                       layers from i on, if they begin at base b with a stage of hand h and take u of the others

A stage in slot k on a place p that starts at layer i stops at a layer j in (i, E(k, p, i)], where E is the
furthest end within T and the memory that slot k leaves. So V[k] is the least, over places, of what p takes and the
least of V[k-1] over a run of layers j whose boundary can be crossed: a range, answered by a table of ranges whose
lengths are powers of two. Hands over which the same boundaries can be crossed are one.

More devices of the counted class never help a suffix, so one number stands for all: alike servers may change their
places, and on the line a suffix may move towards the front.

Cost: for each slot O(places x layers x counts of the other classes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.units import Link
from pipecut.solvers.dynamic.counts.layouts import CountedPlace, CountLayout
from pipecut.solvers.dynamic.tables.stage_table import StageTable

Devices = NDArray[np.int16 | np.int32]
"""Numbers of devices; by layer, then by devices taken of every class but the counted one."""
Bits = NDArray[np.bool_]
SMALL = 10_000
"""Up to so many devices of a class numbers of 16 bits count them."""


@dataclass(frozen=True, slots=True, eq=False)
class CountSpace:
    """The layout of an instance and its tables; ``flat`` and ``offsets`` are the kinds of each place."""

    layout: CountLayout
    tables: Tables
    flat: NDArray[np.intp]
    offsets: NDArray[np.intp]

    @classmethod
    def of(cls, layout: CountLayout, tables: Tables) -> CountSpace:
        """Return the space of a layout, whose groups are those of the tables."""
        ways = [[tables.kind_of[index] for index in place.groups] for place in layout.places]
        flat = np.array([kind for row in ways for kind in row], dtype=np.intp)
        return cls(layout, tables, flat, np.cumsum([0, *map(len, ways)])[:-1])


class CountReach:
    """The tables V for one threshold, slot by slot, with the furthest ``ends`` of stages by slot and kind.

    ``depth`` is the least slot that a whole plan starts in, None if there is none.
    """

    def __init__(self, space: CountSpace, threshold_ns: int, ends: Callable[[int], Times]) -> None:
        self.space, self.threshold_ns, self.ends = space, threshold_ns, ends
        self.total = space.tables.rows
        self.depth: int | None = None
        self.found: list[dict[tuple[int, int], Devices]] = []
        layout = space.layout
        self._others = tuple(number + 1 for one, number in enumerate(layout.capacity) if one != layout.counted)
        most = layout.capacity[layout.counted]
        self._none = 2 * most + 1
        self._number = np.int16 if most <= SMALL else np.int32
        self._crossed = crossed(space, threshold_ns)
        self.hand = alike_hands(layout, self._crossed)
        self._stops: dict[int, Times] = {}

    def before_any(self, base: int) -> Devices:
        """Return the table of the empty suffix at a base: it takes nothing, behind the last layer."""
        table = self._empty()
        table[(self.total, *(0 for _ in self._others))] = 0
        return table

    def stops(self, slot: int) -> Times:
        """Return the furthest ends of the places, by place and first layer 0 .. N."""
        key = id(self.ends(slot))
        if key not in self._stops:
            self._stops[key] = np.maximum.reduceat(self.ends(slot)[self.space.flat], self.space.offsets, axis=0)
        return self._stops[key]

    def crossable(self, base: int, before: int, hand: int) -> Bits:
        """Return the layers at which a stage of a hand may be followed by one of another, at a base."""
        return self._crossed[base, before, hand]

    def grow(self) -> bool:
        """Add the next slot; return False if no suffix is that long."""
        slot, layout = len(self.found), self.space.layout
        table: dict[tuple[int, int], Devices] = {}
        stops = self.stops(slot)
        for base in in_time(range(layout.bases), self.space.tables.deadline):
            for places, behind in self._behind(slot, base):
                self._put_before(places, behind, stops, table)
        most = layout.capacity[layout.counted]
        for (base, _), values in table.items():
            values[values > most - base] = self._none
        self.found.append(table)
        whole = [values[0] for (base, _), values in table.items() if base == 0]
        if self.depth is None and any((values < self._none).any() for values in whole):
            self.depth = slot
        return any((values < self._none).any() for values in table.values())

    def least(self) -> list[tuple[int, int, tuple[int, int], tuple[int, ...]]]:
        """Return every way to end up with a whole plan: devices, slot, (base, hand), devices of other classes."""
        rows: list[tuple[int, int, tuple[int, int], tuple[int, ...]]] = []
        for slot, table in enumerate(self.found):
            for key, values in table.items():
                if key[0] == 0:
                    for others in np.argwhere(values[0] < self._none):
                        at = tuple(map(int, others))
                        rows.append((int(values[(0, *at)]) + sum(at), slot, key, at))
        return rows

    def _behind(self, slot: int, base: int) -> list[tuple[list[int], Devices]]:
        """Return the places whose suffix begins at a base, and what lies behind them where it can be crossed."""
        layout = self.space.layout
        own = [at for at, place in enumerate(layout.places) if place.base == base]
        if slot == 0:
            return [(own, self.before_any(base))] if own else []
        known = [(hand, values) for (one, hand), values in self.found[-1].items() if one == base]
        if not known:
            return []
        alike: dict[bytes, list[int]] = {}
        for at in own:
            rows = [self.crossable(base, layout.places[at].hand, hand) for hand, _ in known]
            alike.setdefault(np.concatenate(rows).tobytes(), []).append(at)
        found: list[tuple[list[int], Devices]] = []
        for places in alike.values():
            before, table = layout.places[places[0]].hand, self._empty()
            for hand, values in known:
                open_ = self.crossable(base, before, hand)
                table[open_] = np.minimum(table[open_], values[open_])
            found.append((places, table))
        return found

    def _put_before(
        self, places: list[int], behind: Devices, stops: Times, table: dict[tuple[int, int], Devices]
    ) -> None:
        """Join what stages on these places reach into the table of the next slot."""
        ranges = _ranges(behind, self._none)
        chosen = [self.space.layout.places[at] for at in places]
        if not self._others:
            reached = (
                self._least_of(ranges, stops[places])
                + np.array([one.devices for one in chosen], dtype=self._number)[:, None]
            )
            for place, row in zip(chosen, reached, strict=True):
                into = self._table(table, place)
                np.minimum(into[:-1], row, out=into[:-1])
            return
        for at, place in zip(places, chosen, strict=True):
            self.space.tables.deadline.check()
            reached = self._least_of(ranges, stops[at])
            into, taken = self._table(table, place)[:-1], self.taken(place)
            if place.server_class == self.space.layout.counted:
                reached = reached + self._number(place.devices)
            sizes = zip(self._others, taken, strict=True)
            target = into[(slice(None), *(slice(number, None) for number in taken))]
            source = reached[(slice(None), *(slice(0, size - number) for size, number in sizes))]
            np.minimum(target, source, out=target)

    def taken(self, place: CountedPlace) -> tuple[int, ...]:
        """Return what a place takes of every class but the counted one."""
        layout = self.space.layout
        others = (one for one in range(len(layout.capacity)) if one != layout.counted)
        return tuple(place.devices if one == place.server_class else 0 for one in others)

    def _table(self, table: dict[tuple[int, int], Devices], place: CountedPlace) -> Devices:
        key = (place.base_after, self.hand[place.hand])
        if key not in table:
            table[key] = self._empty()
        return table[key]

    def _least_of(self, ranges: Devices, stops: Times) -> Devices:
        """Return the least over the layers i+1 .. stop behind every layer i; stops may be of many places."""
        first = np.arange(1, self.total + 1)
        length = np.maximum(stops[..., :-1] - first + 1, 0)
        level = np.frexp(np.maximum(length, 1).astype(np.float64))[1] - 1
        other = np.maximum(stops[..., :-1] - (1 << level) + 1, 0)
        least = np.minimum(ranges[level, np.broadcast_to(first, level.shape)], ranges[level, other])
        least[length == 0] = self._none
        return least

    def _empty(self) -> Devices:
        return np.full((self.total + 1, *self._others), self._none, dtype=self._number)


def _ranges(values: Devices, none: int) -> Devices:
    """Return the least of 1, 2, 4, ... values from each layer on; beyond the last layer lies nothing."""
    rows = [values]
    while (half := 1 << (len(rows) - 1)) < len(values):
        further = np.full_like(values, none)
        further[:-half] = rows[-1][half:]
        rows.append(np.minimum(rows[-1], further))
    return np.stack(rows)


def crossed(space: CountSpace, threshold_ns: int) -> dict[tuple[int, int, int], Bits]:
    """Return, by base and the hands before and behind, the layers whose boundary can be crossed."""
    tables, layout = space.tables, space.layout
    both = tables.activation + tables.gradient <= threshold_ns
    index = {link: at for at, link in enumerate(tables.links)}
    rows: dict[tuple[Link, ...], Bits] = {}
    found: dict[tuple[int, int, int], Bits] = {}
    for base, by_hand in enumerate(layout.links):
        for before, row in enumerate(by_hand):
            for hand, links in enumerate(row):
                if links not in rows:
                    bits = [both[index[link]] for link in links]
                    rows[links] = np.logical_or.reduce(bits) if bits else np.ones(tables.rows + 1, dtype=bool)
                    rows[links] |= np.arange(tables.rows + 1) == tables.rows
                found[base, before, hand] = rows[links]
    return found


def alike_hands(layout: CountLayout, crossed: dict[tuple[int, int, int], Bits]) -> list[int]:
    """Return for every hand the first one over which the same boundaries can be crossed."""
    hands = range(len(layout.links[0]))
    keys = [
        b"".join(crossed[base, before, hand].tobytes() for base in range(layout.bases) for before in hands)
        for hand in hands
    ]
    return [keys.index(key) for key in keys]


def count_reach(space: CountSpace, table: StageTable, threshold_ns: int, *, thorough: bool) -> CountReach | None:
    """Return what is reached through all slots, or if not ``thorough`` up to the first plan; None if stopped."""
    instance = table.tables.instance
    slots = min(table.limits.total, instance.devices)
    rules = table.limits.slots(slots)
    known: dict[int, Times] = {}

    def ends(slot: int) -> Times:
        rule = rules[slot]
        if rule not in known:
            known[rule] = table.ends(rule, threshold_ns)
        return known[rule]

    reach = CountReach(space, threshold_ns, ends)
    for _ in range(slots):
        if table.tables.deadline.over():
            return None
        if not reach.grow() or (reach.depth is not None and not thorough):
            break
    return reach
