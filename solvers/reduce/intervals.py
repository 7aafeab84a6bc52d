"""The least time of a step by the formula: intervals of its slowest stage, one question to the programme for each.

A step of M micro-batches takes the sum of all stages and boundaries, and M - 1 times the slowest of these. Where
the slowest takes more than ``lo`` and at most ``hi`` that is at least the least sum under the limit ``hi``, and
``lo + 1`` as often. Intervals are halved, the one that promises least first, until none promises less than the
best plan.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import pairwise

from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.reduce.programme import Cell, LineSums, time_of
from pipecut.solvers.reduce.reduced_stages import ReducedStages

STARTS = (102, 110, 130)
"""Limits of the first plans, in hundredths of what stages take if all devices do as much."""
NARROW = 32
"""Stages are settled in intervals that are no longer than such a part of where they begin."""


@dataclass(order=True, slots=True)
class _Interval:
    bound: int
    lo: int = field(compare=False)
    hi: int = field(compare=False)


@dataclass(slots=True)
class ByFormula:
    """The search of one number of micro-batches: ``bound`` is what no plan undercuts, ``best`` what one takes.

    ``upper`` is a value that plans have to be below to be of use.
    """

    stages: ReducedStages
    upper: int
    bound: int = 0
    plan: Plan | None = None
    best: int = FORBIDDEN
    _open: list[_Interval] = field(default_factory=list)

    @property
    def most(self) -> int:
        """Return the value that a plan has to be below to be of use."""
        return min(self.upper, self.best)

    @property
    def more(self) -> int:
        """Return how often the slowest stage counts beside the sum."""
        return self.stages.micro_batches - 1

    def first_plans(self) -> None:
        """Price plans whose stages take little more than all devices need."""
        pace = self.stages.pace_ns()
        for percent in STARTS:
            found = self._ask(pace * percent // 100, self.most)
            if found is not None:
                self._take(found[2])

    def begin(self) -> None:
        """Ask how little all stages take one after another, which is where every interval begins."""
        found = self._ask(FORBIDDEN - 1, FORBIDDEN)
        if found is None:
            self.bound = FORBIDDEN
            return
        total, slowest, _ = found
        # Slowest stages may take no time at all.
        self._put(_Interval(total, -1, slowest))
        self._put(_Interval(total + self.more * (slowest + 1), slowest, FORBIDDEN - 1))
        self.bound = max(self.bound, total)

    def step(self) -> bool:
        """Halve the interval that promises least; tell whether there is anything left to ask."""
        if not self._open or self._open[0].bound >= self.most:
            self._open = []
            self.bound = max(self.bound, self.most)
            return False
        top = heapq.heappop(self._open)
        self.bound = max(self.bound, top.bound)
        wide = self.more > 0 and top.hi - top.lo > max(0, top.lo) // NARROW + 1
        middle = (top.lo + top.hi) // 2 if wide else top.hi
        budget = self.most - 1 - self.more * (top.lo + 1)
        found = self._ask(middle, budget) if wide else self._solid(middle, budget)
        # Above the middle sums are no less than what was promised for the whole interval.
        least = top.bound - self.more * (top.lo + 1)
        self._put(_Interval(max(top.bound, least + self.more * (middle + 1)), middle, top.hi))
        if found is not None:
            total, slowest, cells = found
            if wide:
                self._take(cells)
                # Stages that are not settled may take longer than the answer says.
                self._put(_Interval(max(top.bound, total + self.more * (slowest + 1)), slowest, middle))
            hi = slowest if wide else slowest - 1
            self._put(_Interval(max(top.bound, total + self.more * (top.lo + 1)), top.lo, hi))
        return True

    def _solid(self, limit: int, budget: int) -> tuple[int, int, list[Cell]] | None:
        """Ask until the stages of the answer are settled: it is a plan, and the best within limit and budget."""
        while True:
            found = self._ask(limit, budget)
            if found is None:
                return None
            total, slowest, cells = found
            if not self._tightened(cells, limit, budget - total):
                if self._take(cells) != total + self.more * slowest:
                    raise LookupError("stages that were settled take longer than their bounds")
                return found

    def _tightened(self, cells: list[Cell], limit: int, spare: int) -> bool:
        """Settle the stages of an answer as far as they are of use; tell whether anything changed.

        A stage that is longer than the limit, or by more than what the sum may still grow by, is of none.
        """
        slots = range(len(cells) - 1, -1, -1)
        rows = [(cell, slot, self._time(cell, slot)) for cell, slot in zip(cells, slots, strict=True)]
        changed = [self.stages.settle(cell, slot, min(limit, time + spare) + 1) for cell, slot, time in rows]
        return any(changed)

    def _put(self, interval: _Interval) -> None:
        if interval.lo < interval.hi and interval.bound < self.most:
            heapq.heappush(self._open, interval)

    def _ask(self, limit: int, budget: int) -> tuple[int, int, list[Cell]] | None:
        """Return the least sum under a limit, the slowest of its stages and boundaries, and its stages."""
        self.stages.deadline.check()
        of = self.stages
        suffixes = LineSums.of(of.line, of.least, of.atoms, (limit, limit, budget), of.numbers)
        best = suffixes.best()
        if best is None or best[0] > budget:
            return None
        cells = suffixes.plan(best[1])
        own = [self._time(cell, len(cells) - 1 - at) for at, cell in enumerate(cells)]
        return best[0], max([*own, *self._crossings(cells)]), cells

    def _time(self, cell: Cell, slot: int) -> int:
        return time_of(self.stages.line, self.stages.least, cell, slot)

    def _crossings(self, cells: list[Cell]) -> list[int]:
        line = self.stages.line
        pairs = pairwise(cells)
        return [int(line.crossing[line.joint[two.x, one.size, two.size], two.first]) for one, two in pairs]

    def _take(self, cells: list[Cell]) -> int:
        """Keep the plan of an answer if it is better than the best so far; return what it takes."""
        labels = [self.stages.label(cell, len(cells) - 1 - at) for at, cell in enumerate(cells)]
        times = [0 if one is None else self.stages.taken(one[1]) for one in labels]
        crossed = self._crossings(cells)
        value = sum(times) + sum(crossed) + self.more * max(*times, *crossed, 0)
        if None not in labels and value < self.most:
            self.plan, self.best = self.stages.plan(cells), value
        return value
