"""Rows of whole numbers of which none is at most another's in every column."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from formulation.limits.deadline import NEVER, Deadline

__all__: list[str] = []

Rows = NDArray[np.int64]
FEW = 64
"""So many rows are compared with all that are left at once."""


def unbeaten(rows: Rows, deadline: Deadline = NEVER) -> NDArray[np.intp]:
    """Return which rows no other is at most in every column, one of equals.

    Rows are sorted by their first differences, so none is beaten by one behind it. Raises StoppedError after the
    deadline. Cost: each row is compared with those that are kept before it.
    """
    left = np.lexsort(rows.T[::-1])
    kept: list[NDArray[np.intp]] = []
    while len(left):
        deadline.check()
        some, left = left[:FEW], left[FEW:]
        beats = (rows[some][:, None] <= rows[some][None]).all(axis=2)
        some = some[~np.triu(beats, 1).any(axis=0)]
        kept.append(some)
        for one in rows[some]:
            left = left[(rows[left] < one).any(axis=1)]
    return np.concatenate(kept) if kept else left
