"""Which stages the plans may have that a bound leaves: all of them, slot after slot from the front.

A *composition* says of every stage its devices and its atoms, and nothing of what is chosen inside it. With the
least time ``p`` of a pair of passes of each stage a step takes at least (``solvers.reduce.executed.slowest``)

* ``pre + M p`` for every stage, with ``pre`` the pairs and transfers before it, and
* ``pre + 2 tail + (M - s - 2) p`` for one with s stages behind it, where M >= s + 2, with ``tail`` its own pairs
  and transfers and those behind it;
* ``M c``, and ``2 tail - 2 p + (M - s) c`` where M >= s + 2, with ``c`` a pair with its part of what the stage
  does once a step: the step ends no sooner than that is done behind the last backward pass of the stage.

Of stages that are not chosen yet the least sum is known, and the least bound if the slowest is among them. So few
beginnings of plans are left that all are looked at, many at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.solvers.reduce.executed.slowest import SlowestFirst
from pipecut.solvers.reduce.programme import Cell, LineSums, behind_stages, nothing_behind
from pipecut.solvers.reduce.stages import ReducedStages
from pipecut.solvers.reduce.sums import Numbers

MOST = 60_000
"""So many beginnings of plans with as many stages behind them are looked at at most."""
AT_ONCE = 10_000
"""So many are grown at once."""
NOTHING = -(1 << 60)
"""Less than any bound."""


@dataclass(frozen=True, slots=True, eq=False)
class _Fronts:
    """Beginnings of plans, one a column: ``x`` and ``atom`` are where the next stage begins, ``size`` that before.

    ``pre`` is the sum of all stages so far and the boundaries between them. ``alone`` is the largest ``pre + M p``
    of a stage, ``twice`` the largest ``(M - s - 2) p - pre``, ``slowest`` the least of these if one of them is the
    slowest of the plan. ``before`` is the column of one stage less, -1 for no stage.
    """

    x: Numbers
    size: Numbers
    atom: Numbers
    pre: Numbers
    alone: Numbers
    twice: Numbers
    slowest: Numbers
    before: Numbers

    def __len__(self) -> int:
        return len(self.x)

    @staticmethod
    def joined(rows: list[_Fronts]) -> _Fronts:
        """Return the columns of all."""
        return _Fronts(*(np.concatenate([getattr(row, name) for row in rows]) for name in _Fronts.__slots__))

    @staticmethod
    def nothing(begins: bool) -> _Fronts:
        """Return the beginning of all plans, if plans begin there; else none."""
        zero = np.zeros(int(begins), dtype=np.int64)
        return _Fronts(zero, zero, zero, zero, zero, zero + NOTHING, zero + FORBIDDEN, zero - 1)


@dataclass(frozen=True, slots=True, eq=False)
class _Rest:
    """What is behind a stage of a slot and size, ``[x, atom]``.

    ``once`` is the least sum, ``twice`` the same counted twice, of those that may stand behind the slowest stage,
    ``chosen`` the least bound if the slowest stage is among them.
    """

    once: Numbers
    twice: Numbers
    chosen: Numbers


@dataclass(slots=True)
class Compositions:
    """All compositions of plans within bounds (``slowest``) whose slowest stage takes as long as these say.

    ``sums`` are suffixes, in which every stage takes no longer.
    """

    slowest: SlowestFirst
    charged: ReducedStages
    sums: LineSums

    @staticmethod
    def of(slowest: SlowestFirst, charged: ReducedStages) -> Compositions:
        """Make the suffixes. ``slowest`` has been run, ``charged`` has what stages do once a step."""
        of = slowest.stages
        # A link may take longer than any stage.
        sums = LineSums.of(of.line, of.least, of.atoms, (slowest.hi, FORBIDDEN, slowest.budget), of.numbers)
        return Compositions(slowest, charged, sums)

    def all(self) -> Iterator[tuple[int, list[Cell]]] | None:
        """Return bounds and cells, the least first; None where there are too many beginnings to look at."""
        levels: list[_Fronts] = []
        grown: list[_Fronts] = []
        for slot in range(len(self.sums.found) - 1, -1, -1):
            level = _Fronts.joined([_Fronts.nothing(slot + 1 >= self.sums.numbers[0]), *grown])
            if len(level) > MOST:
                return None
            levels.append(level)
            parts = (np.arange(at, min(at + AT_ONCE, len(level))) for at in range(0, len(level), AT_ONCE))
            rests = self._rests(slot)
            grown = [one for part in parts for one in self._grown(level, slot, part, rests)]
        if not grown:
            return iter(())
        ends = _Fronts.joined(grown)
        bounds = np.maximum(ends.alone, ends.twice + 2 * ends.pre)
        # Only the first few of what may be thousands are ever looked at.
        return ((int(bounds[at]), self._cells(levels, ends, int(at))) for at in np.argsort(bounds, kind="stable"))

    def _grown(self, level: _Fronts, slot: int, some: Numbers, rests: list[_Rest]) -> list[_Fronts]:
        """Return the beginnings with a stage more, by its seat; ``rests`` by its size."""
        self.charged.deadline.check()
        line, found = self.sums.line, list[_Fronts]()
        for size, rest in enumerate(rests):
            seats = line.seat[level.x[some], size]
            joint = line.joint[level.x[some], level.size[some], size]
            crossed = np.where(level.x[some] > 0, line.crossing[joint, level.atom[some]], 0)
            for seat in np.unique(seats[seats >= 0]):
                own = seats == seat
                pre = level.pre[some[own]] + crossed[own]
                found.append(self._with_a_stage(level, some[own], pre, (slot, int(seat), size), rest))
        return [one for one in found if len(one)]

    def _rests(self, slot: int) -> list[_Rest]:
        """Return by size what is behind a stage of a slot."""
        once, line, at = self.sums.rest(slot), self.sums.line, slot - 1
        none = [np.full_like(row, FORBIDDEN) for row in once]
        twice, chosen = none, none
        if slot == 0:
            twice = nothing_behind(line, self.slowest.stages.atoms)
        elif slot <= len(self.slowest.twice):
            twice = behind_stages(line, self.slowest.twice[at], times=2)
            chosen = behind_stages(line, self.slowest.chosen[at])
        return [_Rest(*rows) for rows in zip(once, twice, chosen, strict=True)]

    def _with_a_stage(
        self, level: _Fronts, rows: Numbers, pre: Numbers, stage: tuple[int, int, int], rest: _Rest
    ) -> _Fronts:
        """Return beginnings with a stage more, of a slot, seat and size, as far as they are within the bounds."""
        slot, seat, size = stage
        x, many, least = (
            level.x[rows] + self.sums.line.sizes[size],
            self.slowest.stages.micro_batches,
            self.slowest.lo + 1,
        )
        times, whole = self.sums.cells(seat, slot)[level.atom[rows]], self._whole(seat, slot)[level.atom[rows]]
        row, stop = np.nonzero((times < FORBIDDEN) & (rest.once[x] < FORBIDDEN))
        p, c, before, at = times[row, stop], whole[row, stop], pre[row], (x[row], stop)
        alone = np.maximum(level.alone[rows][row], np.maximum(before + many * p, many * c))
        twice, slowest = level.twice[rows][row], level.slowest[rows][row]
        if many >= slot + 2:
            twice = np.maximum(twice, (many - slot - 2) * p - before)
            twice = np.maximum(twice, (many - slot) * c - 2 * p - 2 * before)
            longer = np.maximum(p, least)
            slowest = np.minimum(slowest, (many - slot - 2) * longer + 2 * (longer - p) - before)
        else:
            slowest = np.full_like(twice, NOTHING)
        after = before + p
        behind = np.where(rest.twice[at] < FORBIDDEN, slowest + 2 * after + rest.twice[at], FORBIDDEN)
        behind = np.where(slowest == NOTHING, NOTHING, behind)
        bound = np.maximum(alone, twice + 2 * (after + rest.once[at]))
        bound = np.maximum(bound, np.minimum(behind, after + rest.chosen[at]))
        kept = bound <= self.slowest.budget
        row, stop = row[kept], stop[kept]
        size_ = np.full(len(row), size)
        return _Fronts(x[row], size_, stop, after[kept], alone[kept], twice[kept], slowest[kept], rows[row])

    def _whole(self, seat: int, slot: int) -> Numbers:
        """Return ``[first atom, atom behind the last]``: a pair with its part of what is done once a step.

        Rounded up for each layer by less than a nanosecond, which does not count.
        """
        found, places = self.charged.least(seat, slot), np.array(self.charged.word.space.places)
        layers = places[None, :] - places[:, None]
        return np.where(found < FORBIDDEN, found - np.maximum(layers, 0), 0)

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
