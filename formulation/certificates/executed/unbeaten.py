"""Rows of whole numbers of which none is at most another's in every column."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.limits import NEVER, Deadline

Rows = NDArray[np.int64]
Index = NDArray[np.intp]
FEW, MANY = 64, 1 << 12
"""So many rows are compared at once with those that are left, of which so many at once."""


def unbeaten(rows: Rows, deadline: Deadline = NEVER) -> Index:
    """Return which rows no other is at most in every column, one of equals.

    Rows are sorted by their first differences, so none is beaten by one behind it. Raises StoppedError after the
    deadline. Cost: n log n for n rows that differ in up to three columns; else each row is compared with those
    that are kept before it.
    """
    rows = rows[:, np.ptp(rows, axis=0) > 0] if len(rows) else rows
    order = np.lexsort(rows.T[::-1]) if rows.shape[1] else np.arange(min(1, len(rows)))
    if rows.shape[1] < 2 or len(order) < 2:
        return order[:1]
    if rows.shape[1] == 2:
        second = rows[order, 1]
        return order[np.append(True, second[1:] < np.minimum.accumulate(second)[:-1])]
    deadline.check()
    return order[_on_stairs(rows[order])] if rows.shape[1] == 3 else _sieved(rows, order, deadline)


def _on_stairs(rows: Rows) -> Index:
    """Return the unbeaten of sorted rows of three columns: what the last two rule out so far makes stairs.

    Kung, Luccio and Preparata, On finding the maxima of a set of vectors, JACM 22 (1975).
    """
    across: list[int] = []
    down: list[int] = []
    found: list[int] = []
    for at, (second, third) in enumerate(rows[:, 1:].tolist()):
        step = bisect_right(across, second)
        if step and down[step - 1] <= third:
            continue
        found.append(at)
        first = last = bisect_left(across, second)
        while last < len(down) and down[last] >= third:
            last += 1
        across[first:last], down[first:last] = [second], [third]
    return np.array(found, dtype=np.intp)


def _sieved(rows: Rows, left: Index, deadline: Deadline) -> Index:
    """Return the unbeaten of rows in a sorted order."""
    kept: list[Index] = []
    while len(left):
        deadline.check()
        some, left = left[:FEW], left[FEW:]
        beats = (rows[some][:, None] <= rows[some][None]).all(axis=2)
        some = some[~np.triu(beats, 1).any(axis=0)]
        kept.append(some)
        parts = (rows[left[at : at + MANY]] for at in range(0, len(left), MANY))
        beaten = [(rows[some][:, None] <= part[None]).all(axis=2).any(axis=0) for part in parts]
        left = left[~np.concatenate(beaten)] if beaten else left
    return np.concatenate(kept)
