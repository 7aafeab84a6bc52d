"""Where stages may start: what reachability over device states says about one slot and one group (for CP-SAT)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from solvers.dynamic.states.reach import StateReach
from solvers.dynamic.states.states import StateSpace


class StartsOfStages:
    """Layers from which slots k .. 0 can end if slot k runs on a group, for the threshold of ``reach``.

    Alike servers were exchanged in the states, so groups that an exchange turns into each other share layers.
    """

    def __init__(self, reach: StateReach) -> None:
        self._reach = reach
        self._nodes = _nodes_of_groups(reach.space)
        self._rows: dict[tuple[int, bytes], NDArray[np.intp]] = {}

    def layers(self, slot: int, group: int) -> NDArray[np.intp]:
        """Return the layers at which a stage in this slot on this group may start, ascending."""
        if slot >= len(self._reach.reached):
            return np.zeros(0, dtype=np.intp)
        nodes = self._nodes[group]
        key = (slot, nodes.tobytes())
        if key not in self._rows:
            packed = np.bitwise_or.reduce(self._reach.reached[slot][nodes], axis=0)
            self._rows[key] = np.flatnonzero(np.unpackbits(packed, count=self._reach.total + 1))
        return self._rows[key]


def _nodes_of_groups(space: StateSpace) -> dict[int, NDArray[np.intp]]:
    """Return for every group the nodes of suffixes that may start with it or one that an exchange makes of it."""
    alike = space.suffixes.alike
    found: dict[tuple[tuple[int, int], ...], set[int]] = {}
    names: list[tuple[tuple[int, int], ...]] = []
    for place in space.suffixes.places:
        counts = ((alike[server], count) for server, count in place.counts)
        names.append(tuple(sorted(counts)))
    for steps in space.steps:
        for place, node in zip(steps.place.tolist(), steps.node.tolist(), strict=True):
            found.setdefault(names[place], set()).add(node)
    return {
        group: np.array(sorted(found.get(name, ())), dtype=np.intp)
        for name, place in zip(names, space.suffixes.places, strict=True)
        for group in place.groups
    }
