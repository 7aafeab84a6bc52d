"""The suffix programme: the least sum of stages and boundaries, none of which takes longer than a limit.

From the last stage to the first: the best suffix of a plan by the place of the line where it begins, the size of
its first stage, and the atom where it begins. In slot s, counted from the last stage, a stage has so many
micro-batches in flight as its schedule says. All suffixes of a slot are made at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

import numpy as np

from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.units import ceil_div
from pipecut.solvers.reduce.form_sums import Numbers
from pipecut.solvers.reduce.seats import SeatLine

PRICED, PARTS = 64, (4, 8, 16, 32)
"""The price of a device of the best class, and by which parts prices of others are changed in turn."""
Least = Callable[[int, int], Numbers]
"""By seat and slot ``[first atom, atom behind the last]``: the least time; FORBIDDEN where no stage fits."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A stage of a plan: ``size`` numbers its size among those of the line, ``x`` is where its devices begin."""

    x: int
    size: int
    first: int
    stop: int


@dataclass(slots=True)
class LineSums:
    """The suffixes of plans whose stages, and boundaries, keep to limits, and whose sum stays in a budget.

    ``numbers`` are how many stages plans have at least and at most. ``found[s][x, size, atom]`` is the least sum
    of suffixes of s + 1 stages, FORBIDDEN for none.
    """

    line: SeatLine
    least: Least
    limit: int
    crossed: int
    budget: int
    numbers: tuple[int, int]
    found: list[Numbers]
    front: Numbers

    @staticmethod
    def of(
        line: SeatLine, least: Least, atoms: int, within: tuple[int, int, int], numbers: tuple[int, int]
    ) -> LineSums:
        """Make all suffixes ``within`` limits of a stage and of a boundary, and a budget.

        Cost: slots x sizes x places of the line x atoms squared, in numpy.
        """
        limit, crossed, budget = within
        front = fronts(line, least, atoms, limit)
        found = LineSums(line, least, limit, crossed, min(budget, FORBIDDEN), numbers, [], front)
        behind = nothing_behind(line, atoms)
        while len(found.found) < numbers[1]:
            made = found._grown(behind)
            if (made >= FORBIDDEN).all():
                break
            found.found.append(made)
            behind = behind_stages(line, made, limit=crossed)
        return found

    def best(self) -> tuple[int, int] | None:
        """Return the least sum of a whole plan, and how many stages it has; None if there is none."""
        fewest = self.numbers[0]
        sums = [(int(row[0, :, 0].min()), many) for many, row in enumerate(self.found, 1) if many >= fewest]
        least = min(sums, default=(FORBIDDEN, 0))
        return None if least[0] >= FORBIDDEN else least

    def plan(self, stages: int) -> list[Cell]:
        """Return the stages of the best plan of so many of them, first to last."""
        cells: list[Cell] = []
        x, atom, size = 0, 0, int(self.found[stages - 1][0, :, 0].argmin())
        for slot in range(stages - 1, -1, -1):
            left = int(self.found[slot][x, size, atom])
            behind = self.rest(slot)[size][x + self.line.sizes[size]]
            row = self.cells(int(self.line.seat[x, size]), slot)[atom] + behind
            stop = int(np.flatnonzero(row == left)[0])
            cells.append(Cell(x, size, atom, stop))
            x += self.line.sizes[size]
            if slot:
                crossed = self._crossed(x, size, stop)
                nexts = self.found[slot - 1][x, :, stop] + crossed
                atom, size = stop, int(nexts.argmin())
        return cells

    def rest(self, slot: int) -> list[Numbers]:
        """Return ``[x, atom]`` by size: the least sum behind a stage of a slot that ends before a place."""
        if slot:
            return behind_stages(self.line, self.found[slot - 1], limit=self.crossed)
        return nothing_behind(self.line, self.found[0].shape[2] - 1)

    def cells(self, seat: int, slot: int) -> Numbers:
        """Return the least times of stages that keep to the limit."""
        found = self.least(seat, slot)
        return np.where(found > self.limit, FORBIDDEN, found)

    def _grown(self, behind: list[Numbers]) -> Numbers:
        """Return suffixes of one stage more, given what is behind its last device, by its size."""
        slot = len(self.found)
        made = grown(self.line, lambda seat: self.cells(seat, slot), behind)
        made[made + self.front[:, None] > self.budget] = FORBIDDEN
        return made

    def _crossed(self, x: int, size: int, atom: int) -> Numbers:
        return self.line.crossing[self.line.joint[x, size], atom]


def time_of(line: SeatLine, least: Least, cell: Cell, slot: int) -> int:
    """Return what a stage of a plan takes at least."""
    return int(least(int(line.seat[cell.x, cell.size]), slot)[cell.first, cell.stop])


def sums_before(least: Numbers, crossed: Numbers) -> Numbers:
    """Return by atom what all stages before it take at least, with the boundary there.

    ``least[first, behind the last]`` is what a stage takes, ``crossed`` what the boundary before an atom does.
    """
    found = np.full(len(crossed), FORBIDDEN, dtype=np.int64)
    found[0] = 0
    for atom in range(1, len(found)):
        found[atom] = min(FORBIDDEN, int((found[:atom] + least[:atom, atom]).min()) + int(crossed[atom]))
    return found


