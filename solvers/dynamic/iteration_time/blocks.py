"""Cuts grouped into blocks: least stage times between blocks of cuts, for a coarse look at all plans first.

Between blocks I and J the least time of any stage that starts at a cut in I and stops at a cut in J is a lower
limit for all of them. Its *reduced* time is the least of

    time(i, j) - (potential(j) - potential(i)),

which telescopes along a plan to ``latency - potential(N) + potential(0)`` whatever the potential is. With the
potential of a good plan the stages that matter are all near 0, and blocks cost little precision (the price trick
of shortest paths, Johnson 1977; coarse-to-fine dynamic programming, Raphael 2001).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.solvers.dynamic.tables.stage_limits import StageLimits
from pipecut.solvers.reference.line import AtomTables

BASE = 8
"""Blocks of more cuts than this are made of blocks of so many."""
Index = NDArray[np.int64]
Bits = NDArray[np.bool_]


class StageSpans:
    """Least times of stages by kind and span, what fits in memory by rank, and what boundaries take.

    Spans and cuts count atoms: cut i is the i-th place of the cut space.

    A *rank* stands for the slots that share a memory rule; slot k has rank ``min(k, ranks - 1)``.
    ``room[r, k, i]``: the furthest cut where a stage of kind k from layer i on can stop within memory in rank r.
    """

    def __init__(self, atoms: AtomTables) -> None:
        tables = atoms.times.tables
        self.atoms, self.limits = atoms, StageLimits(atoms.times, atoms.least)
        limits = self.limits
        self.total = limits.total
        self.kinds = len(tables.kinds)
        self.slots = min(self.total, tables.instance.devices)
        rules = limits.slots(self.slots)
        self.ranks = len(set(rules))
        if rules != [min(slot, self.ranks - 1) for slot in range(self.slots)]:
            self.ranks = self.slots
        ever = [limits.ends(rank, FORBIDDEN - 1) for rank in range(self.ranks)]
        self.room: Times = np.array(ever, dtype=np.int64)
        cuts = np.arange(self.total + 1)
        self.time: Times = limits.times.time
        if limits.held is not None:
            self.time = np.where(cuts <= self.room[0][:, : self.total, None], self.time, FORBIDDEN)
        free = np.zeros((1, self.total + 1), dtype=np.int64)
        self.crossing: Times = np.concatenate([tables.activation + tables.gradient, free])

    def rank(self, slot: int) -> int:
        """Return the rank of a slot."""
        return min(slot, self.ranks - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Blocks of at most ``width`` neighbouring cuts; the first and the last cut are blocks of their own.

    ``first`` and ``last`` are cuts, by block. ``crossing[x, J]``: least time of a boundary in J over link x.
    """

    spans: StageSpans
    width: int
    first: Index
    last: Index
    potential: Times
    crossing: Times
    room: Times
    _time: Times
    _reduced: Times | None

    def __len__(self) -> int:
        return len(self.first)

    def times(self, kind: Index, start: Index, stop: Index) -> tuple[Times, Times]:
        """Return the least times and the least reduced times of stages of kinds between blocks."""
        time = self._time[kind, start, stop]
        if self._reduced is not None:
            return time, self._reduced[kind, start, stop]
        return time, time - self.potential[stop] + self.potential[start]

    def pairs(self, kind: int, most_ns: int) -> tuple[Index, Index]:
        """Return the blocks between which a stage of this kind takes at most so long."""
        start, stop = np.nonzero(self._time[kind] <= most_ns)
        return start, stop

    def children(self, finer: Blocks) -> tuple[Index, Index]:
        """Return for every block its first block among finer ones, and how many blocks it is there."""
        low = np.searchsorted(finer.first, self.first)
        return low, np.searchsorted(finer.last, self.last) - low + 1


def blocks(spans: StageSpans, width: int, potential: Times) -> Blocks:
    """Group cuts. Cost: O(kinds x layers**2) in numpy."""
    total = spans.total
    first = np.concatenate([[0], np.arange(1, total, width), [total]])
    last = np.append(first[1:] - 1, total)
    time, reduced = spans.time, None
    if width > 1:
        steps = spans.time - potential[None, None, :] + potential[None, :-1, None]
        reduced = _least(np.where(spans.time < FORBIDDEN, steps, FORBIDDEN), first)
        time = _least(spans.time, first)
    return Blocks(
        spans=spans,
        width=width,
        first=first,
        last=last,
        potential=potential,
        crossing=np.minimum.reduceat(spans.crossing, first, axis=1),
        room=np.maximum.reduceat(spans.room, first, axis=2),
        _time=time,
        _reduced=reduced,
    )


def coarser(base: Blocks, width: int) -> Blocks:
    """Group blocks of more than one cut further; the width must be a multiple of theirs."""
    spans = base.spans
    first = np.concatenate([[0], np.arange(1, spans.total, width), [spans.total]])
    groups = np.searchsorted(base.first, first)
    return Blocks(
        spans=spans,
        width=width,
        first=first,
        last=np.append(first[1:] - 1, spans.total),
        potential=base.potential,
        crossing=np.minimum.reduceat(base.crossing, groups, axis=1),
        room=np.maximum.reduceat(base.room, groups, axis=2),
        _time=_least(base._time, groups),
        _reduced=None if base._reduced is None else _least(base._reduced, groups),
    )


def _least(table: Times, first: Index) -> Times:
    return np.minimum.reduceat(np.minimum.reduceat(table, first[:-1], axis=1), first, axis=2)
