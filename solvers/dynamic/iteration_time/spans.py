"""What every stage takes at least and how far it may reach, by kind and span of atoms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.solvers.dynamic.tables.stage_limits import StageLimits
from pipecut.solvers.reference.line import AtomTables

Index = NDArray[np.int64]
Bits = NDArray[np.bool_]


class StageSpans:
    """Least times of stages by kind and span, what fits in memory by rank, and what boundaries take.

    Spans and cuts count atoms: cut i is the i-th place of the cut space.

    A *rank* stands for the slots that share a memory rule; slot k has rank ``min(k, ranks - 1)``.
    ``room[r, k, i]``: the furthest cut where a stage of kind k from layer i on can stop within memory in rank r.
    """

    def __init__(self, atoms: AtomTables) -> None:
        tables = atoms.times.tables
        self.atoms, self.limits = atoms, StageLimits(atoms.times, atoms.least)
        limits = self.limits
        self.total = limits.total
        slots = min(self.total, tables.instance.devices)
        rules = limits.slots(slots)
        self.ranks = len(set(rules))
        if rules != [min(slot, self.ranks - 1) for slot in range(slots)]:
            self.ranks = slots
        ever = [limits.ends(rank, FORBIDDEN - 1) for rank in range(self.ranks)]
        self.room: Times = np.array(ever, dtype=np.int64)
        cuts = np.arange(self.total + 1)
        self.time: Times = limits.times.time
        if limits.held is not None:
            self.time = np.where(cuts <= self.room[0][:, : self.total, None], self.time, FORBIDDEN)
        free = np.zeros((1, self.total + 1), dtype=np.int64)
        self.crossing: Times = np.concatenate([tables.activation + tables.gradient, free])

    def rank(self, slot: int) -> int:
        """Return the rank of a slot."""
        return min(slot, self.ranks - 1)
