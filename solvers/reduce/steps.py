"""The least time of a step under 1F1B as executed: a bound from two ways through the step, by the slowest stage.

Each stage runs as many forward as backward passes on any way through a step but for waits, so what counts of it is
the time of a pair of passes, ``p``. With ``tail`` the pairs and transfers of a stage and all behind it, ``pre``
those before it, and s stages behind it, a step of M micro-batches takes at least

* ``pre + 2 tail + (M - s - 2) p`` where M >= s + 2: the first micro-batch goes down and up, the stage runs one
  pair after the other until the forward pass of the last micro-batch, and that one goes down and up;
* ``pre + M p`` in any case, which counts where M is less: the stage runs all pairs, after the first forward passes
  before it, and before the last backward passes.

A step ends when the first stage has summed its gradients, so what that stage does once a step comes behind either
way. It counts as far as its pairs do: charged to M micro-batches, less the nanosecond of each layer that this is
rounded up.

Whichever stage is the slowest: plans whose slowest stage takes more than ``lo`` and at most ``hi`` are bounded by
a programme with a choice, which stage that is; behind it everything counts twice. Intervals are halved as in
``solvers.reduce.search``. What is proposed on the way is priced as it is executed.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.reduce.line import SeatLine
from pipecut.solvers.reduce.programme import Cell, LineSums, behind_stages, fronts, grown, nothing_behind, time_of
from pipecut.solvers.reduce.stages import ReducedStages
from pipecut.solvers.reduce.sums import Numbers

FINE = 1 << 13
"""Intervals are halved until they are no longer than such a part of where they begin."""
NARROW = 32
"""Stages are settled in intervals that are no longer than such a part of where they begin."""
TRIED = 60
"""So many plans are priced at most."""
STARTS = (104, 112, 130)
"""Limits of the first plans, in hundredths of what stages take if all devices do as much."""


@dataclass(slots=True)
class ExecutedStages:
    """Stages by the time of their passes alone; first stages with what they do once a step, charged to these."""

    passes: ReducedStages
    charged: ReducedStages

    @staticmethod
    def of(passes: ReducedStages) -> ExecutedStages:
        """Price first stages too. Cost: their cells."""
        return ExecutedStages(passes, passes.charged())

    @property
    def line(self) -> SeatLine:
        """Return the seats of the cluster."""
        return self.passes.line

    @property
    def atoms(self) -> int:
        """Return the number of atoms."""
        return self.passes.atoms

    @property
    def micro_batches(self) -> int:
        """Return the number of micro-batches of a step."""
        return self.passes.word.short.training.micro_batches

    def least(self, seat: int, slot: int) -> Numbers:
        """Return ``[first atom, atom behind the last]``: the least time that counts; FORBIDDEN where none fits."""
        found, charged = self.passes.least(seat, slot).copy(), self.charged.least(seat, slot)[0]
        # Each layer of a stage is charged with less than a nanosecond too much.
        less = np.where(charged < FORBIDDEN, charged - np.array(self.passes.word.space.places), FORBIDDEN)
        found[0] = np.maximum(found[0], less)
        return found

    def settle(self, cell: Cell, slot: int, limit: int) -> bool:
        """Price a stage exactly as far as it may be below a limit; tell whether anything changed."""
        changed = self.passes.settle(cell, slot, limit)
        if cell.first:
            return changed
        return self.charged.settle(cell, slot, limit + self.passes.word.space.places[cell.stop]) or changed

    def plan(self, cells: Sequence[Cell]) -> Plan | None:
        """Return the plan of some cells, first to last; None where one has no stage that fits."""
        slots = range(len(cells) - 1, -1, -1)
        rows = (
            (self.passes if cell.first else self.charged, cell, slot)
            for cell, slot in zip(cells, slots, strict=True)
        )
        stages = [one for one in (of.stage(cell, slot) for of, cell, slot in rows) if one is not None]
        return Plan(tuple(stages)) if len(stages) == len(cells) else None


@dataclass(order=True, slots=True)
class _Open:
    bound: int
    lo: int = field(compare=False)
    hi: int = field(compare=False)
    cells: list[Cell] = field(compare=False)


@dataclass(slots=True)
class ByStep:
    """The search of one number of micro-batches.

    ``bound`` is what no plan undercuts; ``price`` what a plan takes (None: it breaks a rule); ``best`` the least
    price so far, of ``plan``; ``upper`` a value that plans have to be below to be of use.
    """

    stages: ExecutedStages
    price: Callable[[Plan], int | None]
    upper: int
    bound: int = 0
    plan: Plan | None = None
    best: int = FORBIDDEN
    asked: int = 0
    _open: list[_Open] = field(default_factory=list)
    _seen: set[tuple[Cell, ...]] = field(default_factory=set)

    @property
    def micro_batches(self) -> int:
        """Return the number of micro-batches of a step."""
        return self.stages.micro_batches

    @property
    def most(self) -> int:
        """Return the value that a plan has to be below to be of use."""
        return min(self.upper, self.best)

    def promises(self) -> list[tuple[int, list[Cell]]]:
        """Return plans whose stages take little more than all devices need, and what the formula promises."""
        even, found = self.stages.passes.even_ns(), list[tuple[int, list[Cell]]]()
        for percent in STARTS:
            self.stages.passes.deadline.check()
            limit = min(even * percent // 100, self.most // self.micro_batches)
            sums = LineSums.of(self.stages.line, self.stages.least, self.stages.atoms, limit, self.most)
            best = sums.best()
            if best is not None:
                cells = sums.plan(best[1])
                found.append((best[0] + (self.micro_batches - 1) * self._slowest(cells), cells))
        return found

    def take(self, cells: list[Cell]) -> None:
        """Price a plan that was promised."""
        self._try(cells, 0)

    def begin(self) -> None:
        """Ask about all plans whose slowest stage takes no more than is of use."""
        # Slowest stages may take no time at all.
        self._put(-1, self.most // self.micro_batches, 0)
        self.bound = self._open[0].bound if self._open else self.upper

    def step(self) -> bool:
        """Halve the interval that promises least, or settle its stages; tell whether anything is left to do."""
        if not self._open or self._open[0].bound >= self.most:
            self._open, self.bound = [], max(self.bound, self.most)
            return False
        top = heapq.heappop(self._open)
        self.bound = max(self.bound, top.bound)
        width = top.hi - top.lo
        if width <= max(0, top.lo) // NARROW + 1 and self._tightened(top.cells, top.hi):
            self._put(top.lo, top.hi, top.bound)
            return True
        if width <= max(0, top.lo) // FINE + 1:
            heapq.heappush(self._open, top)
            return False
        middle = (top.lo + top.hi) // 2
        self._put(top.lo, middle, top.bound)
        self._put(middle, top.hi, top.bound)
        return True

    def _put(self, lo: int, hi: int, bound: int) -> None:
        found = self._ask(lo, hi)
        if found is not None and found[0] < self.most:
            least, cells = found
            if hi - lo <= max(0, lo) // NARROW + 1 or self.plan is None:
                self._try(cells, self._slowest(cells))
            heapq.heappush(self._open, _Open(max(bound, least), lo, hi, cells))

    def _slowest(self, cells: list[Cell]) -> int:
        return max(self._time(cell, len(cells) - 1 - at) for at, cell in enumerate(cells))

    def _time(self, cell: Cell, slot: int) -> int:
        return time_of(self.stages.line, self.stages.least, cell, slot)

    def _tightened(self, cells: list[Cell], limit: int) -> bool:
        """Settle the stages of an answer as far as they are within a limit; tell whether anything changed."""
        rows = [(cell, len(cells) - 1 - at) for at, cell in enumerate(cells)]
        return any([self.stages.settle(cell, slot, limit + 1) for cell, slot in rows])

    def _try(self, cells: list[Cell], slowest: int) -> None:
        """Price the plan of an answer, if it is a new one."""
        key = tuple(cells)
        if key in self._seen or len(self._seen) >= TRIED or slowest * self.micro_batches >= self.most:
            return
        self._seen.add(key)
        plan = self.stages.plan(cells)
        value = None if plan is None else self.price(plan)
        if value is not None and value < self.most:
            self.plan, self.best = plan, value

    def _ask(self, lo: int, hi: int) -> tuple[int, list[Cell]] | None:
        """Return the least bound of plans whose slowest stage takes more than lo, at most hi, and such a plan."""
        self.asked += 1
        self.stages.passes.deadline.check()
        return SlowestFirst(self.stages, lo, hi, self.most - 1).run()


@dataclass(slots=True)
class SlowestFirst:
    """Suffixes of plans in phases: those that end before the slowest stage, and those that have it.

    ``twice[s][x, size, atom]`` are sums of s + 1 stages and what is between them, all counted twice, ``plain[s]``
    the same counted once; ``chosen[s]`` bounds of suffixes of which one stage was said to be the slowest.
    """

    stages: ExecutedStages
    lo: int
    hi: int
    budget: int
    twice: list[Numbers] = field(default_factory=list)
    plain: list[Numbers] = field(default_factory=list)
    chosen: list[Numbers] = field(default_factory=list)

    def run(self) -> tuple[int, list[Cell]] | None:
        """Return the least bound within the budget, and the stages of a plan that has it; None for none."""
        line, atoms = self.stages.line, self.stages.atoms
        most = min(atoms, line.devices // min(line.sizes))
        front = fronts(line, self.stages.least, atoms, self.hi)[:, None]
        # Whichever stage will be the slowest, it counts so often beside what is counted of it twice.
        more = max(0, self._many - most - 1) * (self.lo + 1)
        for slot in range(most):
            chosen = np.minimum.reduce([self._made(step, slot) for step in self._choices(slot)])
            twice, plain = self._made(_Step.TWICE, slot), self._made(_Step.PLAIN, slot)
            chosen[chosen + front > self.budget] = FORBIDDEN
            twice[twice + front + more > self.budget] = FORBIDDEN
            plain[plain + front > self.budget] = FORBIDDEN
            if all((made >= FORBIDDEN).all() for made in (chosen, twice, plain)):
                break
            self.twice.append(twice)
            self.plain.append(plain)
            self.chosen.append(chosen)
        values = [int(row[0, :, 0].min()) for row in self.chosen]
        least = min(values, default=FORBIDDEN)
        return None if least >= FORBIDDEN else (least, self._plan(values.index(least)))

    @property
    def _many(self) -> int:
        return self.stages.micro_batches

    def _choices(self, slot: int) -> tuple[_Step, ...]:
        """Return what a stage in a slot may be in a suffix that has the slowest stage: that one, or before it."""
        slowest = _Step.ALONE if self._many < slot + 2 else _Step.SLOWEST
        return (slowest, _Step.BEFORE) if slot else (slowest,)

    def _made(self, step: _Step, slot: int) -> Numbers:
        """Return the suffixes with a stage more; plain ones where some stage may count alone."""
        line = self.stages.line
        if step is _Step.PLAIN and self._many > min(self.stages.atoms, line.devices // min(line.sizes)):
            shape = line.devices + 1, len(line.sizes), self.stages.atoms + 1
            return np.full(shape, FORBIDDEN, dtype=np.int64)
        return grown(line, partial(self._times, step, slot), self._behind(step, slot))

    def _times(self, step: _Step, slot: int, seat: int) -> Numbers:
        """Return what a stage counts."""
        found = self.stages.least(seat, slot)
        found = np.where(found > self.hi, FORBIDDEN, found)
        longer = np.maximum(found, self.lo + 1)
        if step is _Step.SLOWEST:
            counted = 2 * longer + (self._many - slot - 2) * longer
        elif step is _Step.ALONE:
            counted = self._many * longer
        else:
            counted = 2 * found if step is _Step.TWICE else found
        return np.where(found >= FORBIDDEN, FORBIDDEN, np.minimum(counted, FORBIDDEN))

    def _rest(self, step: _Step) -> tuple[list[Numbers], int]:
        """Return the suffixes behind a stage, and how often the boundary between counts."""
        if step is _Step.BEFORE:
            return self.chosen, 1
        return (self.plain, 1) if step in (_Step.ALONE, _Step.PLAIN) else (self.twice, 2)

    def _behind(self, step: _Step, slot: int) -> list[Numbers]:
        """Return ``[x, atom]`` by size: what counts of everything behind a stage."""
        line, (rest, times) = self.stages.line, self._rest(step)
        if slot == 0:
            return nothing_behind(line, self.stages.atoms)
        found = [behind_stages(line, rest[slot - 1], size, times=times) for size in range(len(line.sizes))]
        return [np.where(row < FORBIDDEN, 0, FORBIDDEN) for row in found] if step is _Step.ALONE else found

    def _plan(self, slot: int) -> list[Cell]:
        """Go back through the phases from the best bound."""
        line, cells = self.stages.line, list[Cell]()
        x, atom, size, phase = 0, 0, int(self.chosen[slot][0, :, 0].argmin()), self.chosen
        for at in range(slot, -1, -1):
            value, seat = int(phase[at][x, size, atom]), int(line.seat[x, size])
            steps = self._choices(at)
            if phase is not self.chosen:
                steps = (_Step.TWICE,) if phase is self.twice else (_Step.PLAIN,)
            x += line.sizes[size]
            step, stop = self._came(value, (at, seat, atom), (x, size), steps)
            cells.append(Cell(x - line.sizes[size], size, atom, stop))
            atom, (phase, times) = stop, self._rest(step)
            if at:
                crossed = times * line.crossing[line.joint[x, size], stop]
                size = int((phase[at - 1][x, :, stop] + crossed).argmin())
        return cells

    def _came(
        self, value: int, cell: tuple[int, int, int], ends: tuple[int, int], steps: tuple[_Step, ...]
    ) -> tuple[_Step, int]:
        """Return in which way a stage made this value, and the atom behind it.

        ``cell`` is its slot, seat and first atom, ``ends`` the place where its devices end, and its size.
        """
        (at, seat, atom), (x, size) = cell, ends
        for step in steps:
            row = self._times(step, at, seat)[atom] + self._behind(step, at)[size][x]
            found = np.flatnonzero(np.minimum(row, FORBIDDEN) == value)
            if len(found):
                return step, int(found[0])
        raise LookupError(f"no stage of slot {at} makes {value}")


class _Step(enum.Enum):
    """What a stage is: the slowest, with what is behind it or ``ALONE``; before it; behind it in either case."""

    SLOWEST = enum.auto()
    ALONE = enum.auto()
    BEFORE = enum.auto()
    TWICE = enum.auto()
    PLAIN = enum.auto()
