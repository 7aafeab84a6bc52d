"""Which stages the plans may have that a bound leaves: all of them, slot after slot from the front.

A *composition* says of every stage its devices and its atoms, and nothing of what is chosen inside it. With the
least time ``p`` of a pair of passes of each stage a step takes at least (``solvers.reduce.executed.slowest``)

* ``pre + M p`` for every stage, with ``pre`` the pairs and transfers before it, and
* ``pre + 2 tail + (M - s - 2) p`` for one with s stages behind it, where M >= s + 2, with ``tail`` its own pairs
  and transfers and those behind it;
* ``w``, all pairs of passes of a stage and what it does once a step, in any one way to run it;
* ``(M - 1) p + e``, and ``2 tail + (M - s - 3) p + e`` where M >= s + 2, with ``e`` a pair with all that the stage
  does once a step: the step ends no sooner than that is done behind the last backward pass of the stage;
* ``pre + 2 tail + q run + r p`` for k stages one behind the other, the first of which has s behind it, where
  M - s - 2 = q k + r: a stage begins a forward pass when the backward pass of s + 1 micro-batches before is over,
  so forward passes down a run and backward passes up again, transfers between them included, come one after the
  other for one micro-batch in k;
* ``pre + ceil(M / (s + 1)) tail``, the same of all stages from one on. Where links are slow these are the longest.

Of stages that are not chosen yet the least sum is known, and the least bound if the slowest is among them. So few
beginnings of plans are left that all are looked at, many at a time. Where they are many, one is left out for now
if another one with the same end is no worse, whatever follows. It is there again when a composition is closed that
begins like the other one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.limits import Deadline
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.solvers.atoms.unbeaten import numbered, unbeaten
from pipecut.solvers.reduce.executed.slowest import SlowestFirst
from pipecut.solvers.reduce.form_sums import Numbers
from pipecut.solvers.reduce.programme import Cell, behind_stages

MOST = 60_000
"""So many beginnings of plans with as many stages behind them are looked at at most."""
LARGE = 5_000
"""Of more than so many those are left out that others are no worse than."""
AT_ONCE = 10_000
"""So many are grown at once."""
NOTHING = -(1 << 60)
"""Less than any bound."""
_Rest = tuple[Numbers, Numbers]
"""By place and atom what is behind a stage at least, and the least bound if the slowest stage is among it."""
RUNS = 12
"""Runs of so many stages are looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class _Fronts:
    """Beginnings of plans, one a column: ``x`` and ``atom`` are where the next stage begins, ``size`` that before.

    ``pre`` is the sum of all stages so far and the boundaries between them. ``alone`` is the largest ``pre + M p``
    of a stage, ``twice`` the largest ``(M - s - 2) p - pre``, ``slowest`` the least of these if one of them is the
    slowest of the plan. ``runs[column, k - 1]`` is the sum of the last k stages and the boundaries between them, 0
    where there are fewer. ``before`` is the column of one stage less, -1 for no stage. ``least`` is what no plan
    that begins so undercuts.
    """

    x: Numbers
    size: Numbers
    atom: Numbers
    pre: Numbers
    alone: Numbers
    twice: Numbers
    slowest: Numbers
    runs: Numbers
    before: Numbers
    least: Numbers

    @staticmethod
    def joined(rows: list[_Fronts]) -> _Fronts:
        """Return the columns of all."""
        return _Fronts(*(np.concatenate([getattr(row, name) for row in rows]) for name in _Fronts.__slots__))

    def some(self, kept: NDArray[np.bool_] | NDArray[np.intp]) -> _Fronts:
        """Return some of the columns."""
        return _Fronts(*(getattr(self, name)[kept] for name in _Fronts.__slots__))

    @staticmethod
    def nothing(begins: bool) -> _Fronts:
        """Return the beginning of all plans, if plans begin there; else none."""
        zero = np.zeros(int(begins), dtype=np.int64)
        runs = np.zeros((len(zero), RUNS), dtype=np.int64)
        return _Fronts(zero, zero, zero, zero, zero, zero + NOTHING, zero + FORBIDDEN, runs, zero - 1, zero)

    def first(self, width: int, atoms: int) -> _Fronts:
        """Return so many columns of the least bounds, one of those whose last stage has one size and end."""
        order = np.lexsort((self.pre, self.least))
        ends = (self.size * (int(self.x.max(initial=0)) + 1) + self.x) * atoms + self.atom
        _, firsts = np.unique(ends[order], return_index=True)
        return self.some(order[np.sort(firsts)[:width]])

    def unbeaten(self, free: NDArray[np.bool_], floor: int, deadline: Deadline) -> NDArray[np.intp]:
        """Return which columns to go on with: of those that are ``free`` all that no other one is no worse than.

        What comes behind adds to ``pre`` and to runs alike. Bounds below the floor are as good as that.
        """
        slowest = np.where(self.slowest == NOTHING, NOTHING, self.slowest + 2 * self.pre)
        ways = self.pre, np.maximum(self.alone, floor), self.twice + 2 * self.pre, slowest, *self.runs.T
        ends, some = numbered(np.column_stack((self.x, self.size, self.atom))), np.flatnonzero(free)
        kept = some[unbeaten(np.column_stack(ways)[some], ends[some], deadline)]
        return np.sort(np.concatenate((kept, np.flatnonzero(~free))))


