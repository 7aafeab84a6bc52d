"""The distinct values of a large array, rising: as ``numpy.unique``, but it can be stopped on the way.

Values are divided by their size into parts of some millions, each sorted by itself: sorting all of them at once
takes seconds in which nobody can ask whether there is still time.
"""

from __future__ import annotations

import numpy as np

from formulation.costs.tables import Times
from formulation.limits.deadline import NEVER, Deadline, in_time

PART = 1 << 21
"""About how many values are sorted at once."""
SAMPLE = 4096
"""How many values, at least, tell where to divide."""


def distinct(values: Times, deadline: Deadline = NEVER) -> Times:
    """Return every value once, ascending. Raises StoppedError after the deadline. Cost: that of sorting."""
    parts = -(-values.size // PART)
    if parts <= 1:
        return np.unique(values)
    sample = np.unique(values[:: max(1, values.size // SAMPLE)])
    pivots = sample[np.arange(1, parts) * len(sample) // parts]
    found: list[Times] = []
    below = np.zeros(values.shape, dtype=bool)
    for pivot in in_time([*np.unique(pivots), None], deadline):
        upto = np.ones_like(below) if pivot is None else values < pivot
        found.append(np.unique(values[upto & ~below]))
        below = upto
    return np.concatenate(found)
