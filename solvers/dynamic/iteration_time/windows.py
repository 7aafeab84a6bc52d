"""Where a suffix of a plan can start at all within a threshold: windows of cuts, by state.

    least[s]: no suffix that takes the devices of state s holds more than the layers from least[s] on;
    most[s]:  the devices left by s hold no more than the layers before most[s].

Both let stages follow one another without boundaries and in any slot, so they are limits, at a cost of one look-up
for each step between states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipecut.solvers.dynamic.iteration_time.spans import Index, StageSpans
from pipecut.solvers.dynamic.iteration_time.steps import FlatSteps


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """The limits by state, and whether they leave room for a whole plan."""

    least: Index
    most: Index
    possible: bool


def windows(spans: StageSpans, steps: FlatSteps, threshold_ns: int) -> Windows:
    """Find the windows of all states. Cost: O(kinds x layers**2 + steps) in numpy."""
    total = spans.total
    ends = spans.limits.ends(0, threshold_ns)
    ends = np.maximum.accumulate(ends, axis=1)
    cuts = np.arange(total + 1)
    starts = np.array([np.searchsorted(row, cuts) for row in ends])
    starts[:, total] = np.minimum(starts[:, total], total)
    least = np.full(len(steps.taken), total + 1)
    least[steps.empty] = total
    for low, high in steps.levels:
        reached = least[steps.state[low:high]]
        found = np.where(reached <= total, starts[steps.kind[low:high], np.minimum(reached, total)], total + 1)
        np.minimum.at(least, steps.after[low:high], found)
    most = np.where(steps.complete, 0, -1)
    for low, high in reversed(steps.levels):
        reached = most[steps.after[low:high]]
        found = np.where(reached >= 0, ends[steps.kind[low:high], np.maximum(reached, 0)], -1)
        np.maximum.at(most, steps.state[low:high], found)
    return Windows(least, most, bool((most[steps.empty] >= total).any()))
