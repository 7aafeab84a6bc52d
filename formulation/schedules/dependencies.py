"""Which action waits for which: the data that flows between stages, without any time.

Every action waits for exactly one other, except the forward passes of stage 0:

====================  ==========================================================
action                waits for
====================  ==========================================================
``F`` at stage s > 0  ``F`` at stage s - 1 (its activation)
``B``, ``I``          ``B`` or ``I`` at stage s + 1 (its gradient); at the last stage ``F`` there
``W``                 ``I`` of the same stage
====================  ==========================================================

That a backward pass waits for the forward pass of its own stage follows from these.
"""

from __future__ import annotations

import numpy as np

from formulation.schedules.actions import Kind
from formulation.schedules.table import Integers, PipelineSchedule

NONE = -1
"""Stands for no action in arrays of indices."""


def positions(schedule: PipelineSchedule, *kinds: int) -> Integers:
    """Return ``found[s, m]``, the index of the action of these kinds at stage s for micro-batch m, or NONE.

    Cost: linear in actions. Where several are found the last counts.
    """
    found = np.full((schedule.stages, schedule.micro_batches), NONE, dtype=np.int64)
    index = np.flatnonzero(np.isin(schedule.kind, kinds))
    found[schedule.stage[index], schedule.micro_batch[index]] = index
    return found


def dependencies(schedule: PipelineSchedule) -> Integers:
    """Return for every action of a complete schedule the index of the action that it waits for, or NONE.

    Cost: linear in actions.
    """
    forward = positions(schedule, Kind.FORWARD)
    gradient = positions(schedule, Kind.BACKWARD, Kind.INPUT_GRADIENT)
    sources = np.full((4, schedule.stages, schedule.micro_batches), NONE, dtype=np.int64)
    sources[Kind.FORWARD, 1:] = forward[:-1]
    for kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT):
        sources[kind, :-1] = gradient[1:]
        sources[kind, -1] = forward[-1]
    sources[Kind.WEIGHT_GRADIENT] = gradient
    return sources[schedule.kind, schedule.stage, schedule.micro_batch]


def rank_of_actions(schedule: PipelineSchedule) -> Integers:
    """Return the rank of every action."""
    return np.repeat(np.arange(schedule.ranks), np.diff(schedule.offsets))
