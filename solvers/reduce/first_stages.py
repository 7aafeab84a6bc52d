"""Stages as executed, with what first stages do once a step in their times.

A step ends when the first stage has summed its gradients, so what that stage does once a step comes behind either
way through it (``solvers.reduce.executed.slowest``). It counts as far as its pairs do: charged to M micro-batches,
less the nanosecond of each layer that this is rounded up. Where another stage is the slowest, all of it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.reduce.programme import Cell
from pipecut.solvers.reduce.stages import ReducedStages
from pipecut.solvers.reduce.sums import Numbers


@dataclass(slots=True)
class ExecutedStages:
    """Stages by the time of their passes alone; with what they do once a step charged to these, or whole.

    What is done once a step counts from the first time that something is brought closer.
    """

    passes: ReducedStages
    _priced: tuple[ReducedStages, ReducedStages] | None = None

    @property
    def charged(self) -> ReducedStages:
        """Return first stages with what they do once a step charged. Cost: their cells, the first time."""
        return self._once()[0]

    def _once(self) -> tuple[ReducedStages, ReducedStages]:
        if self._priced is None:
            self._priced = self.passes.charged(first=True), self.passes.ending()
        return self._priced

    def least(self, seat: int, slot: int) -> Numbers:
        """Return ``[first atom, atom behind the last]``: the least time that counts; FORBIDDEN where none fits."""
        if self._priced is None:
            return self.passes.least(seat, slot)
        found, charged = self.passes.least(seat, slot).copy(), self.charged.least(seat, slot)[0]
        # Each layer of a stage is charged with less than a nanosecond too much.
        less = np.where(charged < FORBIDDEN, charged - np.array(self.passes.word.space.places), FORBIDDEN)
        found[0] = np.maximum(found[0], less)
        return found

    def ended(self, seat: int, slot: int) -> Numbers:
        """Return ``[first atom, atom behind the last]``: a pair of passes and all that is done once a step."""
        least = self.least(seat, slot)
        return least if self._priced is None else np.maximum(least, self._priced[1].least(seat, slot))

    def most(self, seat: int, slot: int) -> Numbers:
        """Return ``[first atom, atom behind the last]``: what least times will come to at most."""
        found = self.passes.most(seat, slot).copy()
        more = FORBIDDEN if self._priced is None else self.charged.most(seat, slot)[0]
        found[0] = np.maximum(found[0], more)
        return found

    def weigh(self, slot: int) -> bool:
        """Bring the least times of stages in a slot closer; tell whether that changed anything."""
        new = self._priced is None
        return any([new, *(one.weigh(slot) for one in (self.passes, self.charged))])

    def settle(self, cell: Cell, slot: int, limit: int) -> bool:
        """Price a stage exactly as far as it may be below a limit; tell whether anything changed."""
        changed = self.passes.settle(cell, slot, limit)
        if cell.first:
            return changed
        changed |= self._priced is None
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