@dataclass(slots=True)
class Compositions:
    """All compositions of plans within bounds (``slowest``, run) whose slowest stage takes as long as they say.

    Where they are many, that of the least bound of those that are not ``closed`` is there, and others need not be;
    bounds below the ``floor`` are as good as that.
    """

    slowest: SlowestFirst
    closed: Iterable[Sequence[Cell]] = ()
    floor: int = 0
    _begins: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for cells in self.closed:
            at = 0
            for cell in cells:
                at = self._begins.setdefault((at, cell.size, cell.stop), len(self._begins) + 1)

    def all(self, width: int = 0) -> Iterator[tuple[int, list[Cell]]] | None:
        """Return bounds and cells, the least first; None where there are too many beginnings to look at.

        With a ``width`` those of the least bounds alone are gone on with, so many with as many stages behind them.
        """
        levels: list[_Fronts] = []
        grown: list[_Fronts] = []
        closed = np.zeros(0, dtype=np.int64)
        sums, chosen = self.slowest.sums, self.slowest.chosen
        for slot in range(len(sums.found) - 1, -1, -1):
            level = _Fronts.joined([_Fronts.nothing(slot + 1 >= sums.numbers[0]), *grown])
            if width:
                level = level.first(width, self.slowest.stages.atoms + 1)
            else:
                closed = self._begun(level, closed)
                if len(level.x) > LARGE:
                    kept = level.unbeaten(closed < 0, self.floor, self.slowest.stages.deadline)
                    level, closed = level.some(kept), closed[kept]
            if len(level.x) > MOST:
                return None
            levels.append(level)
            parts = (np.arange(at, min(at + AT_ONCE, len(level.x))) for at in range(0, len(level.x), AT_ONCE))
            once = sums.rest(slot)
            behind = behind_stages(sums.line, chosen[slot - 1]) if slot else [FORBIDDEN + row for row in once]
            rests = list(zip(once, behind, strict=True))
            grown = [one for part in parts for one in self._grown(level, slot, part, rests)]
        if not grown:
            return iter(())
        ends = _Fronts.joined(grown)
        bounds = np.maximum(ends.alone, ends.twice + 2 * ends.pre)
        # Only the first few of what may be thousands are ever looked at.
        return ((int(bounds[at]), self._cells(levels, ends, int(at))) for at in np.argsort(bounds, kind="stable"))

    def _begun(self, level: _Fronts, before: Numbers) -> Numbers:
        """Return by column a number of what it begins with, if closed compositions begin so; -1 for all others.

        ``before`` are the numbers by column of one stage less.
        """
        found = np.where(level.before < 0, 0, -1)
        for at in np.flatnonzero(np.isin(level.before, np.flatnonzero(before >= 0))).tolist():
            key = int(before[level.before[at]]), int(level.size[at]), int(level.atom[at])
            found[at] = self._begins.get(key, -1)
        return found

    def _grown(self, level: _Fronts, slot: int, some: Numbers, rests: list[_Rest]) -> list[_Fronts]:
        """Return the beginnings with a stage more, by its seat; ``rests`` by its size."""
        self.slowest.stages.deadline.check()
        line, found = self.slowest.sums.line, list[_Fronts]()
        for size, rest in enumerate(rests):
            seats = line.seat[level.x[some], size]
            joint = line.joint[level.x[some], level.size[some], size]
            crossed = np.where(level.x[some] > 0, line.crossing[joint, level.atom[some]], 0)
            for seat in np.unique(seats[seats >= 0]):
                own = seats == seat
                pre = level.pre[some[own]] + crossed[own]
                found.append(self._with_a_stage(level, some[own], pre, (slot, int(seat), size), rest))
        return [one for one in found if len(one.x)]

    def _with_a_stage(
        self, level: _Fronts, rows: Numbers, pre: Numbers, stage: tuple[int, int, int], rest: _Rest
    ) -> _Fronts:
        """Return beginnings with a stage more, of a slot, seat and size, as far as they are within the bounds."""
        (slot, seat, size), (once, chosen) = stage, rest
        sums, stages, many = self.slowest.sums, self.slowest.stages, self.slowest.stages.micro_batches
        x, times = level.x[rows] + sums.line.sizes[size], sums.cells(seat, slot)[level.atom[rows]]
        row, stop = np.nonzero((times < FORBIDDEN) & (once[x] < FORBIDDEN))
        p, before, at = times[row, stop], pre[row], (x[row], stop)
        where = level.atom[rows][row], stop
        e = np.maximum(p, stages.ending().least(seat, slot)[where])
        alone = np.maximum(before + many * p, stages.whole(seat, slot)[where])
        alone = np.maximum(alone, np.maximum(level.alone[rows][row], (many - 1) * p + e))
        twice, slowest = level.twice[rows][row], level.slowest[rows][row]
        if many >= slot + 2:
            twice = np.maximum(twice, (many - slot - 3) * p + e - 2 * before)
            longer = np.maximum(p, self.slowest.lo + 1)
            slowest = np.minimum(slowest, (many - slot - 2) * longer + 2 * (longer - p) - before)
        else:
            slowest = np.full_like(twice, NOTHING)
        after = before + p
        behind = np.where(slowest == NOTHING, NOTHING, slowest + 2 * (after + once[at]))
        bound = np.maximum(alone, twice + 2 * (after + once[at]))
        bound = np.maximum(bound, np.minimum(behind, after + chosen[at]))
        kept = bound <= self.slowest.budget
        row, stop, size_ = row[kept], stop[kept], np.full(kept.sum(), size)
        p, joined = p[kept], (pre - level.pre[rows])[row] + p[kept]
        some = level.runs[rows][row][:, :-1]
        runs = np.concatenate([p[:, None], np.where(some > 0, some + joined[:, None], 0)], axis=1)
        ways = after[kept], alone[kept], twice[kept], slowest[kept]
        found = _Fronts(x[row], size_, stop, *ways, runs, rows[row], bound[kept])
        return self._with_runs(found, slot, p, once[x[row], stop])

    def _with_runs(self, fronts: _Fronts, slot: int, p: Numbers, rest: Numbers) -> _Fronts:
        """Look at the runs that end with the last stage, and leave out what they say takes too long."""
        many, length, whole = self.slowest.stages.micro_batches, np.arange(1, RUNS + 1), fronts.pre + rest
        # The first stage of a run has so many more passes than go down and up with the first and the last.
        more = many - (slot + length - 1) - 2
        pre, (often, left) = fronts.pre[:, None] - fronts.runs, np.divmod(np.maximum(more, 0), length)
        twice = np.where(more >= 0, often * fronts.runs + left * p[:, None] - pre, NOTHING).max(axis=1)
        twice = np.maximum(fronts.twice, twice)
        behind = (pre + -(-many // (slot + length)) * (whole[:, None] - pre)).max(axis=1)
        least = np.maximum(fronts.least, np.maximum(behind, twice + 2 * whole))
        alone = fronts.alone if slot else np.maximum(fronts.alone, behind)
        return replace(fronts, alone=alone, twice=twice, least=least).some(least <= self.slowest.budget)

    def _cells(self, levels: list[_Fronts], ends: _Fronts, at: int) -> list[Cell]:
        """Go back from the end of a plan to its first stage."""
        cells, level = list[Cell](), ends
        for before in reversed(levels):
            last = int(level.before[at])
            if last < 0:
                break
            size, stop = int(level.size[at]), int(level.atom[at])
            cells.append(Cell(int(before.x[last]), size, int(before.atom[last]), stop))
            level, at = before, last
        return cells[::-1]
