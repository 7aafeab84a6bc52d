"""The search for the least executed step of one number of micro-batches: intervals, compositions, paths.

Before it, where servers are alike, stages are searched by how many devices they have: counts rule most numbers of
micro-batches out, and come close soon (``solvers.reduce.by_count``). What they leave is little for the search by
places, which ends with a proof. Both use the same stages: what one has settled is settled for the other.

Once its plans are bounded it looks ahead: the beginnings of compositions that promise most are gone on with, few
with as many stages behind them. Plans of what comes of it are priced, and stages settled, for as long as plans get
better.

Plans are sorted by what their slowest stage takes: intervals of that are halved, that with the least bound first
(``solvers.reduce.executed.slowest``) where the compositions of its plans are too many to be looked at
(``solvers.reduce.executed.compositions``), those that take little more than its bound first: their stages are
settled, and what is then still below the best plan is settled by weighing its paths
(``solvers.reduce.executed.leaves``). Where none is left the bound has risen; and where the first one is far above
it, that is done later, if nothing else is below. Last come the compositions of which
paths leave a gap: the modes of their stages, and the ways to run these, are tried. So the search ends with a
proof, but where they are more than can be told apart; then the bound is what is left.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile

from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.reduce.executed.compositions import Compositions
from pipecut.solvers.reduce.executed.leaves import Leaves
from pipecut.solvers.reduce.executed.slowest import SlowestFirst
from pipecut.solvers.reduce.programme import Cell, time_of
from pipecut.solvers.reduce.reduced_stages import ReducedStages

# Intervals are halved until they are no longer than such a part of where they begin; then fewer are looked at.
NARROW = 24
# Compositions are listed that take more than the bound by such a part of it at first, and by such at least.
PART, FINEST = 16, 4096
# So many compositions are settled before others are looked for; twice as many, up to so many, where nothing that
# was settled changed what stages take, as then no others would be found.
SOME, MANY = 12, 10_000
# Compositions are settled that take more than the bound by such a part of it at most.
CLOSE = 256
# Where plans are looked for alone one goes on with so many beginnings with as many stages behind; of what comes of
# it so many plans are priced, and so many settled.
WIDTH, TRIED, FIRST = 1000, 30, 6


@dataclass(order=True, slots=True)
class _Open:
    """An interval. Compositions are listed that take more than the bound by one ``part`` of it in so many."""

    bound: int
    lo: int = field(compare=False)
    hi: int = field(compare=False)
    part: int = field(default=PART, compare=False)


@dataclass
class ByStep:
    """The search of one number of micro-batches.

    ``bound`` is what no plan undercuts; ``best`` what the best plan so far takes, which is ``plan``; ``upper`` a
    value that plans have to be below to be of use. ``left`` is the least bound of compositions that were too many
    to look at.
    """

    instance: Instance
    stages: ReducedStages
    upper: int
    bound: int = 0
    plan: Plan | None = None
    best: int = FORBIDDEN
    left: int = FORBIDDEN
    _open: list[_Open] = field(default_factory=list)
    _closed: dict[tuple[Cell, ...], int] = field(default_factory=dict)
    _seen: set[tuple[Cell, ...]] = field(default_factory=set)
    _tried: set[tuple[Cell, ...]] = field(default_factory=set)
    _some: int = SOME
    _ahead: bool = False

    def __post_init__(self) -> None:
        self._leaves = Leaves(self.instance, self.stages, self._try)

    @property
    def most(self) -> int:
        """Return the value that a plan has to be below to be of use."""
        return min(self.upper, self.best)

    @property
    def settled(self) -> bool:
        """Whether no interval is open."""
        return not self._open or self._open[0].bound >= self.most

    def begin(self) -> None:
        """Ask about all plans whose slowest stage takes no more than is of use."""
        self.stages.leave_out(self.most)
        pace, many = self.stages.pace_ns(), self.stages.micro_batches
        self._put(pace - 1, self.most // many, many * pace)
        self._learn()

    def _look_ahead(self) -> None:
        """Price plans of what promises most among a few beginnings while they get better, and settle the first."""
        many, whole, before = self.stages.micro_batches, self._open.pop(), self.most + 1
        while self.most < before:
            before = self.most
            found = self._bounds(whole.lo, before // many)
            rows = None if found is None else Compositions(found).all(WIDTH)
            some = [cells for bound, cells in islice(rows or (), TRIED) if bound < before]
            for cells in some:
                self._price(cells)
            self.stages.leave_out(self.most)
            for cells in some[:FIRST]:
                self._tightened(cells)
        self._put(whole.lo, self.most // many, whole.bound)

    def step(self) -> bool:
        """Halve the interval that promises least, or look at its compositions; tell whether anything is left."""
        if self.settled:
            return self._by_ways()
        if not self._ahead:
            self._ahead = True
            self._look_ahead()
            self._learn()
            return True
        top = heapq.heappop(self._open)
        middle = (top.lo + top.hi) // 2
        if not self._looked_through(top):
            self._put(top.lo, middle, top.bound)
            self._put(middle, top.hi, top.bound)
        self._learn()
        return True

    def _by_ways(self) -> bool:
        """Try the ways of the stages of the composition that paths leave lowest; tell whether there was one."""
        open_ = [cells for cells, one in self._closed.items() if one < self.most]
        if waiting := [cells for cells in open_ if cells not in self._tried]:
            cells = min(waiting, key=self._closed.__getitem__)
            self._tried.add(cells)
            self._closed[cells] = self._leaves.bound([*cells], self._closed[cells], self.most, ways=True)
        self._learn()
        return bool(waiting)

    def _learn(self) -> None:
        """Take over the least bound of all that is open."""
        open_ = self._open[0].bound if self._open else FORBIDDEN
        self.bound = max(self.bound, min(open_, self.left, *self._closed.values(), self.most))

    def _put(self, lo: int, hi: int, bound: int) -> None:
        if lo < hi and (found := self._bounds(lo, hi)) is not None:
            heapq.heappush(self._open, _Open(max(bound, found.least, self.bound), lo, hi))

    def _bounds(self, lo: int, hi: int, budget: int = FORBIDDEN) -> SlowestFirst | None:
        """Bound the plans whose slowest stage takes more than lo, at most hi, within a budget; None for none."""
        self.stages.deadline.check()
        slowest = SlowestFirst(self.stages, lo, hi, min(budget, self.most - 1))
        return slowest if slowest.run() else None

    def _looked_through(self, interval: _Open) -> bool:
        """Settle some compositions of an interval; tell whether this could be done.

        Those that take little more than the bound: where none of them is left that is not settled it has risen.
        The interval is open again until nothing of it is of use.
        """
        most = interval.bound + interval.bound // interval.part
        found = self._bounds(interval.lo, interval.hi, most)
        rows = None if found is None else Compositions(found, self._closed, interval.bound).all()
        if found is not None and rows is None:
            return self._too_many(replace(interval, bound=max(interval.bound, found.least)))
        within = takewhile(lambda row: row[0] < self.most, rows or ())
        fresh = list(islice((row for row in within if tuple(row[1]) not in self._closed), self._some))
        # What is far above the bound is settled when nothing else is below it.
        if fresh and fresh[0][0] <= interval.bound + interval.bound // CLOSE:
            self._settle(fresh)
        if fresh:
            heapq.heappush(self._open, replace(interval, bound=max(interval.bound, min(fresh[0][0], self.most))))
        elif most < self.most - 1:
            heapq.heappush(self._open, replace(interval, bound=most + 1, part=max(1, interval.part // 4)))
        return True

    def _too_many(self, interval: _Open) -> bool:
        """Look for fewer compositions of an interval next time; tell whether it can be done without halving it."""
        narrow = interval.hi - interval.lo <= max(0, interval.lo) // NARROW + 1
        if narrow and interval.part < FINEST:
            heapq.heappush(self._open, replace(interval, part=4 * interval.part))
        elif interval.hi - interval.lo > 1:
            return False
        else:  # too many, and no shorter interval tells them apart: what bounds them is all that is known
            self.left = min(self.left, interval.bound)
        return True

    def _settle(self, compositions: list[tuple[int, list[Cell]]]) -> None:
        """Price plans of compositions that have none yet; settle the stages of some, or close these."""
        for _, cells in compositions:
            self._price(cells)
        changed = self.stages.leave_out(self.most)
        for bound, cells in compositions:
            if self._tightened(cells):
                changed = True
            elif bound < self.most:  # its stages are settled
                self._closed[tuple(cells)] = self._leaves.bound(cells, bound, self.most)
        self._some = SOME if changed else min(2 * self._some, MANY)

    def _price(self, cells: list[Cell]) -> None:
        """Price the plan of a composition that has none yet."""
        if tuple(cells) not in self._seen:
            self._seen.add(tuple(cells))
            for stages in (self.stages, self.stages.charged()):
                self._leaves.value(cells, stages.plan(cells, (self.most - 1) // stages.micro_batches))

    def _tightened(self, cells: list[Cell]) -> bool:
        """Settle the stages of a composition as far as they are of use; tell whether anything changed."""
        line, least, last = self.stages.line, self.stages.least, len(cells) - 1
        times = [time_of(line, least, cell, last - at) for at, cell in enumerate(cells)]
        before, total, changed = 0, sum(times), False
        for at, (cell, time) in enumerate(zip(cells, times, strict=True)):
            # With more than that its own way through the step takes too long, whatever the other stages do.
            slot, most = last - at, (self.most - 1 - before) // self.stages.micro_batches
            if self.stages.micro_batches >= slot + 2:
                others = before + 2 * (total - before - time)
                most = min(most, (self.most - 1 - others) // (self.stages.micro_batches - slot))
            changed |= self.stages.settle(cell, slot, most + 1)
            before += time
        return changed

    def _try(self, plan: Plan, value: int) -> int:
        if value < self.most:
            self.plan, self.best = plan, value
        return self.most
