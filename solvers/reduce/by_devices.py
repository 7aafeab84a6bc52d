"""The least sum of stages on no more devices than there are: suffixes by exactly how many devices they have.

At a price of a device (``solvers.reduce.priced``) answers of more and of fewer devices than there are may promise
more than any plan keeps. Here suffixes are told apart by their devices: of those that begin with a stage of one
size at one atom, one that takes no less than another and has no fewer devices is left out. At a price what may
stand before a suffix takes at least so much, less that price for every device that the suffix leaves: what comes
to more than the budget is not gone on with, and few are left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.limits import Deadline
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.solvers.reduce.priced import Option, PricedAnswer, PricedSums
from pipecut.solvers.reduce.programme import Cell
from pipecut.solvers.reduce.sums import Numbers


@dataclass(frozen=True, slots=True, eq=False)
class _Front:
    """Suffixes that no other one beats, one a column, sorted by where they begin: ``at`` numbers size and atom.

    ``devices`` is how many they have, ``value`` what is counted of them. ``came`` is where they come from: the
    number of the option, the run of atoms, and the column behind; where a boundary was added the column alone.
    """

    at: Numbers
    devices: Numbers
    value: Numbers
    came: Numbers

    @staticmethod
    def of(at: Numbers, devices: Numbers, value: Numbers, came: Numbers) -> _Front:
        """Leave out what takes no less and has no fewer devices than another one that begins there."""
        # By beginning, then by value; of one number each where they have the bits.
        bits = int(value.max(initial=0)).bit_length()
        short = int(at.max(initial=0)).bit_length() + bits < 63
        order = np.argsort((at << bits) + value) if short else np.lexsort((value, at))
        at, devices, value = at[order], devices[order], value[order]
        # Those of one beginning are below all of the ones before: [3, 1 | 5, 2] is [3, 1 | -5, -8] with 10 each.
        fewest = devices - at * (int(devices.max(initial=0)) + 2)
        kept = np.ones(len(at), dtype=np.bool_)
        kept[1:] = fewest[1:] < np.minimum.accumulate(fewest)[:-1]
        return _Front(at[kept], devices[kept], value[kept], came[order[kept]])

    @staticmethod
    def joined(rows: list[_Front]) -> _Front:
        """Return the columns of all."""
        return _Front(*(np.concatenate([getattr(row, name) for row in rows]) for name in _Front.__slots__))

    def some(self, kept: NDArray[np.bool_]) -> _Front:
        """Return some of the columns."""
        return _Front(self.at[kept], self.devices[kept], self.value[kept], self.came[kept])


@dataclass(slots=True)
class DeviceSums:
    """The programme for one question: ``sums`` are those at a price, which tell what is of use."""

    sums: PricedSums
    deadline: Deadline
    before: list[list[Numbers]]
    _rests: dict[tuple[int, int, int], _Front] = field(default_factory=dict)
    _found: list[list[_Front]] = field(default_factory=list)

    @staticmethod
    def of(sums: PricedSums, deadline: Deadline) -> DeviceSums:
        """Look at what may stand before suffixes; ``PricedSums.fill`` has found what may be behind them."""
        return DeviceSums(sums, deadline, _before(sums))

    def least(self) -> PricedAnswer | None:
        """Return the least sum; None where no stages are within the budget.

        Cost: slots x suffixes x runs of atoms that end where they begin, in numpy.
        """
        question, best = self.sums.question, None
        fewest = question.numbers[0]
        for slot in range(len(self.before)):
            self.deadline.check()
            made = [self._made(phase, options, slot) for phase, options in enumerate(question.phases(slot))]
            if not any(len(front.at) for front in made):
                break
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
        rows.append(_Front(nothing, nothing, nothing, np.zeros((0, 3), dtype=np.int64)))
        made = _Front.joined(rows)
        left = self.sums.stages.line.devices - made.devices
        before = self.before[slot][phase].ravel()[made.at] - self.sums.price * left
        kept = made.some((left >= 0) & (made.value + before <= self._most))
        return _Front.of(kept.at, kept.devices, kept.value, kept.came)

    @property
    def _most(self) -> int:
        return self.sums.question.budget - self.sums.question.more[0]

    def _with(self, number: int, option: Option, slot: int, phase: int) -> _Front:
        """Return suffixes that have a stage in a slot in such a way.

        Whichever stage is the slowest, there is a way through this one: as through that one, or through all its
        pairs of passes. It goes on through what is before, or ends with what the stage does once a step.
        """
        made = self._joined(number, option, slot, phase)
        run, many = made.came[:, 1], self.sums.question.passes
        own, way = self.sums.times(slot)[run], made.value
        once = self.sums.ended(slot)[run] - own
        if option.own == 1:
            # What a first stage does once a step is counted already.
            once = np.where(self.sums.useful.first[run] == 0, 0, once)
        if phase:
            left = self.sums.stages.line.devices - made.devices
            once = np.maximum(once, self.sums.front[made.at % self._places] - self.sums.price * left)
            twice = way + (many - slot - 2) * own
            way = many * own if phase > 1 or many < slot + 2 else np.maximum(twice, many * own)
        return made.some(way + once <= self.sums.question.budget)

    def _joined(self, number: int, option: Option, slot: int, phase: int) -> _Front:
        """Return all runs of atoms of use with all that may be behind each."""
        sums, stages, useful = self.sums, self.sums.stages, self.sums.useful
        front, size, counted = self._behind(option, slot), useful.size, sums.counted(option, slot)
        before, behind = self.before[slot][phase][size, useful.first], sums.behind(option, slot)[size, useful.stop]
        paid = sums.price * (stages.line.devices - stages.devices[size])
        some = np.flatnonzero((counted < FORBIDDEN) & (counted + before + behind - paid <= self._most))
        ends = stages.joint_of[size[some]] * self._places + useful.stop[some]
        first, last = np.searchsorted(front.at, ends), np.searchsorted(front.at, ends, side="right")
        many = last - first
        # [2, 5) and [7, 9) are 2 3 4 7 8.
        rest = np.repeat(first - np.cumsum(many) + many, many) + np.arange(int(many.sum()))
        run = np.repeat(some, many)
        value = counted[run] + front.value[rest]
        if not phase:
            # A stage runs all pairs of passes, whatever is behind it.
            value = np.maximum(value, sums.question.passes * sums.times(slot)[run])
        at = size[run] * self._places + useful.first[run]
        came = np.stack([np.full_like(run, number), run, front.came[rest]], axis=1)
        return _Front(at, stages.devices[size[run]] + front.devices[rest], value, came)

    def _behind(self, option: Option, slot: int) -> _Front:
        """Return what may be behind a stage with the boundary between, by the joint of its size and by atom."""
        key = slot, option.rest, option.crossed
        if key not in self._rests:
            joints = np.unique(self.sums.stages.joint_of[self.sums.useful.size])[:, None]
            size, atom, devices, value = (np.zeros(1, dtype=np.int64),) * 4
            if slot:
                rest = self._found[slot - 1][option.rest]
                devices, value, (size, atom) = rest.devices, rest.value, np.divmod(rest.at, self._places)
                value = value + self.sums.crossed(option)[joints, size, atom]
            else:
                atom, value = atom + self._places - 1, np.zeros((len(joints), 1), dtype=np.int64)
            fits, came = value.ravel() < FORBIDDEN, np.tile(np.arange(len(devices)), len(joints))
            at, devices = (joints * self._places + atom).ravel(), np.tile(devices, len(joints))
            self._rests[key] = _Front.of(at[fits], devices[fits], value.ravel()[fits], came[fits])
        return self._rests[key]

    def _answer(self, value: int, slot: int, at: int) -> PricedAnswer:
        """Go back through the phases from the best sum, in column ``at`` of those of its slot."""
        sums, useful, cells, phase, x, slowest, total = self.sums, self.sums.useful, list[Cell](), 0, 0, 0, 0
        for now in range(slot, -1, -1):
            number, run, at_behind = (int(one) for one in self._found[now][phase].came[at])
            size, first, stop = int(useful.size[run]), int(useful.first[run]), int(useful.stop[run])
            time, crossed = int(sums.times(now)[run]), 0
            if cells:
                crossed = int(sums.crossing[sums.stages.joint_of[cells[-1].size], size, first])
            cells.append(Cell(x, size, first, stop))
            x, total = x + int(sums.stages.devices[size]), total + time + crossed
            slowest = max(slowest, time, crossed if sums.question.bounded else 0)
            phase, at = sums.question.phases(now)[phase][number].rest, at_behind
        return PricedAnswer(value, x, tuple(cells), slowest, total + sums.ends(cells[0], slot))


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
