"""Plans of the line by slots: which stages can follow which, with the slot of every stage known.

Slots are counted from the last stage, so a memory limit is a property of (slot, kind, span). With a threshold T,

    after[k][p, i]: stages in slots k, k-1, .. 0 on devices from p on can hold the layers from i to the end;
    before[p, i]:   stages on exactly the devices before p can hold the layers before i (slots unknown).

It takes the fastest link at every boundary and the lower limits of memory
(``solvers.dynamic.tables.stage_limits``), so it is a relaxation: what it excludes is impossible, and a path
through it is a plan to try.
"""

from __future__ import annotations

import itertools

import numpy as np

from formulation.costs.tables import Tables, Times
from formulation.problem.groups import line, line_places
from solvers.dynamic.tables.stage_limits import Bits, StageLimits


class LineReach:
    """The bit vectors for one threshold. Cost: O(slots x groups x layers), and one pass over the tables."""

    def __init__(self, limits: StageLimits, threshold_ns: int, slots: int) -> None:
        tables = limits.times.tables
        self.places = line_places(tables.instance)
        self.total, self.devices = limits.total, tables.instance.devices
        self.crossed = crossed(tables, threshold_ns)
        self._kind_of = tables.kind_of
        self._rule = limits.slots(slots)
        self._ends = {
            (slot, kind): limits.ends(slot, kind, threshold_ns)
            for slot in sorted(set(self._rule))
            for kind in range(len(tables.kinds))
        }
        self.after: list[Bits] = []
        for slot in range(slots):
            self.after.append(self._slot(slot))

    def ends(self, slot: int, index: int) -> Times:
        """Return how far a stage in this slot on group ``index`` reaches, by its first layer."""
        return self._ends[self._rule[slot], self._kind_of[index]]

    def _slot(self, slot: int) -> Bits:
        reach = np.zeros((self.devices + 1, self.total + 1), dtype=bool)
        first_layer = np.arange(self.total + 1)
        for index, (first, stop) in enumerate(self.places):
            ends = self.ends(slot, index)
            if slot == 0:
                reach[first, :-1] |= ends[:-1] >= self.total
            else:
                counted = np.append(0, np.cumsum(self.after[slot - 1][stop]))
                # Some possible stop lies in i + 1 .. ends[i].
                reach[first] |= counted[ends + 1] > counted[np.minimum(first_layer + 1, self.total + 1)]
        return reach & self.crossed

    def before(self) -> Bits:
        """Return what the devices before each position can hold, with the roomiest memory rule for all stages."""
        reach = np.zeros((self.devices + 1, self.total + 1), dtype=bool)
        reach[0, 0] = True
        for index in sorted(range(len(self.places)), key=lambda at: self.places[at]):
            first, stop = self.places[index]
            starts = np.flatnonzero(reach[first, :-1])
            if len(starts):
                change = np.zeros(self.total + 2, dtype=np.int64)
                ends = self.ends(0, index)[starts]
                np.add.at(change, starts + 1, 1)
                np.add.at(change, ends + 1, -1)
                reach[stop] |= (np.cumsum(change)[:-1] > 0) & self.crossed[stop]
        return reach

    def path(self) -> list[tuple[int, int, int, int]] | None:
        """Return stages (slot, group index, first layer, layer after the last) of some path, or None."""
        depth = next((slot for slot, reach in enumerate(self.after) if reach[0, 0]), None)
        if depth is None:
            return None
        stages: list[tuple[int, int, int, int]] = []
        device, layer = 0, 0
        for slot in range(depth, -1, -1):
            index, stop = self._step(slot, device, layer)
            stages.append((slot, index, layer, stop))
            device, layer = self.places[index][1], stop
        return stages

    def _step(self, slot: int, device: int, layer: int) -> tuple[int, int]:
        for index, (first, stop) in enumerate(self.places):
            if first != device:
                continue
            end = int(self.ends(slot, index)[layer])
            if slot == 0 and end >= self.total:
                return index, self.total
            possible = np.flatnonzero(self.after[slot - 1][stop][layer + 1 : end + 1]) if slot else []
            if len(possible):
                return index, layer + 1 + int(possible[-1])
        raise LookupError(f"slot {slot}: no stage continues from device {device}, layer {layer}")


def crossed(tables: Tables, threshold_ns: int) -> Bits:
    """Tell by device position and cut whether the fastest link there carries the boundary in time."""
    servers = line(tables.instance)
    both = tables.activation + tables.gradient
    fast_enough = np.ones((len(servers) + 1, len(tables.instance.layers) + 1), dtype=bool)
    for position, (one, other) in enumerate(itertools.pairwise(servers), start=1):
        link = tables.instance.links[one][other]
        if link is not None:
            fast_enough[position] = both[tables.links.index(link)] <= threshold_ns
    return fast_enough
