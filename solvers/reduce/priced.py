"""The suffix programme with a price for every device: the least sum of stages, less what all devices would cost.

A plan uses no more devices than there are. So what stages take, and a price for every device that they have, less
that price for every device that there is, is never more than what a plan takes, whatever the price: the least over
all stages is a lower bound of all plans (duality), and it needs no places. At the right price it is close, and its
stages have about as many devices as there are.

What is summed is told by :class:`Option`: stages count in *phases*, from the last stage to the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.solvers.reduce.counted import CountedStages, sums_before
from pipecut.solvers.reduce.programme import Cell
from pipecut.solvers.reduce.sums import Numbers


@dataclass(frozen=True, slots=True)
class Option:
    """One way of a stage to be in a phase: how often its time counts, and how many halves as the slowest stage.

    What is behind it is in the phase ``rest``; the boundary between counts ``crossed`` times.
    """

    own: int
    halves: int
    rest: int
    crossed: int


Phases = Callable[[int], tuple[tuple[Option, ...], ...]]
"""By slot: the options of every phase. Plans are suffixes in phase 0."""


@dataclass(frozen=True, slots=True)
class PricedQuestion:
    """Which plans: the slowest stage takes more than ``lo`` and at most ``hi``, and they take at most ``budget``.

    They have at least the first and at most the second of ``numbers`` of stages.
    ``bounded``: boundaries take at most ``hi`` too. What a plan takes is at least the sum of its stages and
    boundaries, each once, and ``beside``; what is counted of a suffix in a phase, of the stages before it, and
    ``more[phase]`` besides. A suffix in phase 0 takes no less than any of its stages so many ``passes``.
    """

    phases: Phases
    lo: int
    hi: int
    budget: int
    bounded: bool
    beside: int
    more: tuple[int, ...]
    numbers: tuple[int, int]
    passes: int = 0


@dataclass(frozen=True, slots=True)
class PricedAnswer:
    """The least sum at a price, how many devices its stages have, and these.

    ``total`` is what they and the boundaries take one after another, with what the first one does once a step;
    ``slowest`` is the longest that counts as such.
    """

    value: int
    devices: int
    cells: tuple[Cell, ...]
    slowest: int
    total: int


@dataclass(frozen=True, slots=True, eq=False)
class _Useful:
    """Runs of atoms by size that are in plans within the budget, sorted by size and first atom.

    ``size``, ``first``, ``stop`` by run; ``row`` is where runs of one size and first atom begin.
    """

    size: Numbers
    first: Numbers
    stop: Numbers
    row: Numbers

    @staticmethod
    def of(useful: NDArray[np.bool_]) -> _Useful:
        size, first, stop = np.nonzero(useful)
        begins = np.ones(len(size), dtype=bool)
        begins[1:] = (size[1:] != size[:-1]) | (first[1:] != first[:-1])
        return _Useful(size, first, stop, np.flatnonzero(begins))

    def of_row(self, size: int, first: int) -> slice:
        """Return the runs of a size from an atom on."""
        some = np.flatnonzero((self.size == size) & (self.first == first))
        return slice(int(some[0]), int(some[-1]) + 1)


@dataclass(slots=True)
class PricedSums:
    """The programme for one question, at one price of a device."""

    stages: CountedStages
    question: PricedQuestion
    price: int
    front: Numbers
    crossing: Numbers
    useful: _Useful
    _found: list[list[Numbers]] = field(default_factory=list)
    _taken: dict[int, Numbers] = field(default_factory=dict)
    _ended: dict[int, Numbers] = field(default_factory=dict)
    _crossings: dict[int, Numbers] = field(default_factory=dict)
    _short: dict[int, NDArray[np.bool_]] = field(default_factory=dict)
    _best: tuple[int, int] = (FORBIDDEN, 0)

    @staticmethod
    def of(stages: CountedStages, question: PricedQuestion, price: int) -> PricedSums:
        """Leave out what is in no plan within the budget. Cost: sizes x atoms squared, in numpy."""
        crossing = stages.crossing
        if question.bounded:
            crossing = np.where(crossing > question.hi, FORBIDDEN, crossing)
        cells = stages.least(0)
        cells = np.where(cells > question.hi, FORBIDDEN, cells + price * stages.devices[:, None, None])
        least, crossed = cells.min(axis=0), crossing.min(axis=(0, 1))
        front = sums_before(least, crossed)
        # From the other end: what is behind an atom, with the boundary there.
        behind = sums_before(least[::-1, ::-1].T, crossed[::-1])[::-1]
        most = min(question.budget - question.beside + price * stages.line.devices, FORBIDDEN - 1)
        useful = front[:, None] + cells + behind <= most
        runs = _Useful.of(useful)
        return PricedSums(stages, question, price, front, crossing, runs)

    def least(self) -> PricedAnswer | None:
        """Return the least sum; None where no stages are within the budget.

        Cost: slots x runs of atoms of use x options, in numpy.
        """
        return self._answer() if self.fill() else None

    def fill(self) -> bool:
        """Make all suffixes; tell whether some are within the budget."""
        question = self.question
        most = min(question.budget + self.price * self.stages.line.devices, FORBIDDEN - 1)
        fewest, most_stages = question.numbers
        for slot in range(min(self.stages.most, most_stages)):
            made = [self._made(options) for options in question.phases(slot)]
            for row, more in zip(made, question.more, strict=True):
                row[row + self.front + more > most] = FORBIDDEN
            if all((row >= FORBIDDEN).all() for row in made):
                break
            self._found.append(made)
            if slot + 1 >= fewest:
                self._best = min(self._best, (int(made[0][:, 0].min()), slot))
        return self._best[0] < FORBIDDEN

    def times(self, slot: int) -> Numbers:
        """Return by run what a stage in a slot takes."""
        like, useful = self.stages.like(slot), self.useful
        if like not in self._taken:
            found = self.stages.least(slot)[useful.size, useful.first, useful.stop]
            self._taken[like] = np.where(found > self.question.hi, FORBIDDEN, found)
        return self._taken[like]

    @property
    def slots(self) -> int:
        """Return how many stages suffixes within the budget have at most."""
        return len(self._found)

    def counted(self, option: Option, slot: int) -> Numbers:
        """Return by run what is counted of a stage in a slot.

        First stages that are not the slowest count with all that they do once a step; stages that will never take
        more than ``lo`` are not the slowest.
        """
        times, useful = self.times(slot), self.useful
        if not option.halves:
            own = self._whole(slot) if option.own == 1 else times
            return np.where(times < FORBIDDEN, option.own * own, FORBIDDEN)
        longer = np.maximum(times, self.question.lo + 1)
        if slot not in self._short:
            most = self.stages.most_ns(slot)[useful.size, useful.first, useful.stop]
            self._short[slot] = (times >= FORBIDDEN) | (most <= self.question.lo)
        return np.where(self._short[slot], FORBIDDEN, option.own * times + option.halves * longer // 2)

    def _whole(self, slot: int) -> Numbers:
        """Return by run what a stage in a slot takes, with all that first ones do once a step."""
        return np.where(self.useful.first == 0, self.ended(slot), self.times(slot))

    def ended(self, slot: int) -> Numbers:
        """Return by run what a stage in a slot takes with all that it does once a step."""
        like, useful = self.stages.like(slot), self.useful
        if like not in self._ended:
            self._ended[like] = self.stages.ended_ns(slot)[useful.size, useful.first, useful.stop]
        return self._ended[like]

    def ends(self, first: Cell, slot: int) -> int:
        """Return what a first stage does once a step beside its passes."""
        rows = self.stages.ended_ns(slot), self.stages.least(slot)
        ended, passes = (int(row[first.size, 0, first.stop]) for row in rows)
        return ended - passes

    def _made(self, options: tuple[Option, ...]) -> Numbers:
        """Return ``[size, atom]``: the least suffixes in a phase with a stage more."""
        useful, slot = self.useful, len(self._found)
        made = np.full((len(self.stages.devices), self.stages.atoms + 1), FORBIDDEN, dtype=np.int64)
        sizes, firsts = useful.size[useful.row], useful.first[useful.row]
        for option in options:
            behind = self.behind(option, slot)[useful.size, useful.stop]
            sums = np.minimum.reduceat(self.counted(option, slot) + behind, useful.row)
            made[sizes, firsts] = np.minimum(made[sizes, firsts], sums)
        return np.minimum(made + self.price * self.stages.devices[:, None], FORBIDDEN)

    def behind(self, option: Option, slot: int) -> Numbers:
        """Return ``[size, atom]``: what is behind a stage of a size in a slot, with the boundary."""
        if not slot:
            rest = np.full((len(self.stages.devices), self.stages.atoms + 1), FORBIDDEN, dtype=np.int64)
            rest[:, -1] = 0
            return rest
        sums = self._found[slot - 1][option.rest][None] + self.crossed(option)
        return np.minimum(sums.min(axis=1), FORBIDDEN)[self.stages.joint_of]

    def crossed(self, option: Option) -> Numbers:
        """Return ``[joint, size, atom]``: what boundaries count."""
        often = option.crossed
        if often not in self._crossings:
            self._crossings[often] = np.where(self.crossing < FORBIDDEN, often * self.crossing, FORBIDDEN)
        return self._crossings[often]

    def _answer(self) -> PricedAnswer:
        """Go back through the phases from the best sum."""
        slot = self._best[1]
        best = self._found[slot][0][:, 0]
        phase, atom, x, size, slowest, total = 0, 0, 0, int(best.argmin()), 0, 0
        cells: list[Cell] = []
        for at in range(slot, -1, -1):
            option, stop, time = self._came((phase, at), size, atom)
            cells.append(Cell(x, size, atom, stop))
            x += int(self.stages.devices[size])
            slowest, total, atom, phase = max(slowest, time), total + time, stop, option.rest
            if at:
                joint = int(self.stages.joint_of[size])
                after = self._found[at - 1][phase][:, atom] + self.crossed(option)[joint, :, atom]
                size = int(after.argmin())
                crossed = int(self.crossing[joint, size, atom])
                total += crossed
                slowest = max(slowest, crossed) if self.question.bounded else slowest
        total += self.ends(cells[0], slot)
        value = self._best[0] - self.price * self.stages.line.devices
        return PricedAnswer(value, x, tuple(cells), slowest, total)

    def _came(self, where: tuple[int, int], size: int, atom: int) -> tuple[Option, int, int]:
        """Return the option by which a stage came to its sum, the atom behind it, and what it takes.

        ``where`` is its phase and slot.
        """
        phase, slot = where
        value = int(self._found[slot][phase][size, atom]) - self.price * int(self.stages.devices[size])
        runs = self.useful.of_row(size, atom)
        stops, times = self.useful.stop[runs], self.times(slot)[runs]
        for option in self.question.phases(slot)[phase]:
            row = self.counted(option, slot)[runs] + self.behind(option, slot)[size, stops]
            made = np.flatnonzero(row == value)
            if len(made):
                return option, int(stops[made[0]]), int(times[made[0]])
        raise LookupError(f"no stage of slot {slot} makes {value}")