def pace_ns(line: SeatLine, least: Callable[[int], Numbers]) -> int:
    """Return what the slowest stage of any plan takes at least; ``least`` is what stages take on a seat.

    Devices have prices by their class. A stage costs what it takes for each of its devices, and no plan costs
    more than all devices do for the time of its slowest stage. So what all atoms cost at least in stages, divided
    by what all devices cost, is a bound at any prices. Those are looked for that make it largest, from those on at
    which a model costs as much on each class alone. Cost: classes x seats that differ in devices x atoms squared.
    """
    times = dict[tuple[int, ...], Numbers]()
    for seat, own in enumerate(map(tuple, line.of_class.tolist())):
        times[own] = np.minimum(times.get(own, FORBIDDEN), least(seat))

    def cost(prices: Numbers, only: Sequence[tuple[int, ...]]) -> int:
        rows = [(int(np.dot(own, prices)), times[own]) for own in only]
        work = [np.where(row < FORBIDDEN // price, price * row, FORBIDDEN) for price, row in rows]
        if not work:
            return FORBIDDEN
        cheapest = reduce(np.minimum, work)
        return int(sums_before(cheapest, np.zeros(len(cheapest), dtype=np.int64))[-1])

    def bound(prices: Numbers) -> int:
        whole = cost(prices, [*times])
        return ceil_div(whole, int(prices @ line.in_class)) if whole < FORBIDDEN else 0

    classes, one = range(len(line.in_class)), np.eye(len(line.in_class), dtype=np.int64)
    alone = [cost(one[at], [own for own in times if own[at] == sum(own)]) for at in classes]
    prices = np.array([max(1, PRICED * min(alone) // max(1, whole)) for whole in alone])
    best = bound(prices)
    for part, at, more in product(PARTS, classes[1:], (1, -1)):
        other = prices.copy()
        other[at] += more * max(1, other[at] // part)
        if other[at] and (value := bound(other)) > best:
            best, prices = value, other
    return best


def nothing_behind(line: SeatLine, atoms: int) -> list[Numbers]:
    """Return by size what is behind a last stage: nothing, wherever on the line it ends."""
    found = np.full((line.devices + 1, atoms + 1), FORBIDDEN, dtype=np.int64)
    found[:, atoms] = 0
    return [found for _ in line.sizes]


def fronts(line: SeatLine, least: Least, atoms: int, limit: int) -> Numbers:
    """Return ``[x, atom]``: the least sum of stages that have all devices before place x, and these atoms.

    That is all atoms before that one, and the boundary behind them. They are taken to have no more micro-batches
    in flight than a last stage, so it is a lower bound; FORBIDDEN where there are none. Cost: places of the line
    x sizes x atoms squared, in numpy.
    """
    found = np.full((line.devices + 1, atoms + 1), FORBIDDEN, dtype=np.int64)
    found[0, 0] = 0
    for x in range(1, line.devices + 1):
        for size, devices in enumerate(line.sizes):
            before = x - devices
            if before < 0 or line.seat[before, size] < 0 or (found[before] >= FORBIDDEN).all():
                continue
            cells = least(int(line.seat[before, size]), 0)
            rows = np.flatnonzero(found[before] < FORBIDDEN)
            sums = found[before, rows, None] + np.where(cells[rows] > limit, FORBIDDEN, cells[rows])
            ends = np.minimum(sums.min(axis=0), FORBIDDEN)
            joints = line.joint[x, size] if x < line.devices else np.array([-1])
            crossed = line.crossing[joints].min(axis=0)
            found[x] = np.minimum(found[x], np.minimum(ends + crossed, FORBIDDEN))
    return found


def grown(
    line: SeatLine,
    cells: Callable[[int], Numbers],
    behind: list[Numbers],
    joined: Callable[[Numbers, Numbers], Numbers] = np.add,
) -> Numbers:
    """Return ``[x, size, atom]``: the least sums with one stage more in front; ``cells`` are its times by seat.

    ``joined`` says what is made of the time of that stage and what is behind it.
    """
    total, atoms = behind[0].shape
    made = np.full((total, len(line.sizes), atoms), FORBIDDEN, dtype=np.int64)
    for size, devices in enumerate(line.sizes):
        some = np.flatnonzero((behind[size][devices:] < FORBIDDEN).any(axis=1))
        seats = line.seat[some, size]
        for seat in np.unique(seats[seats >= 0]):
            useful, own = some[seats == seat], cells(int(seat))
            rest = behind[size][useful + devices]
            columns = np.flatnonzero((rest < FORBIDDEN).any(axis=0))
            rows = np.flatnonzero((own[:, columns] < FORBIDDEN).any(axis=1))
            if len(rows):
                sums = joined(own[np.ix_(rows, columns)][None], rest[:, None, columns])
                made[useful[:, None], size, rows[None, :]] = sums.min(axis=2)
    return np.minimum(made, FORBIDDEN)


def behind_stages(line: SeatLine, made: Numbers, *, limit: int = FORBIDDEN) -> list[Numbers]:
    """Return ``[x, atom]`` by size: the least sum behind a stage that ends before place x.

    A boundary that takes longer than the limit is in no plan. Few suffixes are within a budget, and only these are
    looked at.
    """
    x, after, atom = np.nonzero(made < FORBIDDEN)
    sums, places, atoms = made[x, after, atom], made.shape[0], made.shape[2]
    found = np.full((len(line.sizes), places * atoms), FORBIDDEN, dtype=np.int64)
    for size, row in enumerate(found):
        crossed = line.crossing[line.joint[x, size, after], atom]
        np.minimum.at(row, x * atoms + atom, np.where(crossed > limit, FORBIDDEN, sums + crossed))
    return list(np.minimum(found, FORBIDDEN).reshape(-1, places, atoms))
