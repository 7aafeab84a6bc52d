"""Stages by how many devices they have, wherever these stand: what they take at least, and what joins them.

A line of hundreds of servers has too many places to search them all. A stage of so many devices takes at least
what it takes where it takes least, and so does a boundary between stages of two sizes. Of places that are alike
but for slower links the best alone is looked at (``ReducedStages.firsts``): clusters of alike servers have few.

A step ends when the first stage has summed its gradients, so what that stage does once a step comes behind either
way through it (``solvers.reduce.executed.slowest``). It counts as far as its pairs do: charged to M micro-batches,
less the nanosecond of each layer that this is rounded up. Where another stage is the slowest, all of it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.plan import Plan, Stage
from pipecut.solvers.reduce.form_sums import Numbers
from pipecut.solvers.reduce.programme import Cell, Least, pace_ns
from pipecut.solvers.reduce.reduced_stages import ReducedStages
from pipecut.solvers.reduce.seats import SeatLine

FEW = 3
"""Numbers of micro-batches in flight are told apart by so many leading bits."""


@dataclass(frozen=True, slots=True, eq=False)
class CountedStages:
    """The stages of a line by size: ``seats[size]`` are those that none with better links stands for.

    ``devices[size]`` is how many they have; ``crossing[joint_of[size], next, place]`` what the tensors that cross
    a place to cut take between stages of two sizes at least, FORBIDDEN where these are nowhere neighbours: most
    sizes are joined to others alike. ``numbers`` are how many stages plans have at least and at most, ``times``
    what stages take by seat and slot.
    """

    line: SeatLine
    atoms: int
    devices: Numbers
    seats: tuple[tuple[int, ...], ...]
    crossing: Numbers
    joint_of: Numbers
    numbers: tuple[int, int]
    in_flight: Callable[[int], int]
    times: ReducedStages | ExecutedStages
    _known: dict[tuple[Least, int], Numbers] = field(default_factory=dict)
    _apart: set[int] = field(default_factory=set)

    @staticmethod
    def of(stages: ReducedStages, times: ReducedStages | ExecutedStages) -> CountedStages:
        """Sort the seats of a line by size. Cost: places of the line times pairs of sizes, in numpy."""
        line, firsts = stages.line, stages.firsts
        seats = tuple(
            tuple(int(seat) for seat in np.unique(line.seat[:, size]) if seat in firsts)
            for size in range(len(line.sizes))
        )
        devices, whole = np.array(line.sizes), _crossing(line)
        rows, of = np.unique(whole.reshape(len(whole), -1), axis=0, return_inverse=True)
        joints = rows.reshape(-1, *whole.shape[1:]), of.reshape(-1)
        return CountedStages(line, stages.atoms, devices, seats, *joints, stages.numbers, stages.in_flight, times)

    def least(self, slot: int) -> Numbers:
        """Return ``[size, first atom, atom behind the last]``: the least time of a stage in a slot.

        Far from the end it is that of a slot a little nearer to it, where no stage takes more.
        """
        return self._of_sizes(self.times.least, self.like(slot))

    def _of_sizes(self, by_seat: Least, slot: int) -> Numbers:
        """Return ``[size, first atom, atom behind the last]``: the least of the seats of a size."""
        if (by_seat, slot) not in self._known:
            found = np.empty((len(self.devices), self.atoms + 1, self.atoms + 1), dtype=np.int64)
            self._known[by_seat, slot] = found
            for size in range(len(self.seats)):
                self._look(by_seat, slot, size)
        return self._known[by_seat, slot]

    def _look(self, by_seat: Least, slot: int, size: int) -> None:
        """Find the least of the seats of a size anew."""
        found = self._known[by_seat, slot][size]
        found[:] = FORBIDDEN
        for seat in self.seats[size]:
            np.minimum(found, by_seat(seat, slot), out=found)

    def pace_ns(self) -> int:
        """Return what the slowest stage of any plan takes at least, wherever it stands: prices are by class."""
        return pace_ns(self.line, lambda seat: self.times.least(seat, self.like(0)))

    def ended_ns(self, slot: int) -> Numbers:
        """Return ``[size, first atom, atom behind the last]``: a pair of passes, and what is done behind it."""
        return self._of_sizes(self.times.ended, self.like(slot))

    def closer(self, cells: Sequence[Cell], limit: int, most: int) -> bool:
        """Bring the least times of stages closer, wherever they stand; tell whether that changed anything.

        Those in their slots are told apart, and they are settled as far as they may be below a limit, and in plans
        below ``most``.
        """
        slots = range(len(cells) - 1, -1, -1)
        new, first = not self._apart.issuperset(slots), not self._apart
        self._apart.update(slots)
        # What takes as long in two slots does so in all that lie between.
        order = sorted(slots, key=lambda slot: (-((slot + 1) & -(slot + 1)), slot))
        changed = [self._settled(cells[-1 - slot], slot, limit) for slot in (*slots[:1], *order)]
        if self.times.leave_out(most) or first:  # from here on what is done once a step counts
            self._known.clear()
        return new or any(changed)

    def _settled(self, cell: Cell, slot: int, limit: int) -> bool:
        changed = False
        for seat in self.seats[cell.size]:
            x = int(np.flatnonzero(self.line.seat[:, cell.size] == seat)[0])
            changed |= self.times.settle(Cell(x, cell.size, cell.first, cell.stop), slot, limit)
        for by_seat, at in self._known:
            if at == self.in_flight(slot) - 1:
                self._look(by_seat, at, cell.size)
        return changed

    def like(self, slot: int) -> int:
        """Return the slot whose times stand for those of a slot: its own, or one a little nearer to the end."""
        many = self.in_flight(slot)
        return (many if many - 1 in self._apart else _rounded(many)) - 1

    def fits(self, cells: Sequence[Cell]) -> bool:
        """Tell whether stages stand on the line, each where no other place has better links for its size."""
        seat, seats, total = self.line.seat, self.seats, self.line.devices
        return all(cell.x <= total and int(seat[cell.x, cell.size]) in seats[cell.size] for cell in cells)


def _rounded(many: int) -> int:
    """Return a number with its first FEW bits alone; of one below 0, the next one down."""
    less = max(0, many.bit_length() - FEW)
    return many >> less << less


def _crossing(line: SeatLine) -> Numbers:
    """Return the least times of boundaries between two sizes."""
    total, sizes = line.devices, range(len(line.sizes))
    found = np.full((len(line.sizes), len(line.sizes), line.crossing.shape[1]), FORBIDDEN, dtype=np.int64)
    stands = line.seat >= 0
    for one in sizes:
        ends = np.zeros(total + 1, dtype=bool)
        ends[line.sizes[one] :] = stands[: total + 1 - line.sizes[one], one]
        for two in sizes:
            links = np.unique(line.joint[ends & stands[:, two], one, two])
            if len(links):
                found[one, two] = line.crossing[links].min(axis=0)
    return found


@dataclass(slots=True)
class ExecutedStages:
    """Stages by the time of their passes alone; with what they do once a step charged to these, or whole.

    What is done once a step counts from the first time that something is brought closer.
    """

    passes: ReducedStages
    _charged: ReducedStages | None = None

    @property
    def charged(self) -> ReducedStages:
        """Return the stages with what they do once a step charged. Cost: their cells, the first time."""
        if self._charged is None:
            self._charged = self.passes.charged()
        return self._charged

    def least(self, seat: int, slot: int) -> Numbers:
        """Return ``[first atom, atom behind the last]``: the least time that counts; FORBIDDEN where none fits."""
        if self._charged is None:
            return self.passes.least(seat, slot)
        found, charged = self.passes.least(seat, slot).copy(), self.charged.least(seat, slot)[0]
        # Each layer of a stage is charged with less than a nanosecond too much.
        less = np.where(charged < FORBIDDEN, charged - np.array(self.passes.word.space.places), FORBIDDEN)
        found[0] = np.maximum(found[0], less)
        return found

    def ended(self, seat: int, slot: int) -> Numbers:
        """Return ``[first atom, atom behind the last]``: a pair of passes and all that is done once a step."""
        least = self.least(seat, slot)
        return least if self._charged is None else np.maximum(least, self.passes.ending().least(seat, slot))

    def leave_out(self, most: int) -> bool:
        """Leave out kinds that take too long in plans below a value; tell whether anything may have changed."""
        return self.passes.leave_out(most)

    def settle(self, cell: Cell, slot: int, limit: int) -> bool:
        """Price a stage exactly as far as it may be below a limit; tell whether anything changed."""
        changed = self.passes.settle(cell, slot, limit)
        if cell.first:
            return changed
        changed |= self._charged is None
        return self.charged.settle(cell, slot, limit + self.passes.word.space.places[cell.stop]) or changed

    def plan(self, cells: Sequence[Cell]) -> Plan | None:
        """Return the plan of some cells, first to last; None where one has no stage that fits."""
        stages = list[Stage]()
        for at, cell in enumerate(cells):
            of = self.passes if cell.first else self.charged
            found = of.label(cell, len(cells) - 1 - at)
            if found is None:
                return None
            stages.append(of.stage_of(cell, *found))
        return Plan(tuple(stages))
