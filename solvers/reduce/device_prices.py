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
from pipecut.solvers.reduce.counted import CountedStages
from pipecut.solvers.reduce.form_sums import Numbers
from pipecut.solvers.reduce.programme import Cell, sums_before


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
    passes: int = 0


@dataclass(frozen=True, slots=True)
class PricedAnswer:
    """The least sum at a price, how many devices its stages have, and these.

    ``times`` are what they take, ``crossed`` what boundaries behind them do, and ``once`` is what the first one
    does once a step.
    """

    value: int
    devices: int
    cells: tuple[Cell, ...]
    times: tuple[int, ...]
    crossed: tuple[int, ...]
    once: int

    @property
    def total(self) -> int:
        """Return what stages and boundaries take one after another, with what the first one does once a step."""
        return sum(self.times) + sum(self.crossed) + self.once


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


@dataclass(slots=True)
class PricedSums:
    """The programme for one question, at one price of a device."""

    stages: CountedStages
    question: PricedQuestion
    price: int
    front: Numbers
    crossing: Numbers
    useful: _Useful
    _ends: Numbers
    _found: list[Numbers] = field(default_factory=list)
    _taken: dict[int, Numbers] = field(default_factory=dict)
    _ended: dict[int, Numbers] = field(default_factory=dict)
    _crossings: dict[int, Numbers] = field(default_factory=dict)
    _counted: dict[tuple[int, int], Numbers] = field(default_factory=dict)
    _best: tuple[int, int] = (FORBIDDEN, 0)

    @staticmethod
    def of(stages: CountedStages, question: PricedQuestion, price: int) -> PricedSums:
        """Leave out what is in no plan within the budget. Cost: sizes x atoms squared, in numpy."""
        crossing = stages.crossing
        if question.bounded:
            crossing = np.where(crossing > question.hi, FORBIDDEN, crossing)
        cells = _priced(stages, question.hi, price)
        least, crossed = cells.min(axis=0), crossing.min(axis=(0, 1))
        front = sums_before(least, crossed)
        # From the other end: what is behind an atom, with the boundary there.
        behind = sums_before(least[::-1, ::-1].T, crossed[::-1])[::-1]
        most = min(question.budget - question.beside + price * stages.line.devices, FORBIDDEN - 1)
        useful = front[:, None] + cells + behind <= most
        runs = _Useful.of(useful)
        ends = stages.joint_of[runs.size] * (stages.atoms + 1) + runs.stop
        return PricedSums(stages, question, price, front, crossing, runs, ends)

    def front_at(self, price: int) -> Numbers:
        """Return by atom what all stages before it take at least at a price, with the boundary there."""
        least = _priced(self.stages, self.question.hi, price).min(axis=0)
        return sums_before(least, self.crossing.min(axis=(0, 1)))

    def least(self) -> PricedAnswer | None:
        """Return the least sum; None where no stages are within the budget.

        Cost: slots x runs of atoms of use x options, in numpy.
        """
        return self._answer() if self.fill() else None

    def fill(self) -> bool:
        """Make all suffixes; tell whether some are within the budget."""
        question = self.question
        most = min(question.budget + self.price * self.stages.line.devices, FORBIDDEN - 1)
        fewest, most_stages = self.stages.numbers
        before = self.front + np.array(question.more)[:, None, None]
        for slot in range(most_stages):
            made = self._made(question.phases(slot))
            made[made + before > most] = FORBIDDEN
            if made.min() >= FORBIDDEN:
                break
            self._found.append(made)
            if slot + 1 >= fewest:
                self._best = min(self._best, (int(made[0, :, 0].min()), slot))
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

        First stages that are not the slowest count with all that they do once a step.
        """
        times = self.times(slot)
        if option.halves:
            longer = np.maximum(times, self.question.lo + 1)
            return np.where(times < FORBIDDEN, option.own * times + option.halves * longer // 2, FORBIDDEN)
        if (key := (option.own, self.stages.like(slot))) not in self._counted:
            own = self._whole(slot) if option.own == 1 else self.times(slot)
            self._counted[key] = np.where(self.times(slot) < FORBIDDEN, option.own * own, FORBIDDEN)
        return self._counted[key]

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

    def _made(self, phases: tuple[tuple[Option, ...], ...]) -> Numbers:
        """Return ``[phase, size, atom]``: the least suffixes with a stage more."""
        useful, slot = self.useful, len(self._found)
        made = np.full((len(phases), len(self.stages.devices), self.stages.atoms + 1), FORBIDDEN, dtype=np.int64)
        sizes, firsts = useful.size[useful.row], useful.first[useful.row]
        every = [(phase, option) for phase, options in enumerate(phases) for option in options]
        ways = {(option.rest, option.crossed): option for _, option in every}
        behind = {way: self.behind(option, slot) for way, option in ways.items()}
        rows = [self.counted(option, slot) + behind[option.rest, option.crossed] for _, option in every]
        sums = np.minimum.reduceat(np.array(rows), useful.row, axis=1)
        for (phase, _), row in zip(every, sums + self.price * self.stages.devices[sizes], strict=True):
            made[phase, sizes, firsts] = np.minimum(made[phase, sizes, firsts], row)
        return made

    def behind(self, option: Option, slot: int) -> Numbers:
        """Return by run what is behind a stage in a slot, with the boundary."""
        if not slot:
            return np.where(self.useful.stop == self.stages.atoms, 0, FORBIDDEN)
        sums = (self._found[slot - 1][option.rest] + self.crossed(option)).min(axis=1)
        return np.minimum(sums, FORBIDDEN).take(self._ends)

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
        phase, atom, x, size = 0, 0, 0, int(best.argmin())
        cells, times, crossed = list[Cell](), list[int](), list[int]()
        for at in range(slot, -1, -1):
            option, stop, time = self._came((phase, at), size, atom)
            cells.append(Cell(x, size, atom, stop))
            x += int(self.stages.devices[size])
            times.append(time)
            atom, phase = stop, option.rest
            if at:
                joint = int(self.stages.joint_of[size])
                after = self._found[at - 1][phase][:, atom] + self.crossed(option)[joint, :, atom]
                size = int(after.argmin())
                crossed.append(int(self.crossing[joint, size, atom]))
        value = self._best[0] - self.price * self.stages.line.devices
        return PricedAnswer(value, x, tuple(cells), tuple(times), tuple(crossed), self.ends(cells[0], slot))

    def _came(self, where: tuple[int, int], size: int, atom: int) -> tuple[Option, int, int]:
        """Return the option by which a stage came to its sum, the atom behind it, and what it takes.

        ``where`` is its phase and slot.
        """
        phase, slot = where
        value = int(self._found[slot][phase][size, atom]) - self.price * int(self.stages.devices[size])
        runs = np.flatnonzero((self.useful.size == size) & (self.useful.first == atom))
        stops, times = self.useful.stop[runs], self.times(slot)[runs]
        for option in self.question.phases(slot)[phase]:
            row = (self.counted(option, slot) + self.behind(option, slot))[runs]
            made = np.flatnonzero(row == value)
            if len(made):
                return option, int(stops[made[0]]), int(times[made[0]])
        raise LookupError(f"no stage of slot {slot} makes {value}")


def _priced(stages: CountedStages, hi: int, price: int) -> Numbers:
    """Return ``[size, first, stop]``: what stages take at least, with their devices paid."""
    least = stages.least(0)
    return np.where(least > hi, FORBIDDEN, least + price * stages.devices[:, None, None])
