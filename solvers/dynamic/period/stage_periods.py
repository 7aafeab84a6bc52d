"""What a stage adds to the period: its pace, which is both passes, and the synchronisation of its weights.

The least of each is tabled for every stage, and what memory leaves at least, each in the best forms. Where no
forms have all at once, or fit, all pairs of pace and synchronisation that the stages from there on may have take
the place of the tables. So both answers of who asks again are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.options import BoundaryCharge, StageTime, Synchronisation
from pipecut.formulation.problem.plan import Span
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.solvers.dynamic.period.growing import Forms, StageGrowth
from pipecut.solvers.dynamic.period.parts import PassParts, pass_parts
from pipecut.solvers.dynamic.tables.demanded import admitted, stage_counts
from pipecut.solvers.dynamic.tables.stage_limits import StageLimits
from pipecut.solvers.reference.algorithm_1 import StageTimes, best_forms
from pipecut.solvers.reference.line import atom_tables

Numbers = NDArray[np.int64]
Pair = tuple[int, int]
"""Pace and synchronisation of a stage in ns."""


@dataclass(frozen=True, slots=True, eq=False)
class PeriodStages:
    """Stages of a kind in a slot, a row each, by ascending first place: where they begin and stop, pace, sync.

    ``limit`` is at most so many paces as there are micro-batches between two updates, and the synchronisation.
    """

    first: Numbers
    stop: Numbers
    pace: Times
    sync: Times
    limit: Times

    def of(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> PeriodStages:
        """Return some of them."""
        return PeriodStages(self.first[rows], self.stop[rows], self.pace[rows], self.sync[rows], self.limit[rows])


class StagePeriods:
    """The stages of an instance, as far as they are known. Spans count atoms.

    Raises ValueError and TooLargeError as ``solvers.reference.algorithm_1.StageTimes.of`` does.
    """

    def __init__(self, tables: Tables, space: CutSpace) -> None:
        instance = tables.instance
        self.space, self.steps = space, instance.training.micro_batches
        self.counts = stage_counts(instance)
        self.charged = instance.cost.synchronisation is Synchronisation.CHARGED
        self.parts: PassParts = pass_parts(tables)
        first = self.parts.passes[0]
        times = StageTimes.of(first, space)
        for table in self.parts.passes[1:]:
            times = replace(times, time=np.minimum(times.time + StageTimes.of(table, space).time, FORBIDDEN))
        self.atoms = atom_tables(first, space, times)
        self._reaching = StageLimits(self.atoms.times, self.atoms.least)
        self._pace = times.time
        self._sync: Times | None = None if self.parts.sync is None else StageTimes.of(self.parts.sync, space).time
        self._limit = self._limits()
        self._admitted = admitted(tables, space)
        self._growing = StageGrowth(self.parts, space, self.atoms.held)
        self._pairs: dict[tuple[Keeps | None, int, int], Times] = {}
        self._ends: tuple[int, dict[int, Times]] = (-1, {})

    @property
    def in_rounds(self) -> bool:
        """Tell whether stages are kept by a synchronisation that does not come in every micro-batch alone."""
        receiver = self.parts.instance.cost.boundary_charge is BoundaryCharge.RECEIVER
        return self.charged and self._sync is not None and (self.steps > 1 or receiver)

    def _limits(self) -> Times | None:
        """Return the least of so many paces and the synchronisation, in the best forms for both together."""
        if self._sync is None or self.parts.sync is None:
            return None
        often = self.steps if self.charged else 0
        if len(self.parts.passes) > 1 or self.atoms.fine.instance.cost.stage_time is StageTime.OVERLAP:
            return np.minimum(often * np.minimum(self._pace, FORBIDDEN // max(1, often)) + self._sync, FORBIDDEN)
        return StageTimes.of(self._together(often), self.space).time

    def _together(self, often: int) -> Tables:
        """Return tables of so many passes, which add up, and the synchronisation."""
        own, sync = self.parts.passes[0], self.parts.sync
        if sync is None:
            return own
        both = np.where(own.inside < FORBIDDEN, often * own.inside + sync.inside, FORBIDDEN)
        copies = {ends: often * copy + sync.copies[ends] for ends, copy in own.copies.items()}
        return replace(own, compute=often * own.compute, inside=both, between=often * own.between, copies=copies)

    def slots(self, slots: int) -> list[int]:
        """Return, for each slot, the first slot with the same memory rule: they share their stages."""
        return self._reaching.slots(slots)

    def stages(self, slot: int, kind: int, period_ns: int, some: Numbers) -> PeriodStages:
        """Return the stages of a kind that keep to a period by themselves and stop at some places, ascending.

        As far as is known: what they hold, and both numbers at once, may still say no.
        """
        ends = self.ends(slot, period_ns)[kind, :-1].copy()
        known = self._known(slot, kind)
        ends[list(known)] = list(known)
        first = np.arange(len(ends))
        low = np.searchsorted(some, first, side="right")
        many = np.maximum(np.searchsorted(some, ends, side="right") - low, 0)
        offset = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        first, stop = np.repeat(first, many), some[np.repeat(low, many) + offset]
        found = self._tabled(kind, first, stop)
        if known:
            rows = np.concatenate([np.insert(pairs, 0, start, axis=1) for start, pairs in known.items()])
            rows = rows[np.isin(rows[:, 1], some)]
            parts = (found.first, found.stop, found.pace, found.sync)
            own = (np.concatenate(pair) for pair in zip(parts, rows.T, strict=True))
            found = self._row(*own)
            found = found.of(np.argsort(found.first, kind="stable"))
        most = period_ns if self._sync is None else self.steps * period_ns
        keeping = (found.pace <= period_ns) & (found.limit <= most)
        if self._admitted is not None:
            keeping &= self._admitted[kind, found.first, found.stop]
        return found.of(keeping)

    def _tabled(self, kind: int, first: Numbers, stop: Numbers) -> PeriodStages:
        where = (kind, first, stop)
        found = self._row(first, stop, self._pace[where], 0 if self._sync is None else self._sync[where])
        return found if self._limit is None else replace(found, limit=self._limit[where])

    def _row(self, first: Numbers, stop: Numbers, pace: Times, sync: Times | int) -> PeriodStages:
        sync = np.zeros_like(pace) + sync
        often = 0 if self._sync is None or not self.charged else self.steps
        return PeriodStages(first, stop, pace, sync, often * pace + sync)

    def ends(self, slot: int, period_ns: int) -> Times:
        """Return the furthest ends of stages by pace and memory, as far as tables know them."""
        if self._ends[0] != period_ns:
            self._ends = (period_ns, {})
        if slot not in self._ends[1]:
            self._ends[1][slot] = self._reaching.ends(slot, period_ns)
        return self._ends[1][slot]

    def _keeps(self, slot: int) -> Keeps | None:
        return None if self.atoms.held is None else self.atoms.held.keeps(slot)

    def _known(self, slot: int, kind: int) -> dict[int, Times]:
        """Return by first place the pairs that were worked out, for this slot or for one that keeps no more."""
        keeps, found = self._keeps(slot), dict[int, tuple[tuple[int, int], Times]]()
        for (other, of_kind, start), pairs in self._pairs.items():
            if of_kind != kind:
                continue
            if other is None or keeps is None:
                found[start] = (0, 0), pairs
            elif other.versions <= keeps.versions and other.in_flight <= keeps.in_flight:
                order = other.versions, other.in_flight
                if start not in found or found[start][0] < order:
                    found[start] = order, pairs
        return {start: pairs for start, (_, pairs) in found.items()}

    def forms(self, slot: int, kind: int, span: Span, most: Pair, most_ns: int) -> Forms | None:
        """Return forms of a stage within its memory with at most this pace and synchronisation.

        None where there are none: then the stages from its first place on are worked out up to ``most_ns``, and
        the second time those from all places, since most will be asked for.
        """
        layers, own = self.space.layers(span), (self._keeps(slot), kind, span.first)
        if own in self._pairs:
            # It may have been worked out for another stage of the same plan, after this one was chosen.
            there = (self._pairs[own][:, 0] == span.stop) & (self._pairs[own][:, 1:] <= np.array(most)).all(axis=1)
            return self._growing.forms(slot, kind, layers, most) if there.any() else None
        for forms in self._likely(kind, layers):
            pace, sync = self.parts.pair(kind, layers, forms)
            if pace <= most[0] and sync <= most[1] and self._growing.fits(slot, kind, layers, forms):
                return forms
        again = any(key[:2] == own[:2] for key in self._pairs)
        for start in range(self.space.stops) if again else [span.first]:
            if (*own[:2], start) not in self._pairs:
                self._pairs[*own[:2], start] = self._growing.pairs(slot, kind, start, most_ns)
        return None

    def _likely(self, kind: int, layers: Span) -> Iterator[Forms]:
        """Yield forms that are best in one way."""
        for table in self.parts.passes:
            yield best_forms(table, kind, layers)
        if len(self.parts.passes) == 1 and self._sync is not None:
            yield best_forms(self._together(self.steps), kind, layers)
