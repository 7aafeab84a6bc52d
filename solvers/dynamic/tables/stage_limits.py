"""How far a stage may stretch: exact by time, and by memory as far as single layers tell.

By time, "a stage of kind c holds layers i to j" is read from the least stage times. By memory it is a lower limit:
the forms that need least time and those that need least memory may differ, so a stage that passes here is checked
with both limits at once when it is found (``solvers.atoms.chains``); on one device there is only one form and the
limit is exact.
"""

from __future__ import annotations

import numpy as np

from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Times
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.solvers.reference.algorithm_1 import StageTimes


class StageLimits:
    """Which spans a stage may hold, by slot, kind and threshold. ``held`` is None where memory is not limited.

    It is given where tables have runs of layers for rows, and else made of the tables.

    By time and by memory alike, a stage that fits never stops fitting when its last layer is taken away. So both
    are kept as the furthest end for every first layer, and the nearer of the two counts.
    """

    def __init__(self, times: StageTimes, held: MemoryTables | None = None) -> None:
        self.times = times
        self.total = times.tables.rows
        limited = times.tables.instance.constraints.memory
        self.held: MemoryTables | None = held or (MemoryTables.of(times.tables) if limited else None)
        self._roomy: dict[Keeps, Times] = {}
        self._sums: tuple[Times, Times, Times, Times] | None = None
        self._timely: tuple[int, Times] | None = None

    def slots(self, slots: int) -> list[int]:
        """Return, for each slot, the first slot with the same memory rule: they share their tables."""
        if self.held is None:
            return [0] * slots
        rules = [self.held.keeps(slot) for slot in range(slots)]
        return [rules.index(rule) for rule in rules]

    def ends(self, slot: int, threshold_ns: int) -> Times:
        """Return by kind and i = 0..N the furthest layer where a stage from i on may stop; i if none fits."""
        timely = self._in_time(threshold_ns)
        return timely.copy() if self.held is None else np.minimum(timely, self._in_memory(self.held, slot))

    def _in_time(self, threshold_ns: int) -> Times:
        """Return ends by time for all kinds; of the last threshold they are remembered."""
        if self._timely is None or self._timely[0] != threshold_ns:
            self._timely = (threshold_ns, self.times.ends(threshold_ns))
        return self._timely[1]

    def _in_memory(self, held: MemoryTables, slot: int) -> Times:
        """Return ends by memory for all kinds, by bisection: what is held only grows with the last layer."""
        keeps = held.keeps(slot)
        if keeps not in self._roomy:
            self.times.tables.deadline.check()
            once, weights, stash, largest = self._least_held(held)
            summed = once + keeps.versions * weights + keeps.in_flight * stash
            room = np.array(held.capacity)[:, None] - keeps.in_flight * held.received[:, :-1] + summed[:, :-1]
            kinds, first = np.arange(len(summed))[:, None], np.arange(self.total)
            low, high = np.broadcast_to(first, room.shape).copy(), np.full(room.shape, self.total)
            while (low < high).any():
                middle = (low + high + 1) // 2
                level = np.frexp(np.maximum(middle - first, 1).astype(np.float64))[1] - 1
                working = np.maximum(
                    largest[level, kinds, first], largest[level, kinds, np.maximum(middle - (1 << level), 0)]
                )
                fits = summed[kinds, middle] + working <= room
                low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
            self._roomy[keeps] = np.concatenate([low, np.full((len(low), 1), self.total)], axis=1)
        return self._roomy[keeps]

    def _least_held(self, held: MemoryTables) -> tuple[Times, Times, Times, Times]:
        """Return prefix sums of what layers hold at least, and the largest working set of 1, 2, 4, ... layers."""
        if self._sums is None:
            parts = (held.once, held.by_version, held.by_micro_batch)
            once, weights, stash = (np.pad(held.least(part).cumsum(axis=1), ((0, 0), (1, 0))) for part in parts)
            rows = [held.least(held.working_set)]
            while (half := 1 << (len(rows) - 1)) < self.total:
                further = np.zeros_like(rows[-1])
                further[:, :-half] = rows[-1][:, half:]
                rows.append(np.maximum(rows[-1], further))
            self._sums = once, weights, stash, np.stack(rows)
        return self._sums
