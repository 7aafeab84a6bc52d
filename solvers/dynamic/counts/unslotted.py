"""Which suffixes of a plan exist on a line of alike servers where it does not matter how many stages follow.

    V[b, h, i] = the fewest devices with which stages can hold the layers from i on, if they begin at base b with a
                 stage of hand h

That is ``solvers.dynamic.counts.reach`` without slots, for large instances without a limit on memory: layer by
layer from the last to the first, a stage on a place p from layer i on stops at a layer j in (i, E(p, i)], and V
there is known. The least over a range is read from a table of ranges whose lengths are powers of two, of which a
layer adds one column. Of plans with equally few devices it finds any, not the one with the fewest stages.

Cost: O(layers x places x log(layers)) for each threshold.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.plan import Span
from pipecut.solvers.dynamic.counts.layouts import CountedPlace
from pipecut.solvers.dynamic.counts.reach import CountSpace, alike_hands, crossed
from pipecut.solvers.dynamic.tables.stage_table import StageTable

Devices = NDArray[np.int32]


class UnslottedReach:
    """The table V for one threshold; ``depth`` is 0 if there is a whole plan, else None.

    Raises StoppedError after the deadline of the tables.
    """

    def __init__(self, space: CountSpace, table: StageTable, threshold_ns: int) -> None:
        self.space, self.threshold_ns = space, threshold_ns
        self.ends = table.ends(0, threshold_ns)
        self._stops = np.maximum.reduceat(self.ends[space.flat], space.offsets, axis=0)
        self._none = 2 * space.layout.capacity[0] + 1
        open_ = crossed(space, threshold_ns)
        hands = alike_hands(space.layout, open_)
        self._hands = sorted(set(hands))
        places = space.layout.places
        # What lies before a boundary and what behind it: rows of V by base and hand.
        self._row = {(base, hand): at for at, (base, hand) in enumerate(self._pairs())}
        self._before = np.array([self._row[one.base, hands[one.hand]] for one in places])
        self._after = np.array([self._row[one.base_after, hands[one.hand]] for one in places])
        self._open = np.array(
            [[open_[base, hand, other] for other in self._hands] for base, hand in self._pairs()], dtype=np.bool_
        )
        self._devices = np.array([one.devices for one in places], dtype=np.int32)
        self.least = np.full((len(self._row), space.tables.rows + 1), self._none, dtype=np.int32)
        self._run()
        whole = [self.least[row, 0] for (base, _), row in self._row.items() if base == 0]
        self.depth = 0 if min(whole) < self._none else None

    def stages(self) -> Iterator[tuple[CountedPlace, Span, int]]:
        """Yield place, layers and kind of the stages of a plan with the fewest devices, first to last."""
        row = min((row for (base, _), row in self._row.items() if base == 0), key=lambda one: self.least[one, 0])
        layer, total = 0, self.space.tables.rows
        while layer < total:
            place, stop, row = self._step_back(row, layer)
            kind = self._kind(place, Span(layer, stop))
            yield self.space.layout.places[place], Span(layer, stop), kind
            layer = stop

    def _pairs(self) -> list[tuple[int, int]]:
        return [(base, hand) for base in range(self.space.layout.bases) for hand in self._hands]

    def _run(self) -> None:
        total, most = self.space.tables.rows, self.space.layout.capacity[0]
        room = most - np.array([base for base, _ in self._pairs()])
        levels = max(1, total.bit_length())
        ranges = np.full((levels, len(self._row), total + (1 << levels)), self._none, dtype=np.int32)
        length = np.maximum(self._stops[:, :total] - np.arange(total), 0)
        level = np.frexp(np.maximum(length, 1).astype(np.float64))[1] - 1
        back = np.arange(total) + length - (1 << level) + 1
        order = np.argsort(self._after, kind="stable")
        keys, firsts = np.unique(self._after[order], return_index=True)
        before, devices = self._before[order], self._devices[order]
        length, level, back = length[order].T.copy(), level[order].T.copy(), back[order].T.copy()
        some, ahead = np.arange(levels - 1), 1 << np.arange(levels - 1)
        # Behind the last layer lies nothing, and every boundary there can be crossed.
        column = np.zeros(len(self._row), dtype=np.int32)
        for at in in_time(range(total, -1, -1), self.space.tables.deadline):
            if at < total:
                first = ranges[level[at], before, at + 1]
                found = np.minimum(first, ranges[level[at], before, back[at]]) + devices
                found[length[at] == 0] = self._none
                self.least[keys, at] = np.minimum.reduceat(found, firsts)
                self.least[self.least[:, at] > room, at] = self._none
                column = self._crossing(at)
            steps = np.concatenate([column[None], ranges[some, :, at + ahead]])
            ranges[:, :, at] = np.minimum.accumulate(steps, axis=0)

    def _crossing(self, at: int) -> Devices:
        """Return by base and hand before a boundary the least that can lie behind it."""
        behind = self.least[:, at].reshape(-1, 1, len(self._hands)).repeat(len(self._hands), axis=1)
        behind = behind.reshape(len(self._row), len(self._hands))
        return np.where(self._open[:, :, at], behind, self._none).min(axis=1)

    def _step_back(self, row: int, layer: int) -> tuple[int, int, int]:
        """Return place, layer after the stage and row behind it of a stage that makes up the value of a row."""
        total = self.space.tables.rows
        for place in np.flatnonzero(self._after == row):
            left = int(self.least[row, layer]) - int(self._devices[place])
            before, stop = int(self._before[place]), int(self._stops[place, layer])
            if left == 0 and stop == total:
                return int(place), total, row
            first = before - before % len(self._hands)
            cuts = np.arange(layer + 1, min(stop, total - 1) + 1)
            for number, _ in enumerate(self._hands):
                fits = (self.least[first + number, cuts] == left) & self._open[before, number, cuts]
                if fits.any():
                    return int(place), int(cuts[np.flatnonzero(fits)[-1]]), first + number
        raise LookupError(f"no stage from layer {layer} makes up {self.least[row, layer]} devices")

    def _kind(self, place: int, span: Span) -> int:
        """Return the first group of a place that holds a span."""
        for index in self.space.layout.places[place].groups:
            if int(self.ends[self.space.tables.kind_of[index], span.first]) >= span.stop:
                return index
        raise LookupError(f"no way of a place of {self._devices[place]} devices holds layers {span}")
