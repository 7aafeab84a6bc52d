"""The best plan of a narrower question, to begin with: what is opened makes no answer worse.

What the reduction does not see is closed: stages stand on the line, each on devices of its own, passes run under
1F1B, nothing overlaps, and no goal is limited. The best plan of that question is a plan of what was asked where it
keeps the rules, and is priced anew. What is proved of the narrower question says nothing of the other.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Progress
from pipecut.formulation.problem.constraints import Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import BoundaryCharge, Combine, StageTime, Synchronisation
from pipecut.formulation.problem.training import Schedule
from pipecut.solvers.catalogue import is_reduced
from pipecut.solvers.reduce.grids import GridFound, times_in_a_step
from pipecut.solvers.reduce.jointly import Jointly

PART = 3
"""It may take one part in so many of the time."""


def narrower(instance: Instance) -> list[Instance]:
    """Return the choices of the narrower question; none where it is the same, or the reduction does not see it."""
    training = instance.training
    orders = training.schedule_choices or (training.schedule,)
    if not any(one is Schedule.ONE_F_ONE_B or one.in_halves for one in orders):
        return []
    if 1 not in (training.chunk_choices or (training.chunks,)):
        return []
    plain = replace(training, schedule=Schedule.ONE_F_ONE_B, schedule_choices=(), chunks=1, chunk_choices=())
    cost = replace(
        instance.cost,
        synchronisation=Synchronisation.CHARGED,
        inside=Synchronisation.CHARGED,
        stage_time=StageTime.ADD,
        boundary_charge=BoundaryCharge.LINK,
        combine=Combine.MAX,
    )
    asked = replace(instance.constraints, placement=Placement.LINE, at_most=())
    if (plain, cost, asked) == (training, instance.cost, instance.constraints):
        return []
    with contextlib.suppress(ValueError):
        like = partial(replace, instance, cost=cost, constraints=asked, goals=instance.goals[:1])
        found = [like(training=one) for one in plain.choices]
        return found if all(map(is_reduced, found)) else []
    return []


def narrower_plan(instance: Instance, limits: Limits, grid: GridFound | None) -> GridFound | None:
    """Return the best plan of the narrower question, if it is better than a grid; else the grid.

    It is told. Cost: a search for one part in PART of the time.
    """
    parts = narrower(instance)
    if not parts:
        return grid
    known = [one for one in parts if grid is not None and one.training == grid.instance.training]
    # The value of a grid is one of the narrower question only where that is priced alike.
    start = grid.told if grid is not None and known and parts[0].cost == instance.cost else None
    found = Jointly.run(parts, replace(limits.share(PART), progress=lambda _: None), start)
    best = grid
    for many, plan in [(part.training.micro_batches, one.plan) for part, one in found if one.plan is not None]:
        for one in instance.training.choices:
            if one.chunks > 1 or one.micro_batches != many:
                continue
            about = replace(instance, training=one)
            priced = evaluate(about, plan)
            if not priced.feasible or priced.objective is None:
                continue
            if best is None or priced.objective * times_in_a_step(about) < best.step:
                best = GridFound(priced.objective, plan, about)
                limits.progress(Progress(best.objective, None, best.plan, about))
    return best
