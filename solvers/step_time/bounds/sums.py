"""The least sum over all plans of so many stages, each pass of each stage counted so often.

Passes of a stage are known at least: in some proportions of both passes and the synchronisation together
(``solvers.step_time.bounds.rays``), and pass by pass. Sums of them are no less than those of the proportions that
they hold, and what is left by layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.limits import Deadline, in_time
from pipecut.solvers.step_time.bounds.pairs import Pairs, pairs_of_ways
from pipecut.solvers.step_time.bounds.paths import ACTIVATION, BACKWARD, FORWARD, GRADIENT, ROWS, SYNC
from pipecut.solvers.step_time.bounds.rays import parts_of, passes_of
from pipecut.solvers.step_time.bounds.spans import Spans
from pipecut.solvers.step_time.bounds.ways import Ways

NEVER_NS = 1 << 58
"""More than any sum that counts."""
SOME = 64
"""So many stages of a slot stand for all where nothing is known of good plans."""


@dataclass(frozen=True, slots=True, eq=False)
class LeastPlan:
    """A plan with a small sum: ``passes`` about as they take, by row of ``paths`` and stage.

    ``stages``: the way, first place and stop of each, from the front; ``values`` what is known of it, by slot.
    """

    passes: NDArray[np.float64]
    stages: tuple[tuple[int, int, int], ...]
    values: tuple[NDArray[np.float64], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Sums for plans of ``len(slots)`` stages that are made of the pairs in them.

    Sums above a limit are as good as none.
    """

    spans: Spans
    ways: Ways
    slots: tuple[Pairs, ...]
    deadline: Deadline

    @property
    def size(self) -> int:
        """Number of pairs in all slots."""
        return sum(len(pairs.rows) for pairs in self.slots)

    @property
    def cells(self) -> int:
        """Numbers of ends and places."""
        return len(self.ways.node) * self.spans.pace.shape[2]

    def typical(self) -> tuple[NDArray[np.float64], ...]:
        """Return by slot what is known of stages in the mean of some."""
        some = [pairs.rows[:: 1 + len(pairs.rows) // SOME] for pairs in self.slots]
        return tuple(pairs.of.values(rows) for pairs, rows in zip(self.slots, some, strict=True))

    def costs(self, often: Times, values: Sequence[NDArray[np.float64]]) -> list[Times]:
        """Return by slot what each stage and the boundary behind it add to a sum.

        They are best for stages of which these values are known.
        """
        last = len(self.slots) - 1
        return [self._costs(slot, often[:, last - slot].tolist(), values[slot]) for slot in range(last + 1)]

    def behind(self, costs: list[Times], limit: int) -> Times:
        """Return the least of every suffix, by slot, and number of end and place. Cost: that of all pairs."""
        found = np.full((len(self.slots), self.cells), NEVER_NS, dtype=np.int64)
        for slot in in_time(range(len(self.slots)), self.deadline):
            target = self.slots[slot].target
            if len(target):
                starts = np.flatnonzero(np.diff(target, prepend=-1))
                value = costs[slot] + self.arriving(slot, found)
                found[slot, target[starts]] = np.minimum.reduceat(value, starts)
            found[slot][found[slot] > limit] = NEVER_NS
        return found

    def ahead(self, costs: list[Times], limit: int) -> Times:
        """Return the least of what is before every suffix, in the same way."""
        found = np.full((len(self.slots), self.cells), NEVER_NS, dtype=np.int64)
        found[-1].reshape(len(self.ways.node), -1)[self.ways.whole, 0] = 0
        for slot in in_time(range(len(self.slots) - 1, 0, -1), self.deadline):
            value = costs[slot] + found[slot, self.slots[slot].target]
            np.minimum.at(found[slot - 1], self.slots[slot].source, value)
            found[slot - 1][found[slot - 1] > limit] = NEVER_NS
        return found

    def within(self, costs: list[Times], limit: int, ahead: Times, behind: Times) -> Sums:
        """Return the same with those pairs alone that are in plans whose sum is within the limit."""
        kept: list[Pairs] = []
        for slot, pairs in enumerate(self.slots):
            good = costs[slot] + self.arriving(slot, behind) + ahead[slot, pairs.target] <= limit
            kept.append(pairs if good.all() else pairs.where(good))
        return replace(self, slots=tuple(kept))

    def whole(self, behind: Times) -> int:
        """Return the least of all plans."""
        return int(behind[-1].reshape(len(self.ways.node), -1)[self.ways.whole, 0].min(initial=NEVER_NS))

    def by_places(self, fine: Spans) -> Sums:
        """Return the sums of the same plans by places, where those here are blocks of them."""
        slots: list[Pairs] = []
        for slot, pairs in enumerate(self.slots):
            of, rows, place = pairs.of, pairs.rows, self.spans.place
            first, stop = of.first[rows], of.stop[rows]
            ends = np.append(place[1:], place[-1] + 1)
            starts, stops = (ends - place)[first], (ends - place)[stop]
            row = np.repeat(np.arange(len(rows)), starts * stops)
            nth = np.arange(len(row)) - np.repeat(np.cumsum(starts * stops) - starts * stops, starts * stops)
            begin, end = place[first[row]] + nth // stops[row], place[stop[row]] + nth % stops[row]
            way, kind = of.way[rows][row], of.kind[rows][row]
            good = (begin < end) & fine.roomy[fine.rules[slot]][kind, np.minimum(begin, end - 1), end]
            slots.append(pairs_of_ways(fine, self.ways, of.least, way[good], begin[good], end[good]))
        return replace(self, spans=fine, slots=tuple(slots))

    def arriving(self, slot: int, behind: Times) -> Times | int:
        """Return the least behind each stage of a slot."""
        return behind[slot - 1, self.slots[slot].source] if slot else 0

    def plan(self, often: Times, costs: list[Times], behind: Times) -> LeastPlan:
        """Return a plan with the least sum."""
        stages, known = list[tuple[int, int, int]](), list[NDArray[np.float64]]()
        slots, places = len(self.slots), self.spans.pace.shape[2]
        whole = np.flatnonzero(self.ways.whole) * places
        cell = int(whole[behind[-1, whole].argmin()])
        found = np.zeros((ROWS, slots))
        for slot in reversed(range(slots)):
            pairs, stage = self.slots[slot], slots - 1 - slot
            low, high = np.searchsorted(pairs.target, [cell, cell + 1])
            sources = pairs.source[low:high]
            value = costs[slot][low:high] + (behind[slot - 1, sources] if slot else 0)
            cell = int(sources[value.argmin()])
            of, row = pairs.of, int(pairs.rows[low + value.argmin()])
            known.append(of.values(pairs.rows[[low + value.argmin()]]))
            counts = (*often[[FORWARD, BACKWARD, SYNC], stage].tolist(),)
            found[[FORWARD, BACKWARD, SYNC], stage] = passes_of(counts, of.spans.known, known[-1])
            found[[FORWARD, BACKWARD], stage] += of.fetched[:, row]
            found[[ACTIVATION, GRADIENT], stage] = of.sent[:, row] if slot else 0
            stages.append((int(of.way[row]), int(of.first[row]), int(of.stop[row])))
        return LeastPlan(found, tuple(stages), tuple(reversed(known)))

    def _costs(self, slot: int, counts: list[int], values: NDArray[np.float64]) -> Times:
        pairs, sent = self.slots[slot], (counts[ACTIVATION], counts[GRADIENT])
        of, rows = pairs.of, pairs.rows
        parts = parts_of((counts[FORWARD], counts[BACKWARD], counts[SYNC]), of.spans.known, values)
        value = np.zeros(len(rows), dtype=np.int64)
        for one, often in parts.known:
            value += often * of.together(of.spans.known.index(one), rows)
        for row, often in enumerate(parts.alone):
            if often:
                value += often * of.alone(row, rows)
        crossed = [(of.fetched, (counts[FORWARD], counts[BACKWARD])), *([(of.sent, sent)] if slot else [])]
        for table, both in crossed:
            for row, often in enumerate(both):
                if often:
                    value += often * table[row, rows]
        return value
