"""How many atoms a rank can hold within a time, by counting: a limit that needs no search.

With ``c_s(k)`` the least time of a run of k atoms that stage s may be, a rank whose stages have ``k_s`` atoms
takes at least the sum of ``c_s(k_s)``. So within a time it holds at most as many atoms as the best such sum
allows. All ranks together hold all atoms. Where the most that they can hold is less, there is no plan: of alike
blocks that cannot be shared out evenly this is the whole proof, and a model of single runs would have to find it
by trying.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import astuple, dataclass

from formulation.costs.memory import MemoryParts
from formulation.limits.deadline import Deadline, in_time
from solvers.chunks.case import Case
from solvers.chunks.runs import AtomRun, Runs

__all__: list[str] = []

Window = tuple[range, range]


def windows(case: Case) -> list[Window]:
    """Return at which places each stage may begin and end: at least one atom is left for every other stage."""
    stages, stops = case.stages, case.space.stops
    starts = [range(at, stops - stages + at + 1) if at else range(1) for at in range(stages)]
    return list(zip(starts, [*starts[1:], range(stops, stops + 1)], strict=True))


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


def least_by_number(runs: Runs, window: Window) -> dict[tuple[int, int], AtomRun]:
    """Return, as runs from the first place on, the least that a stage of so many atoms takes of everything."""
    found: dict[tuple[int, int], AtomRun] = {}
    for (i, j), run in runs.items():
        if i in window[0] and j in window[1]:
            known = found.get((0, j - i), run)
            found[0, j - i] = AtomRun(
                min(known.total_ns, run.total_ns),
                min(known.forward_ns, run.forward_ns),
                min(known.backward_ns, run.backward_ns),
                min(known.weight_ns, run.weight_ns),
                min(known.sync_ns, run.sync_ns),
                MemoryParts(*(min(pair) for pair in zip(astuple(known.parts), astuple(run.parts), strict=True))),
            )
    return found


def _shortest(case: Case, at: int, *, forward: bool = False) -> dict[int, int]:
    """Return the least time of a stage by its number of atoms; with ``forward`` of its forward pass."""
    found: dict[int, int] = {}
    starts, stops = windows(case)[at]
    for kind in set(case.kinds[case.rank_of(at)]):
        for (i, j), run in case.runs[kind].items():
            if i in starts and j in stops:
                spent = run.forward_ns if forward else run.passes_ns if case.steps else run.total_ns
                found[j - i] = min(spent, found.get(j - i, spent))
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
