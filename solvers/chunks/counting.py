"""How many atoms a rank can hold within a time, by counting: a limit that needs no search.

With ``c_s(k)`` the least time of a run of k atoms that stage s may be, a rank whose stages have ``k_s`` atoms
takes at least the sum of ``c_s(k_s)``. So within a time it holds at most as many atoms as the best such sum
allows. All ranks together hold all atoms. Where the most that they can hold is less, there is no plan: of alike
blocks that cannot be shared out evenly this is the whole proof, and a model of single runs would have to find it
by trying.

So it is within a search that knows the first stages of a plan (:class:`Rooms`). A path through all passes of a
rank takes what the rank's own stages take, and something beside that. What is left of the limit is room for its
stages that are to come, with ``c_s(k)`` the least that k atoms add to the path as stage s. No mixture of paths
says so, as it stands for mixtures of plans, too.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.limits import Deadline, in_time
from pipecut.solvers.chunks.case import Case, Window
from pipecut.solvers.chunks.path_sums import FAR, TIMES, PathSums
from pipecut.solvers.chunks.runs import BACKWARD, FORWARD, TOTAL, WEIGHT, Numbers, Runs

NEVER = 1 << 62
PASSES = TIMES - 1
"""Rows of times that are passes; behind them comes what a stage takes at the end."""


@dataclass(frozen=True, slots=True)
class Counts:
    """``most[r][n]`` is the least time of n atoms on rank r, as far as counting tells; it rises with n.

    ``beside[r]`` is what a step takes at least before and behind the passes of rank r. Of the bottleneck it is 0.
    """

    atoms: int
    least: tuple[tuple[int, ...], ...]
    beside: tuple[int, ...]
    times: int

    def held(self, threshold_ns: int) -> list[int]:
        """Return how many atoms each rank can hold in a plan of at most this value, -1 where it has no room."""
        rooms = ((threshold_ns - beside) // self.times for beside in self.beside)
        return [bisect_right(row, room) - 1 for row, room in zip(self.least, rooms, strict=True)]

    def enough(self, threshold_ns: int) -> bool:
        """Tell whether all ranks together can hold all atoms; where not, there is no such plan."""
        held = self.held(threshold_ns)
        return min(held) >= 0 and sum(held) >= self.atoms

    def bound(self, upper: int) -> int:
        """Return a value that no plan is below, at most ``upper``."""
        low, high = 0, upper
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.enough(middle) else (middle + 1, high)
        return low


def counts_of(case: Case, upper: int, deadline: Deadline) -> Counts:
    """Return what counting says of a case, of plans below ``upper``.

    Raises StoppedError after the deadline. Cost: for each stage its runs, and the square of the atoms.
    """
    ranks, times = case.layout.ranks, case.instance.training.micro_batches if case.steps else 1
    single = [_shortest(case, at) for at in in_time(range(case.stages), deadline)]
    rows: list[tuple[int, ...]] = []
    for rank in in_time(range(ranks), deadline):
        row = {0: 0}
        for at in case.own(rank):
            row = _together(row, single[at], upper)
        most = max(row, default=0)
        # Of more atoms than can be held in so many runs nothing is known to fit.
        least = [row.get(number, upper) for number in range(most + 1)]
        rows.append(tuple(min(least[number:]) for number in range(most + 1)))
    beside = [_beside(case, rank) if case.steps else 0 for rank in range(ranks)]
    return Counts(case.space.stops, tuple(rows), tuple(beside), times)


def least_by_number(runs: Runs, window: Window) -> Runs:
    """Return, as runs from the first place on, the least that a stage of so many atoms takes of everything."""
    starts, stops = window
    table, there = np.zeros_like(runs.table), np.zeros_like(runs.there)
    for number in range(1, len(there)):
        some = [at for at in starts if at + number in stops and runs.there[at, at + number]]
        if some:
            there[0, number] = True
            table[:, 0, number] = runs.table[:, some, [at + number for at in some]].min(axis=1)
    return Runs(table, there)


def _shortest(case: Case, at: int, *, forward: bool = False) -> dict[int, int]:
    """Return the least time of a stage by its number of atoms; with ``forward`` of its forward pass."""
    rows = [FORWARD] if forward else [FORWARD, BACKWARD, WEIGHT] if case.steps else [TOTAL]
    found: dict[int, int] = {}
    starts, stops = case.windows[at]
    for kind in set(case.kinds[case.rank_of(at)]):
        runs = case.runs[kind]
        window = np.ix_(starts, stops)
        spent = np.where(runs.there[window], runs.table[rows].sum(axis=0)[window], NEVER)
        for number in range(stops.start - starts.stop + 1, stops.stop - starts.start):
            least = int(spent.diagonal(number + starts.start - stops.start).min(initial=NEVER))
            if least < NEVER:
                found[number] = min(least, found.get(number, least))
    return found


def _together(row: dict[int, int], own: dict[int, int], upper: int) -> dict[int, int]:
    """Return the least times of some stages together with one more, by their number of atoms."""
    found: dict[int, int] = {}
    for before, spent in row.items():
        for number, more in own.items():
            if spent + more < upper:
                both = before + number
                found[both] = min(spent + more, found.get(both, spent + more))
    return found


def _beside(case: Case, rank: int) -> int:
    """Return what a step takes at least before the first and behind the last pass of a rank.

    Its first pass waits for the forward passes of all stages before. Its last one is waited for by their backward
    passes, unless it makes gradients of weights.
    """
    halves = case.instance.training.schedule.in_halves
    return sum(min(_shortest(case, at, forward=halves).values(), default=0) for at in range(rank))


@dataclass(frozen=True, slots=True, eq=False)
class Rooms:
    """Of some ranks the path that each is judged by: its row, its own stages, and what these take by atoms.

    ``beside[r]`` is what rank r's path takes at least beside its own passes, from each stage and place on;
    ``least[r][c]`` what its own stages from the c-th on take for so many atoms, or more, together.
    """

    rows: tuple[int, ...]
    own: tuple[tuple[int, ...], ...]
    beside: Numbers
    least: tuple[tuple[Numbers, ...], ...]
    limit: int

    def enough(self, at: int, places: Numbers, sums: Numbers) -> NDArray[np.bool_]:
        """Tell of fronts that end at some places, with stage ``at`` to come, whether the ranks can hold the rest.

        ``sums`` are those of all rows, by front.
        """
        held, stops = np.zeros(len(places), dtype=np.int64), self.beside.shape[2] - 1
        good = np.ones(len(places), dtype=np.bool_)
        for rank, row in enumerate(self.rows):
            room = self.limit - sums[:, row] - self.beside[rank, at, places]
            done = sum(one < at for one in self.own[rank])
            most = np.searchsorted(self.least[rank][done], room, side="right") - 1
            good &= most >= 0
            held += most
        return good & (held >= stops - places) if self.rows else good


def rooms_of(sums: PathSums, often: Numbers, own: tuple[tuple[int, tuple[int, ...]], ...], upper: int) -> Rooms:
    """Return the rooms of plans below ``upper``. ``own`` has the row of each rank's path, and its stages.

    Cost: that of least sums of these rows, and for every stage of its runs and of the square of the atoms.
    """
    rows, beside, least = [row for row, _ in own], [], list[tuple[Numbers, ...]]()
    for row, stages in own:
        alone, rest = np.zeros_like(often[row]), often[row].copy()
        for at in stages:
            passes = slice(at, PASSES * sums.stages, sums.stages)
            alone[passes], rest[passes] = rest[passes], 0
        beside.append(sums.behind(rest[None])[0])
        least.append(_from_each_on([_by_number(sums, alone, at) for at in stages]))
    return Rooms(tuple(rows), tuple(one for _, one in own), np.array(beside), tuple(least), upper - 1)


def _by_number(sums: PathSums, often: Numbers, at: int) -> Numbers:
    """Return what a stage adds to a path at least for so many atoms."""
    spent = sums.stage(often[None], at)[0]
    return np.array([spent.diagonal(number).min(initial=FAR) for number in range(sums.places)], dtype=np.int64)


def _from_each_on(single: list[Numbers]) -> tuple[Numbers, ...]:
    """Return the least of stages together for so many atoms or more, of those from each on, and of none."""
    many = len(single[0])
    together = np.full(many, FAR, dtype=np.int64)
    together[0] = 0
    found = [together]
    for own in reversed(single):
        both = np.full(many, FAR, dtype=np.int64)
        for number in np.flatnonzero(own < FAR).tolist():
            both[number:] = np.minimum(both[number:], together[: many - number] + own[number])
        together = np.minimum(both, FAR)
        found.append(together)
    return tuple(np.minimum.accumulate(one[::-1])[::-1] for one in reversed(found))
