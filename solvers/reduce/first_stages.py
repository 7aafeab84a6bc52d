"""Stages as executed, with what first stages do once a step in their times.

A step ends when the first stage has summed its gradients, so what that stage does once a step comes behind either
way through it (``solvers.reduce.executed.slowest``). It counts as far as its pairs do: charged to M micro-batches,
less the nanosecond of each layer that this is rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.reduce.line import SeatLine
from pipecut.solvers.reduce.programme import Cell
from pipecut.solvers.reduce.stages import ReducedStages
from pipecut.solvers.reduce.sums import Numbers


@dataclass(slots=True)
class ExecutedStages:
    """Stages by the time of their passes alone; first stages with what they do once a step, charged to these."""

    passes: ReducedStages
    charged: ReducedStages

    @staticmethod
    def of(passes: ReducedStages) -> ExecutedStages:
        """Price first stages too. Cost: their cells."""
        return ExecutedStages(passes, passes.charged(first=True))

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

    def final(self, seat: int, slot: int) -> NDArray[np.bool_]:
        """Return ``[first atom, atom behind the last]``: whether a least time will rise no more."""
        found = self.passes.final(seat, slot).copy()
        found[0] &= self.charged.final(seat, slot)[0]
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
