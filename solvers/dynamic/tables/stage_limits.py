"""How far a stage may stretch: exact by time, and by memory as far as single layers tell.

By time, "a stage of kind c holds layers i to j" is read from the least stage times. By memory it is a lower limit:
the forms that need least time and those that need least memory may differ, so a stage that passes here is checked
with both limits at once when it is found (``solvers.dynamic.tables.forms_under_memory``); on one device there is
only one form and the limit is exact.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from formulation.costs.memory import Keeps
from formulation.costs.memory_tables import MemoryTables, memory_tables
from formulation.costs.tables import Times
from formulation.limits.deadline import in_time
from solvers.dynamic.tables.stage_times import StageTimes

__all__: list[str] = []

Bits = NDArray[np.bool_]


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
        self.held: MemoryTables | None = held or (memory_tables(times.tables) if limited else None)
        self._roomy: dict[tuple[int, Keeps], Times] = {}
        self._timely: tuple[int, Times] | None = None

    def slots(self, slots: int) -> list[int]:
        """Return, for each slot, the first slot with the same memory rule: they share their tables."""
        if self.held is None:
            return [0] * slots
        rules = [self.held.keeps(slot) for slot in range(slots)]
        return [rules.index(rule) for rule in rules]

    def ends(self, slot: int, kind: int, threshold_ns: int) -> Times:
        """Return for i = 0..N the furthest layer index where a stage from i on may stop; i itself if none fits."""
        timely = self._in_time(threshold_ns)[kind]
        return timely.copy() if self.held is None else np.minimum(timely, self._in_memory(self.held, slot, kind))

    def _in_time(self, threshold_ns: int) -> Times:
        """Return ends by time for all kinds; of the last threshold they are remembered."""
        if self._timely is None or self._timely[0] != threshold_ns:
            rows = in_time(self.times.time, self.times.tables.deadline)
            self._timely = (threshold_ns, _ends((row <= threshold_ns for row in rows), self.total))
        return self._timely[1]

    def _in_memory(self, held: MemoryTables, slot: int, kind: int) -> Times:
        keeps = held.keeps(slot)
        if (kind, keeps) not in self._roomy:
            self.times.tables.deadline.check()
            parts = (held.once, held.by_version, held.by_micro_batch)
            once, weights, stash = (_prefix(held.least(part, kind)) for part in parts)
            summed = once + keeps.versions * weights + keeps.in_flight * stash
            needed = summed[None, :] - summed[:-1, None] + keeps.in_flight * held.received[kind, :-1, None]
            needed[:, 1:] += _largest_so_far(held.least(held.working_set, kind))
            self._roomy[kind, keeps] = _ends([np.triu(needed <= held.capacity[kind], 1)], self.total)[0]
        return self._roomy[kind, keeps]


def _ends(fitting: Iterable[Bits], total: int) -> Times:
    """Return the furthest ends by first layer 0..N, from tables [i, j] of what fits: counting finds them."""
    later = np.stack([fits.sum(axis=1) for fits in fitting])
    return np.concatenate([np.arange(total) + later, np.full((len(later), 1), total)], axis=1)


def _prefix(values: Times) -> Times:
    return np.concatenate([[0], np.cumsum(values, dtype=np.int64)])


def _largest_so_far(values: Times) -> Times:
    """Return by (i, j): the largest of values i..j; where j < i the value 0."""
    rows = np.triu(np.broadcast_to(values, (len(values), len(values))))
    return np.maximum.accumulate(rows, axis=1)
