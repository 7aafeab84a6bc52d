"""What the stages before a suffix take at least, by weighed paths: sums of passes, each counted so often."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from formulation.certificates.executed.passes import StagePasses, StageRows
from formulation.certificates.executed.paths import WeighedPaths
from formulation.certificates.executed.ways import Ways
from formulation.limits.deadline import NEVER, Deadline
from formulation.schedules.keeps import Keeps

__all__: list[str] = []

NEVER_NS = 1 << 60
"""The sum of no plan at all."""
Sums = NDArray[np.int64]
Rules = tuple[Keeps | None, ...]


def ahead_of(
    weighed: WeighedPaths, ways: Ways, stages: StagePasses, rules: Rules, most_ns: int, deadline: Deadline = NEVER
) -> list[Sums]:
    """Return by slot, node and place the least sum of all stages before a suffix that begins there.

    ``rules`` say what stages of each slot keep. With the transfers over all boundaries before the suffix. Sums
    above ``weight * most_ns`` are NEVER_NS. Raises StoppedError after the deadline. Cost: for each slot, all moves
    times the square of the places.
    """
    often, most = np.array(weighed.often(), dtype=np.int64), weighed.weight * most_ns
    total = len(ways.places) - 1
    begin: Sums = np.full((len(ways.whole), total + 1), NEVER_NS, dtype=np.int64)
    begin[ways.whole, 0] = 0
    found = [begin]
    for stage in range(weighed.stages - 1):
        rule = rules[weighed.stages - 1 - stage]
        found.append(_behind(often[stage], ways, (stages, rule), found[-1], most, deadline))
    return found[::-1]


def _behind(
    often: Sums, ways: Ways, of: tuple[StagePasses, Keeps | None], ahead: Sums, most: int, deadline: Deadline
) -> Sums:
    """Return the least sums behind stages that count so often and have these ahead of them."""
    found: Sums = np.full_like(ahead, NEVER_NS)
    costs: dict[int, Sums] = {}
    for state, end, moves in ways:
        deadline.check()
        if state not in ways.nodes:
            continue
        best: Sums = np.full(ahead.shape[1], NEVER_NS, dtype=np.int64)
        for way in moves:
            some = np.flatnonzero(ahead[way.node] < NEVER_NS)
            for kind in way.kinds if len(some) else ():
                if kind not in costs:
                    costs[kind] = _costs(often, of[0].rows(kind, of[1]), ahead.shape[1])
                np.minimum(best, (ahead[way.node][some, None] + costs[kind][some]).min(axis=0), out=best)
        for node, first in ways.nodes[state] if (best <= most).any() else ():
            crossed = often[3:] @ np.minimum(ways.boundary(end, first), most)
            np.minimum(found[node], best + crossed, out=found[node])
    return np.where(found > most, NEVER_NS, found)


def _costs(often: Sums, rows: StageRows, places: int) -> Sums:
    """Return the least sum of the passes of stages between two places."""
    found: Sums = np.full((places, places), NEVER_NS, dtype=np.int64)
    np.minimum.at(found, (rows.first, rows.stop), rows.passes @ often[:3])
    return found
