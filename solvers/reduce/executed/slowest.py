"""The least time of a step under 1F1B as executed: a bound from two ways through the step, by the slowest stage.

Each stage runs as many forward as backward passes on any way through a step but for waits, so what counts of it is
the time of a pair of passes, ``p``. With ``tail`` the pairs and transfers of a stage and all behind it, ``pre``
those before it, and s stages behind it, a step of M micro-batches takes at least

* ``pre + 2 tail + (M - s - 2) p`` where M >= s + 2: the first micro-batch goes down and up, the stage runs one
  pair after the other until the forward pass of the last micro-batch, and that one goes down and up;
* ``pre + M p`` in any case, which counts where M is less: the stage runs all pairs, after the first forward passes
  before it, and before the last backward passes.

Whichever stage is the slowest: plans whose slowest stage takes more than ``lo`` and at most ``hi`` are bounded by
a programme with a choice, which stage that is; behind it everything counts twice.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.solvers.reduce.programme import behind_stages, fronts, grown, nothing_behind
from pipecut.solvers.reduce.stages import ReducedStages
from pipecut.solvers.reduce.sums import Numbers


@dataclass(slots=True)
class SlowestFirst:
    """Suffixes of plans in phases: those that end before the slowest stage, and those that have it.

    ``twice[s][x, size, atom]`` are sums of s + 1 stages and what is between them, all counted twice, ``plain[s]``
    the same counted once; ``chosen[s]`` bounds of suffixes of which one stage was said to be the slowest.
    """

    stages: ReducedStages
    lo: int
    hi: int
    budget: int
    twice: list[Numbers] = field(default_factory=list)
    plain: list[Numbers] = field(default_factory=list)
    chosen: list[Numbers] = field(default_factory=list)

    def run(self) -> int | None:
        """Return the least bound within the budget; None where no plan is."""
        fewest, most = self.stages.numbers
        front = fronts(self.stages.line, self.stages.least, self.stages.atoms, self.hi)[:, None]
        # Whichever stage will be the slowest, it counts so often beside what is counted of it twice.
        more = max(0, self.stages.micro_batches - most - 1) * (self.lo + 1)
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
        least = min((int(row[0, :, 0].min()) for row in self.chosen[fewest - 1 :]), default=FORBIDDEN)
        return None if least >= FORBIDDEN else least

    def _choices(self, slot: int) -> tuple[_Step, ...]:
        """Return what a stage in a slot may be in a suffix that has the slowest stage: that one, or before it."""
        slowest = _Step.ALONE if self.stages.micro_batches < slot + 2 else _Step.SLOWEST
        return (slowest, _Step.BEFORE) if slot else (slowest,)

    def _made(self, step: _Step, slot: int) -> Numbers:
        """Return the suffixes with a stage more; plain ones where some stage may count alone."""
        line = self.stages.line
        if step is _Step.PLAIN and self.stages.micro_batches > self.stages.numbers[1]:
            shape = line.devices + 1, len(line.sizes), self.stages.atoms + 1
            return np.full(shape, FORBIDDEN, dtype=np.int64)
        return grown(line, partial(self._times, step, slot), self._behind(step, slot))

    def _times(self, step: _Step, slot: int, seat: int) -> Numbers:
        """Return what a stage counts: so often what it takes, as the slowest no less than these do."""
        found = self.stages.least(seat, slot)
        many = self.stages.micro_batches
        often = {_Step.SLOWEST: many - slot, _Step.ALONE: many, _Step.TWICE: 2}
        slowest = step in (_Step.SLOWEST, _Step.ALONE)
        counted = often.get(step, 1) * (np.maximum(found, self.lo + 1) if slowest else found)
        counted[found > self.hi] = FORBIDDEN
        return counted

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
        found = behind_stages(line, rest[slot - 1], times=times)
        return [np.where(row < FORBIDDEN, 0, FORBIDDEN) for row in found] if step is _Step.ALONE else found


class _Step(enum.Enum):
    """What a stage is: the slowest, with what is behind it or ``ALONE``; before it; behind it in either case."""

    SLOWEST = enum.auto()
    ALONE = enum.auto()
    BEFORE = enum.auto()
    TWICE = enum.auto()
    PLAIN = enum.auto()
