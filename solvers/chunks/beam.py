"""Plans of a layout stage by stage, from the front: those that may be better than the best one are kept.

A *front* is the first stages of a plan. What each path that is known, or mixture of paths, takes in it and at
least behind it (``solvers.chunks.sums``) says what its plans take at least, and so does whether ranks can
hold what is left (``solvers.chunks.counting``). Fronts that may still be better are grown by every next stage;
of too many the most promising are kept, and the least that the others promised is a bound for their plans. Whole
plans are priced. So with room for all fronts it is a proof, and with less a beam search that has a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.limits import Deadline, in_time
from pipecut.solvers.chunks.bulk import ManyPlans
from pipecut.solvers.chunks.counting import rooms_of
from pipecut.solvers.chunks.runs import Numbers
from pipecut.solvers.chunks.sums import FAR, PathSums

AT_ONCE = 1 << 22
"""About so many sums are held at once: fronts times places times paths."""
FIRST = 4
"""So many rows are looked at first; what is beaten by them is not looked at again."""


@dataclass(frozen=True, slots=True)
class Looked:
    """No plan is below ``bound``, and ``places`` are the best one that was met, of ``value``; None if none."""

    bound: int
    value: int
    places: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class _Fronts:
    """Places where stages begin, so far, the sums of rows, and what plans of each take at least."""

    places: Numbers
    sums: Numbers
    least: Numbers

    def widened(self) -> _Fronts:
        """Return no fronts with one place more."""
        return _Fronts(np.zeros((0, self.places.shape[1] + 1), dtype=np.int64), self.sums[:0], self.least[:0])

    def of(self, rows: Numbers | NDArray[np.bool_]) -> _Fronts:
        return _Fronts(self.places[rows], self.sums[rows], self.least[rows])

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True, slots=True, eq=False)
class Beam:
    """The fronts of a layout whose choices of groups are all the same to it.

    ``rows``, ``units`` and ``own`` are those of ``solvers.chunks.weighing.Weighed``.
    """

    sums: PathSums
    plans: ManyPlans
    rows: Numbers
    units: Numbers
    own: tuple[tuple[int, tuple[int, ...]], ...]
    deadline: Deadline

    def look(self, upper: int, width: int) -> Looked:
        """Look for plans below ``upper``, keeping at most so many fronts of each length.

        Raises StoppedError after the deadline. Cost: width times places times rows, for every stage.
        """
        stages, dropped = self.sums.stages, upper
        sums = self.sums.within(self.rows, self.units, self.sums.behind(self.rows), upper)
        behind, rooms = sums.behind(self.rows), rooms_of(sums, self.rows, self.own, upper)
        start = np.zeros((1, 1), dtype=np.int64)
        fronts = _Fronts(start, np.zeros((1, len(self.rows)), dtype=np.int64), np.zeros(1, dtype=np.int64))
        for at in in_time(range(stages), self.deadline):
            own = sums.stage(self.rows, at)
            fronts, above = self._grown(fronts, own, behind[:, at + 1], upper, width)
            fronts, dropped = (
                fronts.of(rooms.enough(at + 1, fronts.places[:, -1], fronts.sums)),
                min(dropped, above),
            )
            if not len(fronts):
                return Looked(dropped, upper, None)
        values = self.plans.values(fronts.places)
        best = int(values.argmin())
        if values[best] >= upper:
            return Looked(dropped, upper, None)
        found = int(values[best])
        return Looked(min(dropped, found), found, tuple(fronts.places[best].tolist()))

    def _grown(
        self, fronts: _Fronts, own: Numbers, behind: Numbers, upper: int, width: int
    ) -> tuple[_Fronts, int]:
        """Return fronts with one more stage, and what the plans of those that are left out take at least."""
        kept, dropped = [fronts.of(np.zeros(0, dtype=np.int64)).widened()], upper
        last = fronts.places[:, -1]
        for place in in_time(np.unique(last).tolist(), self.deadline):
            stops = np.flatnonzero((own[0, place] < FAR) & (behind[0] < FAR))
            mine, some = np.flatnonzero(last == place), max(1, AT_ONCE // max(1, len(stops) * len(self.rows)))
            for at in in_time(range(0, len(mine) if len(stops) else 0, some), self.deadline):
                part = fronts.of(mine[at : at + some])
                kept.append(self._put(part, stops, own[:, place, stops].T, behind[:, stops].T, upper))
                if sum(map(len, kept)) > 2 * width:
                    one, above = _best(kept, width)
                    kept, dropped = [one], min(dropped, above)
        one, above = _best(kept, width)
        return one, min(dropped, above)

    def _put(self, part: _Fronts, stops: Numbers, own: Numbers, behind: Numbers, upper: int) -> _Fronts:
        """Return fronts that end at one place with a stage up to each stop behind them, where they count.

        The first rows, which are the best mixtures, are looked at before the others.
        """
        few = slice(0, FIRST)
        least = self._least(part.sums[:, None, few] + (own + behind)[:, few], few)
        row, column = np.nonzero(least < upper)
        summed = part.sums[row] + own[column]
        least = np.maximum(self._least(summed + behind[column], slice(None)), part.least[row])
        good = least < upper
        row, column = row[good], column[good]
        return _Fronts(np.column_stack([part.places[row], stops[column]]), summed[good], least[good])

    def _least(self, sums: Numbers, rows: slice) -> Numbers:
        """Return what plans take at least by some rows, along the last axis, rounded up."""
        return np.max(-(-sums // self.units[rows]), axis=-1)


def _best(parts: list[_Fronts], width: int) -> tuple[_Fronts, int]:
    """Return the most promising fronts of some parts, and what the others promise; nothing above everything."""
    rows = (np.concatenate([getattr(one, name) for one in parts]) for name in ("places", "sums", "least"))
    whole = _Fronts(*rows)
    if len(whole) <= width:
        return whole, FAR
    order = np.argpartition(whole.least, width)
    return whole.of(np.sort(order[:width])), int(whole.least[order[width:]].min())
