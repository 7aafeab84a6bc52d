"""The least sum of stages on no more devices than there are: suffixes by exactly how many devices they have.

At a price of a device (``solvers.reduce.device_prices``) answers of more and of fewer devices than there are may
promise more than any plan keeps. Here suffixes are told apart by their devices: of those that begin with a stage
of one size at one atom, one that takes no less than another and has no fewer devices is left out. At a price what
may stand before a suffix takes at least so much, less that price for every device that the suffix leaves: what
comes to more than the budget is not gone on with, and few are left.

A step takes no less than any of its ways, and one goes through each stage (``solvers.reduce.by_count``), not the
slowest alone. Until the slowest one is met, suffixes carry the longest way so far beside what is counted: whatever
is before them makes it longer by what it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.limits import Deadline, TooLargeError
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.solvers.reduce.device_prices import Option, PricedAnswer, PricedSums
from pipecut.solvers.reduce.form_sums import Numbers
from pipecut.solvers.reduce.programme import Cell

MOST_BITS = 10
"""What is before suffixes is looked at with devices for so few bits less as well."""
MOST = 12_000
"""So many suffixes are told apart that have as many stages, where somebody else goes on with more."""
LOOKED_AT = (2, 6, 32)
"""Suffixes are compared with so many before them, one after another."""


@dataclass(frozen=True, slots=True, eq=False)
class _Front:
    """Suffixes that no other one beats, one a column, sorted by where they begin: ``at`` numbers size and atom.

    ``devices`` is how many they have, ``value`` what is counted of them, ``way`` what the longest way through any
    of their stages takes from where they begin. ``came`` is where they come from: the number of the option, the
    run of atoms, and the column behind; where a boundary was added the column alone.
    """

    at: Numbers
    devices: Numbers
    value: Numbers
    way: Numbers
    came: Numbers

    @property
    def unbeaten(self) -> _Front:
        """Leave out what takes no less, by either, and has no fewer devices than others that begin there.

        Of those before it by what they take it is compared with a few, and then what is left with more.
        """
        bits = int(self.value.max(initial=0)).bit_length()
        short = int(self.at.max(initial=0)).bit_length() + bits < 63
        order = np.argsort((self.at << bits) + self.value) if short else np.lexsort((self.value, self.at))
        for many in LOOKED_AT:
            at, devices, way = (row[order] for row in (self.at, self.devices, self.way))
            kept = np.ones(len(at), dtype=np.bool_)
            for by in range(1, min(many, len(at) - 1) + 1):
                kept[by:] &= (at[by:] != at[:-by]) | (devices[by:] < devices[:-by]) | (way[by:] < way[:-by])
            order = order[kept]
        return self.some(order)

    @staticmethod
    def joined(rows: list[_Front]) -> _Front:
        """Return the columns of all."""
        return _Front(*(np.concatenate([getattr(row, name) for row in rows]) for name in _Front.__slots__))

    def some(self, kept: NDArray[np.bool_] | NDArray[np.intp]) -> _Front:
        """Return some of the columns."""
        return _Front(*(getattr(self, name)[kept] for name in _Front.__slots__))


@dataclass(slots=True)
class DeviceSums:
    """The programme for one question: ``sums`` are those at a price, which tell what is of use."""

    sums: PricedSums
    deadline: Deadline
    before: list[list[Numbers]]
    fronts: list[tuple[int, Numbers]]
    _rests: dict[tuple[int, int, int], _Front] = field(default_factory=dict)
    _found: list[list[_Front]] = field(default_factory=list)

    @staticmethod
    def of(sums: PricedSums, deadline: Deadline) -> DeviceSums:
        """Look at what may stand before suffixes; ``PricedSums.fill`` has found what may be behind them."""
        # What is before a suffix counts once, so fewer devices than at the price of all may be best there.
        prices = [sums.price >> bits for bits in range(0, MOST_BITS, 2)]
        return DeviceSums(sums, deadline, _before(sums), [(price, sums.front_at(price)) for price in prices])

    def least(self, most: int | None = None) -> PricedAnswer | None:
        """Return the least sum; None where no stages are within the budget.

        Raises TooLargeError for more than ``most`` suffixes with as many stages.
        Cost: slots x suffixes x runs of atoms that end where they begin, in numpy.
        """
        question, best = self.sums.question, None
        fewest = self.sums.stages.numbers[0]
        for slot in range(len(self.before)):
            made = [self._made(phase, options, slot) for phase, options in enumerate(question.phases(slot))]
            if not (many := sum(len(front.at) for front in made)):
                break
            if most is not None and many > most:
                raise TooLargeError(f"{many} suffixes with {slot + 1} stages")
            self._found.append(made)
            whole = np.flatnonzero(made[0].at % self._places == 0)
            if slot + 1 >= fewest and len(whole):
                at = int(whole[made[0].value[whole].argmin()])
                if best is None or int(made[0].value[at]) < best[0]:
                    best = int(made[0].value[at]), slot, at
        return None if best is None else self._answer(*best)

    @property
    def _places(self) -> int:
        return self.sums.stages.atoms + 1

    def _made(self, phase: int, options: tuple[Option, ...], slot: int) -> _Front:
        """Return the suffixes of a phase with a stage more."""
        rows = [self._with(number, option, slot, phase) for number, option in enumerate(options)]
        nothing = np.zeros(0, dtype=np.int64)
        rows.append(_Front(nothing, nothing, nothing, nothing, np.zeros((0, 3), dtype=np.int64)))
        made = _Front.joined(rows)
        left = self.sums.stages.line.devices - made.devices
        before = self.before[slot][phase].ravel()[made.at] - self.sums.price * left
        fits = (left >= 0) & (made.value + before <= self._most)
        return made.some(fits & (made.way + self._on(made.at, made.devices) <= self.sums.question.budget)).unbeaten

    def _on(self, at: Numbers, devices: Numbers) -> Numbers:
        """Return what is before suffixes at least, on the devices that they leave."""
        left, atom = self.sums.stages.line.devices - devices, at % self._places
        return np.maximum.reduce([least[atom] - price * left for price, least in self.fronts])

    @property
    def _most(self) -> int:
        return self.sums.question.budget - self.sums.question.more[0]

    def _with(self, number: int, option: Option, slot: int, phase: int) -> _Front:
        """Return suffixes that have a stage in a slot in such a way: all runs of use with all that may be behind.

        Whichever stage is the slowest, there is a way through this one: as through that one, or through all its
        pairs of passes. It goes on through what is before, or ends with what the stage does once a step.
        """
        self.deadline.check()
        sums, useful, many = self.sums, self.sums.useful, self.sums.question.passes
        front, times, counted = self._behind(option, slot), sums.times(slot), sums.counted(option, slot)
        run, rest = self._pairs(front, counted, option, (slot, phase))
        own, value, way = times[run], counted[run] + front.value[rest], times[run] + front.way[rest]
        begin = useful.size[run] * self._places + useful.first[run]
        devices = sums.stages.devices[useful.size[run]] + front.devices[rest]
        once, through, first = sums.ended(slot)[run] - own, many * own, useful.first[run] == 0
        if phase:
            if phase == 1 and many >= slot + 2:
                through = np.maximum(through, value + (many - slot - 2) * own)
            further, way = np.maximum(once, self._on(begin, devices)), np.maximum(way, through)
            fits = through + further <= sums.question.budget
        else:
            # From here on all of these ways take the same. They end with what the first stage does once a step. Of
            # one before the slowest that is counted already; of the slowest it is charged to its pairs, and what
            # counts less often than all of these is a part of it.
            less = slot if option.own != 1 and many >= slot + 2 else 0
            value = np.maximum(value + np.where(first, less * once // max(1, many - 1), 0), through)
            value = np.maximum(value, way + np.where(first, once, 0))
            fits, way = np.maximum(value, through + np.where(first, 0, once)) <= sums.question.budget, value
        run, rest = run[fits], rest[fits]
        came = np.stack([np.full_like(run, number), run, front.came[rest]], axis=1)
        return _Front(begin[fits], devices[fits], value[fits], way[fits], came)

    def _pairs(
        self, front: _Front, counted: Numbers, option: Option, where: tuple[int, int]
    ) -> tuple[Numbers, Numbers]:
        """Return runs of atoms of use, each as often as something may be behind it, and the columns of that."""
        sums, stages, useful, (slot, phase) = self.sums, self.sums.stages, self.sums.useful, where
        before, behind = self.before[slot][phase][useful.size, useful.first], sums.behind(option, slot)
        paid = sums.price * (stages.line.devices - stages.devices[useful.size])
        some = np.flatnonzero((counted < FORBIDDEN) & (counted + before + behind - paid <= self._most))
        ends = stages.joint_of[useful.size[some]] * self._places + useful.stop[some]
        first, last = np.searchsorted(front.at, ends), np.searchsorted(front.at, ends, side="right")
        many = last - first
        # [2, 5) and [7, 9) are 2 3 4 7 8.
        return np.repeat(some, many), np.repeat(first - np.cumsum(many) + many, many) + np.arange(int(many.sum()))

    def _behind(self, option: Option, slot: int) -> _Front:
        """Return what may be behind a stage with the boundary between, by the joint of its size and by atom."""
        key = slot, option.rest, option.crossed
        if key not in self._rests:
            joints = np.unique(self.sums.stages.joint_of[self.sums.useful.size])[:, None]
            size, atom, devices = (np.zeros(1, dtype=np.int64),) * 3
            atom, value = atom + self._places - 1, np.zeros((len(joints), 1), dtype=np.int64)
            way = value
            if slot:
                rest = self._found[slot - 1][option.rest]
                devices, (size, atom) = rest.devices, np.divmod(rest.at, self._places)
                value = rest.value + self.sums.crossed(option)[joints, size, atom]
                way = rest.way + self.sums.crossing[joints, size, atom]
            came, devices = (np.tile(row, len(joints)) for row in (np.arange(len(devices)), devices))
            front = _Front((joints * self._places + atom).ravel(), devices, value.ravel(), way.ravel(), came)
            self._rests[key] = front.some(front.value < FORBIDDEN).unbeaten
        return self._rests[key]

    def _answer(self, value: int, slot: int, at: int) -> PricedAnswer:
        """Go back through the phases from the best sum, in column ``at`` of those of its slot."""
        sums, useful, phase, x = self.sums, self.sums.useful, 0, 0
        cells, times, crossed = list[Cell](), list[int](), list[int]()
        for now in range(slot, -1, -1):
            number, run, at_behind = (int(one) for one in self._found[now][phase].came[at])
            size, first, stop = int(useful.size[run]), int(useful.first[run]), int(useful.stop[run])
            if cells:
                crossed.append(int(sums.crossing[sums.stages.joint_of[cells[-1].size], size, first]))
            cells.append(Cell(x, size, first, stop))
            times.append(int(sums.times(now)[run]))
            x += int(sums.stages.devices[size])
            phase, at = sums.question.phases(now)[phase][number].rest, at_behind
        return PricedAnswer(value, x, tuple(cells), tuple(times), tuple(crossed), sums.ends(cells[0], slot))


def _before(sums: PricedSums) -> list[list[Numbers]]:
    """Return by slot and phase ``[size, atom]``: what is counted before a suffix at the price, its boundary too.

    The suffix begins there with a stage of that size, in that slot.
    """
    stages, useful = sums.stages, sums.useful
    shape, phases = (len(stages.devices), stages.atoms + 1), len(sums.question.more)
    never = np.full(shape, FORBIDDEN, dtype=np.int64)
    first, found = never.copy(), list[list[Numbers]]()
    first[:, 0] = 0
    after: list[Numbers] = []
    paid = sums.price * stages.devices[useful.size]
    for slot in range(sums.slots - 1, -1, -1):
        here = [first.copy(), *(never.copy() for _ in range(phases - 1))]
        if after:
            for phase, options in enumerate(sums.question.phases(slot + 1)):
                for option in options:
                    values = sums.counted(option, slot + 1) + after[phase][useful.size, useful.first] + paid
                    ends = np.full((len(sums.crossing), shape[1]), FORBIDDEN, dtype=np.int64)
                    np.minimum.at(ends, (stages.joint_of[useful.size], useful.stop), values)
                    made = (ends[:, None] + sums.crossed(option)).min(axis=0)
                    here[option.rest] = np.minimum(here[option.rest], made)
        found.append(here)
        after = here
    return found[::-1]
