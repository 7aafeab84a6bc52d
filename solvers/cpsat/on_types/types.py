"""Types of stages: all that a model has to tell apart of the stages of a reduced model, with their least times.

Stages are of one *type* where they have as many devices, stand in places of the line in which these take as long,
hold as many atoms of each class, begin at places that the same tensors cross, and take as long. A transformer of
eighty blocks on alike servers has some dozens of types for each stage of a plan, in place of thousands of stages.
Times are those of ``ReducedStages``: lower bounds until a stage is settled, and then exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.solvers.reduce.form_sums import Numbers
from pipecut.solvers.reduce.programme import Cell
from pipecut.solvers.reduce.reduced_stages import ReducedStages
from pipecut.solvers.reduce.seats import SeatLine

MOST_TYPES = 60_000
"""So many types of all stages of a plan are posted at most."""


@dataclass(frozen=True, slots=True)
class StageType:
    """Stages that count alike. ``size`` numbers their size among those of the line, ``devices`` is that size.

    ``rests`` are the places of the line where they may begin, as remainders of its period, ``starts`` the first
    atoms that they may have, of ``atoms``. ``front`` is the class of the place in front of them, by what crosses
    it, ``holds`` how many atoms of each class they have, ``time`` what they take at least, in ns, and ``whole``
    the same with its part of what an executed step does once (by the formula that is in ``time``).
    """

    size: int
    devices: int
    rests: frozenset[int]
    starts: tuple[int, ...]
    atoms: int
    front: int
    holds: tuple[int, ...]
    time: int
    whole: int

    def has(self, cell: Cell, rest: int) -> bool:
        """Tell whether a stage, whose place has that remainder, is one of these."""
        begins = cell.size == self.size and rest in self.rests and cell.first in self.starts
        return begins and cell.stop - cell.first == self.atoms


FIRST, LAST = 1, 2
"""The ends of a model, as bits: a run has the first atom, or the last one."""


@dataclass(frozen=True, slots=True, eq=False)
class AtomRuns:
    """All runs of atoms: ``first``, ``stop``, and the number of the class ``of`` each, in the order of classes.

    A class is the class of the place in front, which ends of the model a run has, and how many atoms it holds of
    each class. ``begins`` are the numbers of the first run of each.
    """

    first: Numbers
    stop: Numbers
    of: Numbers
    begins: Numbers
    classes: list[tuple[int, ...]]

    @staticmethod
    def of_model(held: Numbers, fronts: Numbers) -> AtomRuns:
        """Return the runs of a model, given what lies before each place, and the classes of places."""
        atoms = len(held) - 1
        first, stop = np.triu_indices(atoms + 1, 1)
        ends = FIRST * (first == 0) + LAST * (stop == atoms)
        rows = np.column_stack([fronts[first], ends, held[stop] - held[first]])
        classes, of = np.unique(rows, axis=0, return_inverse=True)
        order = np.argsort(of.reshape(-1), kind="stable")
        of = of.reshape(-1)[order]
        begins = np.searchsorted(of, np.arange(len(classes)))
        return AtomRuns(first[order], stop[order], of, begins, [tuple(row) for row in classes.tolist()])

    def least(self, times: Numbers) -> Numbers:
        """Return the least of some numbers, by first atom and atom behind the last, of each class."""
        return np.minimum.reduceat(times[self.first, self.stop], self.begins)


@dataclass(frozen=True)
class TypeSpace:
    """The types of the stages of one number of micro-batches, and what is demanded of their atoms.

    ``asked`` is the instance with all that it demands; the stages may be those of one that demands less.
    """

    stages: ReducedStages
    asked: Instance

    @property
    def line(self) -> SeatLine:
        """Return the line that stages stand on."""
        return self.stages.line

    @cached_property
    def period(self) -> int:
        """Return after how many devices the line is the same again, but for its end."""
        rows = self.line.seat, self.joints
        periods = (by for by in range(1, self.line.devices) if all(_repeats(row, by) for row in rows))
        return next(periods, self.line.devices)

    @cached_property
    def joints(self) -> Numbers:
        """Return ``[x, s, t]``: the row of ``crossed`` between stages of two sizes that meet at a place.

        -1 where no two such stages meet.
        """
        line, found = self.line, np.full_like(self.line.joint, -1)
        for size, devices in enumerate(line.sizes):
            ends = np.zeros(len(line.seat), dtype=bool)
            ends[devices:] = line.seat[:-devices, size] >= 0
            meet = ends[:, None] & (line.seat >= 0)
            found[:, size] = np.where(meet, line.joint[:, size] % len(line.crossing), -1)
        return found

    @cached_property
    def fronts(self) -> Numbers:
        """Return the class of every place to cut: those of one are crossed in the same time on all links."""
        return np.unique(self.line.crossing, axis=1, return_inverse=True)[1].reshape(-1)

    @cached_property
    def held(self) -> Numbers:
        """Return ``[place, class]``: how many atoms of each class lie before a place.

        Atoms that take as long by themselves in the last stage of a plan, on all seats, are of one class.
        """
        atoms = np.arange(self.stages.atoms)
        alone = np.stack([self.stages.least(seat, 0)[atoms, atoms + 1] for seat in range(len(self.line.groups))])
        of = np.unique(alone, axis=1, return_inverse=True)[1].reshape(-1)
        one = (of[:, None] == np.arange(int(of.max()) + 1)).astype(np.int64)
        return np.concatenate([np.zeros((1, one.shape[1]), dtype=np.int64), np.cumsum(one, axis=0)])

    def stands(self, cell: Cell) -> bool:
        """Tell whether the line has a seat for a stage."""
        return cell.x < self.line.devices and bool(self.line.seat[cell.x, cell.size] >= 0)

    def crossed(self, front: int) -> Numbers:
        """Return by link what the tensors take that cross places of a class; the last row is for no link."""
        return self.line.crossing[:, int(np.argmax(self.fronts == front))]

    @cached_property
    def runs(self) -> AtomRuns:
        """Return all runs of atoms, by class."""
        return AtomRuns.of_model(self.held, self.fronts)

    def of_slot(self, slot: int, stages: int, most_ns: int) -> list[StageType]:
        """Return the types of a slot, counted from the last stage, of plans with so many stages.

        Those alone that take no more than ``most_ns``. Raises TooLargeError where there are too many.
        """
        found, runs, allowed = list[StageType](), self.runs, self.allowed(slot, stages)
        for size, least, whole, rests in self._seats(slot):
            times = np.where(allowed, least, most_ns + 1)[runs.first, runs.stop]
            some = np.flatnonzero(times <= most_ns)
            rows = np.stack([runs.of[some], times[some], whole[runs.first, runs.stop][some]])
            keys, which = np.unique(rows, axis=1, return_inverse=True)
            order = np.argsort(which.reshape(-1), kind="stable")
            groups = np.split(runs.first[some][order], np.cumsum(np.bincount(which.reshape(-1)))[:-1])
            for (of, *taken), starts in zip(keys.T.tolist(), groups if len(some) else (), strict=True):
                front, _, *holds = runs.classes[of]
                devices, atoms = self.line.sizes[size], sum(holds)
                where = size, devices, rests, tuple(starts.tolist())
                found.append(StageType(*where, atoms, front, tuple(holds), *taken))
            if len(found) > MOST_TYPES // stages:
                raise TooLargeError(
                    f"stages are of more than {MOST_TYPES} types in plans of {stages} stages; ask reduced_dp"
                )
        return found

    def _seats(self, slot: int) -> list[tuple[int, Numbers, Numbers, frozenset[int]]]:
        """Return sizes with least times, whole ones, and the remainders of places that have these."""
        found: dict[tuple[int, bytes, bytes], tuple[Numbers, Numbers, set[int]]] = {}
        for size in range(len(self.line.sizes)):
            column = self.line.seat[:, size]
            for seat in np.unique(column[column >= 0]).tolist():
                least, whole = self.stages.least(seat, slot), self.whole(seat, slot)
                key = size, least.tobytes(), whole.tobytes()
                rests = found.setdefault(key, (least, whole, set()))[2]
                rests.update((np.flatnonzero(column == seat) % self.period).tolist())
        return [(size, least, whole, frozenset(rests)) for (size, *_), (least, whole, rests) in found.items()]

    @cached_property
    def charged(self) -> ReducedStages | None:
        """Return the stages with what is done once a step charged to its micro-batches; None where all are so."""
        return self.stages.charged() if self.stages.each else None

    def whole(self, seat: int, slot: int) -> Numbers:
        """Return ``[first atom, atom behind the last]``: least times with a part of what is done once a step.

        What is charged is rounded up for each layer by less than a nanosecond, which does not count.
        """
        least = self.stages.least(seat, slot)
        if self.charged is None:
            return least
        places = np.array(self.stages.word.space.places)
        layers = np.maximum(places[None, :] - places[:, None], 0)
        found = self.charged.least(seat, slot)
        return np.where((least < FORBIDDEN) & (found < FORBIDDEN), np.maximum(least, found - layers), least)

    def is_exact(self, slot: int, one: StageType) -> bool:
        """Tell whether a type takes as long as its stages do; else it takes no more until these are settled.

        Without limits on memory times are sums of layers, exact on every seat that is priced itself.
        """
        column = self.line.seat[:, one.size]
        places = np.flatnonzero(column >= 0)
        seats = {int(column[x]) for x in places.tolist() if x % self.period in one.rests}
        if not seats <= self.stages.firsts:
            return False
        if not self.asked.constraints.memory:
            return True
        ends = [(first, first + one.atoms) for first in one.starts]
        return all(self.stages.final(seat, slot)[at] for seat in seats for at in ends)

    def allowed(self, slot: int, stages: int) -> NDArray[np.bool_]:
        """Tell by first atom and atom behind the last where a stage of a slot may lie."""
        atoms, at = self.stages.atoms, np.arange(self.stages.atoms + 1)
        first, stop = at[:, None], at[None, :]
        found = (first < stop) & (first >= stages - 1 - slot) & (atoms - stop >= slot)
        found &= (first == 0) if slot == stages - 1 else (first > 0)
        found &= (stop == atoms) if slot == 0 else (stop < atoms)
        for sets in self.asked.demands.apart:
            found &= sum((self._counts(one) > 0).astype(np.int64) for one in sets) <= 1
        for pin in self.asked.demands.pins:
            own = pin.stage in (stages - 1 - slot, -1 - slot)
            count = self._counts(pin.layers)
            found &= count == (len(set(pin.layers)) if own else 0)
        return found

    def _counts(self, layers: Iterable[int]) -> Numbers:
        """Return by first atom and atom behind the last how many of some layers a stage has."""
        places = np.array(self.stages.word.space.places)
        before = np.searchsorted(np.sort(list(set(layers))), places)
        return before[None, :] - before[:, None]


def _repeats(rows: Numbers, by: int) -> bool:
    """Tell whether rows are the same so many places on, wherever both stand for something."""
    one, other = rows[:-by], rows[by:]
    return bool(((one == other) | (one < 0) | (other < 0)).all())
