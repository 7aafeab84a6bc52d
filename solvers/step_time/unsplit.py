"""Stages of kinds that split no layers: which of them have the memory for the weights that they copy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.problem.cuts import CutSpace


def with_room(
    held: MemoryTables | None, space: CutSpace, slot: int, kind: int, fitting: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return those of the stages ``fitting[i, j]``, which fit without copies, that fit with what they copy.

    Cost: linear in layers for each place where a stage begins that copies something.
    """
    if held is None or not held.copies:
        return fitting
    found, places, lasting = fitting.copy(), np.array(space.places), held.lasting(slot, kind)
    for start in np.flatnonzero(fitting.any(axis=1)).tolist():
        first = int(places[start])
        if any(earlier < first <= layer for earlier, layer in held.copies):
            kept, working = (part[first:, 0] for part in held.in_stage(slot, kind, first, lasting))
            needed = np.append(0, kept.cumsum() + np.maximum.accumulate(working))
            found[start, start + 1 :] &= needed[places[start + 1 :] - first] <= held.room(slot, kind, first)
    return found
