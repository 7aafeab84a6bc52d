"""What the stages before a suffix, and those behind a prefix, take at least if a step takes no longer than asked.

For a limit T on the step, slot by slot and for every end and place:

* ``behind``: the least until the first stage of a suffix has done its last backward pass, which is no less than
  ``max(M p, p + t + what is behind)``, as every suffix of a pipeline is a pipeline;
* ``ahead``: the least passes and transfers, there and back, of all stages before it; each of these obeys
  ``what is ahead of it + M p <= T``, as a stage has M micro-batches to work on between the fill and the drain of
  those before it.

Synchronisations are in neither: that of a stage runs beside the drain of those before it. A stage by itself,
though, takes ``M p + sync <= T``. Where backward passes have halves p has the first ones alone, and
``Spans.early`` stands for M p. By a formula the sums of what is in a row count ``Spans.once`` each, M is
``Spans.micro_batches``, and a boundary takes ``Spans.queued`` times what it takes once. Stages that do not fit to
all of these are in no plan within T.

Where T is a period, runs of neighbouring stages may take T for each of them. So ``behind`` is the most that a run
takes from the first stage of a suffix on, less T for each further one, and ``ahead`` what a run up to the suffix
takes beyond T for each, or 0; of the first stage of a run with its synchronisation, where that comes in each pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.limits import Deadline, in_time
from pipecut.solvers.step_time.bounds.rays import least_of
from pipecut.solvers.step_time.bounds.spans import Bits, Index, Spans
from pipecut.solvers.step_time.bounds.ways import NOTHING, Ways

NEVER_NS = 1 << 58
"""The time of no plan at all."""
AT_ONCE = 1 << 18
"""So many stages in ways are looked at in one go."""


@dataclass(frozen=True, slots=True, eq=False)
class _Bands:
    """Stages of a slot, kind after kind: those of kind k are rows from ``begins[k]`` up to ``begins[k + 1]``.

    ``first`` and ``stop`` place; least ``pace``, least until the last gradient leaves (``early``), and least
    ``whole`` of a step.
    """

    begins: Index
    first: Index
    stop: Index
    pace: Times
    early: Times
    whole: Times


@dataclass(frozen=True, slots=True, eq=False)
class _Put:
    """Stages put in ways, a row each: the way, the stage's row among the bands, and its times.

    All with what is fetched.
    """

    way: Index
    row: Index
    pace: Times
    early: Times
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
        self.each_ns, self._deadline = 0 if spans.period is None else most_ns, deadline
        # Of one micro-batch a synchronisation keeps its device behind every pair.
        period = spans.period
        self._synchronised = period is not None and period.charged and period.micro_batches == 1
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

    def _made(self, allowed: Bits) -> _Bands:
        spans = self.spans
        allowed = allowed & (spans.whole <= self.most_ns)
        kind, first, stop = np.nonzero(
            allowed if spans.beside is None else allowed & (spans.beside <= self.most_ns)
        )
        begins, pace = np.searchsorted(kind, np.arange(len(spans.pace) + 1)), spans.pace[kind, first, stop]
        early = spans.micro_batches * pace if spans.early is None else spans.early[kind, first, stop]
        return _Bands(begins, first, stop, pace, early, spans.whole[kind, first, stop])

    def _put(self, slot: int, known: Times) -> Iterator[_Put]:
        """Yield the stages in all ways of a slot that go on from somewhere, about so many at once.

        ``known``: by way the least of what they go on from. Raises StoppedError after the deadline.
        """
        ways, bands, count = self.ways, self._bands[slot], self.spans.micro_batches
        sent = self.spans.boundaries
        fetches = bool(sent.fetched.any() or sent.returned.any())
        mine = np.flatnonzero(((ways.source == NOTHING) == (slot == 0)) & (known < NEVER_NS))
        many = np.diff(bands.begins)[ways.kind[mine]]
        total = np.cumsum(many)
        parts = np.split(np.arange(len(mine)), np.flatnonzero(np.diff(total // AT_ONCE)) + 1)
        for some in in_time(parts, self._deadline):
            rows = many[some]
            way = np.repeat(mine[some], rows)
            row = np.repeat(bands.begins[ways.kind[mine[some]]] - np.cumsum(rows) + rows, rows)
            row += np.arange(len(row))
            pace, early, whole = bands.pace[row], bands.early[row], bands.whole[row]
            if fetches:
                fetched = sent.fetched[ways.front[way], bands.first[row]]
                fetched += sent.returned[ways.link[way], bands.stop[row]]
                pace, early, whole = pace + fetched, early + count * fetched, whole + count * fetched
            yield _Put(way, row, pace, early, np.maximum(early, whole))

    def _least(self, slot: int, put: _Put) -> Times:
        """Return the least until stages have done their last backward passes, by what is behind them."""
        stop, spans = self._bands[slot].stop[put.row], self.spans
        own = put.early
        if slot:
            arriving = self.behind[slot - 1, self.ways.source[put.way], stop]
            crossed = spans.boundaries.both[self.ways.link[put.way], stop]
            arriving, own = arriving + spans.once * crossed, np.maximum(own, spans.queued * crossed)
        else:
            arriving = np.where(stop == self.behind.shape[2] - 1, 0, NEVER_NS)
        return np.maximum(own, spans.once * put.pace + arriving - self.each_ns)

    def _alone(self, put: _Put, least: Times) -> Times:
        """Return the least of whole steps of stages, or of runs that begin with them and their synchronisation."""
        return put.whole + least - put.pace if self._synchronised else put.whole

    def _look_back(self, slot: int) -> None:
        ways, known = self.ways, np.zeros(len(self.ways), dtype=np.int64)
        if slot:
            known = self.behind[slot - 1].min(axis=1)[ways.source]
        for put in self._put(slot, known):
            first, value = self._bands[slot].first[put.row], self._least(slot, put)
            least = np.maximum(value, self._alone(put, value))
            kept = np.flatnonzero(least <= self.most_ns)
            target = ways.target[put.way]
            np.minimum.at(self.behind[slot], (target[kept], first[kept]), value[kept])
            done = kept[ways.whole[target[kept]] & (first[kept] == 0)]
            if slot + 1 >= self.spans.least_stages:
                self.best = min(self.best, int(least[done].min(initial=NEVER_NS)))

    def _look_ahead(self, slot: int) -> None:
        """From stages in a slot to what is ahead of the suffixes behind them."""
        ways, bands, both = self.ways, self._bands[slot], self.spans.boundaries.both
        if slot + 1 >= self.spans.least_stages:
            self.ahead[slot, ways.whole, 0] = 0
        useful = self.useful[self.spans.rules[slot]]
        for put in self._put(slot, self.ahead[slot].min(axis=1)[ways.target]):
            before = self.ahead[slot, ways.target[put.way], bands.first[put.row]]
            least = self._least(slot, put)
            fits = (before + least <= self.most_ns) & (self._alone(put, least) <= self.most_ns)
            way, row = put.way[fits], put.row[fits]
            useful[ways.kind[way], bands.first[row], bands.stop[row]] = True
            if slot:
                crossed = both[ways.link[way], bands.stop[row]]
                own = before[fits] + self.spans.once * put.pace[fits]
                own = np.maximum(own, put.whole[fits]) if self._synchronised else own
                value = np.maximum(own + self.spans.once * crossed - self.each_ns, 0)
                np.minimum.at(self.ahead[slot - 1], (ways.source[way], bands.stop[row]), value)


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
