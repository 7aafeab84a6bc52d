"""What the stages before a suffix, and those behind a prefix, take at least if a step takes no longer than asked.

For a limit T on the step, slot by slot and for every end and place:

* ``behind``: the least until the first stage of a suffix has done its last backward pass, which is no less than
  ``max(M p, p + t + what is behind)``, as every suffix of a pipeline is a pipeline;
* ``ahead``: the least passes and transfers, there and back, of all stages before it; each of these obeys
  ``what is ahead of it + M p <= T``, as a stage has M micro-batches to work on between the fill and the drain of
  those before it.

Synchronisations are in neither: that of a stage runs beside the drain of those before it. A stage by itself,
though, takes ``M p + sync <= T``. Stages that do not fit to all of these are in no plan within T.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from formulation.costs.tables import Times
from formulation.limits.deadline import Deadline, in_time
from solvers.executed.bounds.rays import least_of
from solvers.executed.bounds.spans import Bits, Index, Spans
from solvers.executed.bounds.ways import NOTHING, Ways

__all__: list[str] = []

NEVER_NS = 1 << 58
"""The time of no plan at all."""


@dataclass(frozen=True, slots=True, eq=False)
class _Band:
    """Stages of a kind in a slot: ``first`` (ascending), ``stop``, least pace, least of a whole step."""

    first: Index
    stop: Index
    pace: Times
    whole: Times


class Rest:
    """``behind`` and ``ahead`` for one limit, by slot, end and place.

    ``useful[rule]`` tells which stages of a kind may be in a plan within the limit, ``best`` is a bound of all
    plans. ``only`` leaves out stages beforehand. Raises StoppedError after the deadline.
    """

    def __init__(
        self, spans: Spans, ways: Ways, most_ns: int, deadline: Deadline, only: dict[int, Bits] | None = None
    ) -> None:
        self.spans, self.ways, self.most_ns = spans, ways, most_ns
        self._deadline = deadline
        only = spans.roomy if only is None else only
        bands = {rule: self._made(spans.roomy[rule] & only[rule]) for rule in set(spans.rules)}
        self._bands = [bands[rule] for rule in spans.rules]
        slots = len(spans.rules)
        shape = (slots, len(ways.node), spans.pace.shape[2])
        self.behind: Times = np.full(shape, NEVER_NS, dtype=np.int64)
        self.ahead: Times = np.full(shape, NEVER_NS, dtype=np.int64)
        self.useful = {rule: np.zeros(spans.pace.shape, dtype=np.bool_) for rule in set(spans.rules)}
        self.best = NEVER_NS
        for slot in range(slots):
            self._look_back(slot)
        for slot in reversed(range(slots)):
            self._look_ahead(slot)

    def useful_of(self, warm_up: int) -> Bits:
        """Return which stages with a warm-up, told by its slot, may be in a plan within the limit."""
        spans = self.spans
        slots = (rule for rule, warm_ups in zip(spans.rules, spans.warm_ups, strict=True) if warm_up in warm_ups)
        return np.logical_or.reduce([self.useful[rule] for rule in slots]) & spans.roomy[spans.rule_of[warm_up]]

    def _made(self, allowed: Bits) -> list[_Band]:
        spans, found = self.spans, list[_Band]()
        for kind in range(len(spans.pace)):
            first, stop = np.nonzero(allowed[kind] & (spans.whole[kind] <= self.most_ns))
            found.append(_Band(first, stop, spans.pace[kind, first, stop], spans.whole[kind, first, stop]))
        return found

    def _passes(self, slot: int, way: int) -> tuple[_Band, Times, Times]:
        """Return the stages of a way in a slot, their paces and whole steps with what they fetch."""
        ways, sent, count = self.ways, self.spans.boundaries, self.spans.micro_batches
        band = self._bands[slot][ways.kind[way]]
        fetched = sent.fetched[ways.front[way], band.first] + sent.returned[ways.link[way], band.stop]
        pace = band.pace + fetched
        return band, pace, np.maximum(count * pace, band.whole + count * fetched)

    def _arriving(self, slot: int, way: int) -> Times:
        """Return by place what is behind a stage of this way that stops there."""
        source, found = self.ways.source[way], np.full(self.behind.shape[2], NEVER_NS, dtype=np.int64)
        if slot and source != NOTHING:
            return self.behind[slot - 1, source] + self.spans.boundaries.both[self.ways.link[way]]
        if not slot and source == NOTHING:
            found[-1] = 0
        return found

    def _look_back(self, slot: int) -> None:
        for way in in_time(self._of(slot), self._deadline):
            band, pace, whole = self._passes(slot, way)
            passes = self.spans.micro_batches * pace
            value = np.maximum(passes, pace + self._arriving(slot, way)[band.stop])
            least = np.maximum(value, whole)
            value[least > self.most_ns] = NEVER_NS
            _lower(self.behind[slot, self.ways.target[way]], band.first, value)
            if self.ways.whole[self.ways.target[way]]:
                self.best = min(self.best, int(least[band.first == 0].min(initial=NEVER_NS)))

    def _look_ahead(self, slot: int) -> None:
        """From stages in a slot to what is ahead of the suffixes behind them."""
        self.ahead[slot, self.ways.whole, 0] = 0
        for way in in_time(self._of(slot), self._deadline):
            band, pace, whole = self._passes(slot, way)
            before = self.ahead[slot, self.ways.target[way]][band.first]
            least = np.maximum(self.spans.micro_batches * pace, pace + self._arriving(slot, way)[band.stop])
            fits = (before + least <= self.most_ns) & (whole <= self.most_ns)
            first, stop = band.first[fits], band.stop[fits]
            self.useful[self.spans.rules[slot]][self.ways.kind[way], first, stop] = True
            if slot:
                value = (before + pace)[fits] + self.spans.boundaries.both[self.ways.link[way], stop]
                order = np.argsort(stop, kind="stable")
                _lower(self.ahead[slot - 1, self.ways.source[way]], stop[order], value[order])

    def _of(self, slot: int) -> list[int]:
        """Return the ways of stages in a slot: last ones have nothing behind them, others something."""
        found: list[int] = np.flatnonzero((self.ways.source == NOTHING) == (slot == 0)).tolist()
        return found


def _lower(table: Times, places: Index, values: Times) -> None:
    """Put values into a table where they are less; ``places`` ascend."""
    if len(places):
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        some = places[starts]
        table[some] = np.minimum(table[some], np.minimum.reduceat(values, starts))


WIDTHS = (16, 4)
"""Blocks of so many places are looked at first, where there are at least so many times as many places."""
LEAST_BLOCKS = 8


def rest_of(
    spans: Spans, ways: Ways, most_ns: int, deadline: Deadline, only: dict[int, Bits] | None = None
) -> Rest:
    """Return the rest for a limit, by blocks first: what they leave out is not looked at by places.

    With ``only``, which are to be few, there are these stages and no others.
    """
    for width in () if only is not None else WIDTHS:
        if spans.pace.shape[2] >= LEAST_BLOCKS * width:
            coarse = spans.blocks(spans.evenly(width))
            known = None
            if only is not None:
                known = {rule: least_of(~one, coarse.place) == 0 for rule, one in only.items()}
            rest = Rest(coarse, ways, most_ns, deadline, known)
            only = {rule: spans.inside(one, coarse.place) for rule, one in rest.useful.items()}
    return Rest(spans, ways, most_ns, deadline, only)
