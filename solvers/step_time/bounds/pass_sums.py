"""The least sum over all plans of so many stages, each pass of each stage counted so often.

Passes of a stage are known at least: in some proportions of both passes and the synchronisation together
(``solvers.step_time.bounds.rays``), and pass by pass. Sums of them are no less than those of the proportions that
they hold, and what is left by layers.

Plans are made of pairs: the stages of a slot, with the ways in which they are put before suffixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.limits import Deadline, in_time
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.solvers.step_time.bounds.columns import COLUMNS
from pipecut.solvers.step_time.bounds.pass_tables import PassTables
from pipecut.solvers.step_time.bounds.paths import ACTIVATION, BACKWARD, FORWARD, GRADIENT, ROWS, SYNC
from pipecut.solvers.step_time.bounds.rays import parts_of, passes_of
from pipecut.solvers.step_time.bounds.spans import Bits, Index, Spans
from pipecut.solvers.step_time.bounds.ways import NOTHING, Ways

MOST_PAIRS = 1 << 20
"""So many pairs of a way and a stage are looked at in a slot."""


def least_passes(passes: PassTables, space: CutSpace) -> Times:
    """Return sums over layers up to each place of the least that their forms take, by bound, pass and kind.

    A stage takes no less of a pass than any of its bounds says (``columns.PassColumns``).
    """
    rows = np.stack([passes.columns.below(one) for one in np.eye(COLUMNS, dtype=np.int64).tolist()], axis=1)
    possible = passes.layers[..., 0] < FORBIDDEN
    least = np.zeros((*rows.shape[:2], len(possible), len(space.places)), dtype=np.int64)
    for at in np.ndindex(*rows.shape[:2]):
        own = np.where(possible, passes.layers @ rows[at], FORBIDDEN).min(axis=2)
        own[own >= FORBIDDEN] = 0
        least[at] = np.pad(own.cumsum(axis=1), ((0, 0), (1, 0)))[:, list(space.places)]
    return least


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """Ways with their stages in a slot, by ascending ``target``: the number of an end and a place.

    ``least[bound, row, kind, place]``: sums of passes over layers; ``nearest``: the last place of the block that
    a stage begins in, and the first one of that where it stops. ``fetched``: activation and gradient that the
    stage fetches itself; ``sent``: what crosses the boundary behind it.
    """

    spans: Spans
    least: Times
    kind: Index
    way: Index
    first: Index
    stop: Index
    nearest: Index
    fetched: Times
    sent: Times

    def together(self, row: int, rows: Index) -> Times:
        """Return the least of passes in a known proportion, without what is fetched."""
        return self.spans.least(row, self.kind[rows], self.first[rows], self.stop[rows])

    def alone(self, row: int, rows: Index) -> Times:
        """Return the least of one of the passes, which is that of layers between the nearest places of blocks."""
        kind, least, (first, stop) = self.kind[rows], self.least[:, row], self.nearest[:, rows]
        return (least[:, kind, stop] - least[:, kind, first]).max(axis=0, initial=0)

    def values(self, rows: Index) -> NDArray[np.float64]:
        """Return the mean of the least of every known proportion, and of each pass alone, over some stages."""
        kind, (first, stop) = self.kind[rows], self.nearest[:, rows]
        alone = (self.least[:, :, kind, stop] - self.least[:, :, kind, first]).max(axis=0, initial=0)
        known = self.spans.all_least(kind, self.first[rows], self.stop[rows])
        return np.concatenate([known, alone]).sum(axis=1) / max(1, len(rows))


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Some of the stages of a slot, as ascending ``rows`` of all of them, with their targets and sources."""

    of: Stages
    rows: Index
    target: Index
    source: Index

    def where(self, some: NDArray[np.bool_]) -> Pairs:
        """Return some of them."""
        return Pairs(self.of, self.rows[some], self.target[some], self.source[some])


def pairs_of(spans: Spans, ways: Ways, least: Times, useful: Bits, *, last: bool) -> Pairs | None:
    """Return the pairs of useful stages, last ones or others; None if they are more than MOST_PAIRS."""
    some = np.flatnonzero((ways.source == NOTHING) == last)
    stages = {kind: np.nonzero(useful[kind]) for kind in np.unique(ways.kind[some]).tolist()}
    if sum(len(stages[kind][0]) for kind in ways.kind[some].tolist()) > MOST_PAIRS:
        return None
    end = spans.pace.shape[2] - 1
    rows: list[Index] = []
    for way in some.tolist():
        first, stop = stages[int(ways.kind[way])]
        here = stop == end if last else stop < end
        rows.append(np.stack([np.full(int(here.sum()), way), first[here], stop[here]]))
    way, first, stop = np.concatenate(rows, axis=1) if rows else np.zeros((3, 0), dtype=np.int64)
    return pairs_of_ways(spans, ways, least, way, first, stop)


def pairs_of_ways(spans: Spans, ways: Ways, least: Times, way: Index, first: Index, stop: Index) -> Pairs:
    """Return the pairs of stages (way, first layer, stop), sorted by the suffix they lead to, with their times."""
    places = spans.pace.shape[2]
    order = np.argsort(ways.target[way] * places + first, kind="stable")
    way, first, stop = way[order], first[order], stop[order]
    target, source = ways.target[way] * places + first, ways.source[way] * places + stop
    link, sent = ways.link[way], spans.boundaries
    fetched = np.stack([sent.fetched[ways.front[way], first], sent.returned[link, stop]])
    crossed = np.stack([sent.activation[link, stop], sent.gradient[link, stop]])
    nearest = np.stack([np.append(spans.place[1:] - 1, spans.place[-1])[first], spans.place[stop]])
    of = Stages(spans, least, ways.kind[way], way, first, stop, nearest, fetched, crossed)
    return Pairs(of, np.arange(len(way)), target, source)


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
