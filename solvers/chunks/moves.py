"""Better plans by small moves: an atom goes from one stage to another, and stages between are shifted by one."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pipecut.formulation.limits import Deadline
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers.chunks.bulk import BROKEN, ManyPlans
from pipecut.solvers.chunks.case import Dealt, GroupLayout
from pipecut.solvers.chunks.runs import Numbers
from pipecut.solvers.search.first_plan import even_cuts

KEPT = 8
"""So many plans are moved on at once, the best that are known."""
AT_ONCE = 1 << 13
"""About so many plans are priced before it is looked whether time is over."""
KNOWN = 64


def first_plan(instance: Instance, layout: GroupLayout) -> Dealt | None:
    """Return stages of nearly equal work on the first groups that there are; None where these run out."""
    left = [server.devices for server in instance.servers]
    choice: list[int] = []
    for row in layout.choices:
        fits = (q for q, one in enumerate(row) if all(left[server] >= count for server, count in one.counts))
        chosen = next(fits, None)
        if chosen is None:
            return None
        choice.append(chosen)
        for server, count in row[chosen].counts:
            left[server] -= count
    stages, places = layout.ranks * instance.training.chunks, CutSpace.of(instance).places
    cuts = even_cuts(instance, stages)
    if len(cuts) < stages + 1:
        return None
    return Dealt(tuple(places.index(cut) for cut in cuts), tuple(choice))


def improved(plans: ManyPlans, begin: list[tuple[int, ...]], deadline: Deadline) -> tuple[Dealt | None, int]:
    """Return a plan that no single move of it, or of others nearly as good, makes better, and its value.

    ``begin`` are places of plans to begin with, which may take more memory than there is. None, and a value above
    all, where nothing is met that keeps the rules. After the deadline the best so far. Cost: the moves of a few
    plans, priced as often as they bring something.
    """
    pool = np.unique(np.array(begin, dtype=np.int64), axis=0)
    values = plans.values(pool)
    stages, known = pool.shape[1] - 1, {row.tobytes() for row in pool}
    before = None
    while (before is None or values.min() < before) and not deadline.over():
        before = values.min()
        moved = (pool[:, None, :] + moves(stages)[None]).reshape(-1, stages + 1)
        moved = np.unique(moved[(np.diff(moved) > 0).all(axis=1)], axis=0)
        fresh = [row for row in moved if row.tobytes() not in known]
        known |= {row.tobytes() for row in fresh}
        for at in range(0, len(fresh), AT_ONCE):
            if deadline.over():
                break
            part = np.array(fresh[at : at + AT_ONCE])
            pool, values = np.concatenate([pool, part]), np.concatenate([values, plans.values(part)])
        best = np.argsort(values, kind="stable")[:KEPT]
        pool, values = pool[best], values[best]
    least = int(values.argmin())
    if values[least] >= BROKEN:
        return None, BROKEN
    return Dealt(tuple(pool[least].tolist()), plans.choice), int(values[least])


@lru_cache(maxsize=KNOWN)
def moves(stages: int) -> Numbers:
    """Return what one atom more of one stage and one less of another adds to the places, for every two stages."""
    rows = [
        [step * (one < at <= other) for at in range(stages + 1)]
        for one in range(stages)
        for other in range(one + 1, stages)
        for step in (1, -1)
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, stages + 1)
