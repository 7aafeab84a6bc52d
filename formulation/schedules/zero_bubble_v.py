"""ZB-V: two stages a rank, laid as a V, with the two gradients of a backward pass apart.

::

    rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3 .
    rank 1  .   1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 2W3 1W3

Stages go down through the ranks and up again: rank ``r`` of ``p`` holds the stages r and 2 p - 1 - r, its chunks 0
and 1. So the first and the last stage are on one rank, and on the last rank a micro-batch turns round without
leaving it. With F0 for a forward pass of chunk 0, and so on, rank r runs

* 2 (p - r) - 1 times F0, r times F1 F0, then p - r times F1 I1 W1, which fills the V;
* F0 I0 W0 F1 I1 W1 in turn, F0 as long as there is one;
* r times I0 I1, p - r times I0 W0, then what is left of W1, and of W0: gradients of weights wait for the end,
  where nobody waits for them.

Each chunk takes its micro-batches in order. With passes that all take the same time, and 2 p - 1 micro-batches or
more, no rank stands still between its first pass and its last, and a step ends p - 1 passes after all work of one
rank. Fewer micro-batches run as the first of so many, without the others; as passes wait only for those of their
own micro-batch, that order has no deadlock either. In flight until W, both chunks together: 2 p passes at most on
every rank, each of half of what a stage of 1F1B has, so as much as the first stage of 1F1B keeps. Source: Qi et
al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241, §6). PyTorch's ``ScheduleZBVZeroBubble`` has the same
order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipecut.formulation.schedules.table import (
    ActionRun,
    Integers,
    Kind,
    PipelineSchedule,
    check_number,
    in_slots,
    run,
)

ROUND = 6
"""Passes of a round of the middle: three of each chunk."""


def zero_bubble_v(ranks: int, micro_batches: int) -> PipelineSchedule:
    """Return the ZB-V schedule of one optimiser step on so many ranks. Raises ScheduleError for sizes below 1."""
    check_number(2 * ranks, micro_batches)
    rows = [list(_row(ranks, rank, micro_batches)) for rank in range(ranks)]
    placement = [(min(stage, 2 * ranks - 1 - stage),) for stage in range(2 * ranks)]
    return in_slots("zero_bubble_v", rows, micro_batches=micro_batches, stage_ranks=placement)


def _row(ranks: int, rank: int, micro_batches: int) -> Iterator[ActionRun]:
    """Yield the passes of a rank by chunk and kind. Slots are when each begins if all take a unit of time."""
    many = max(micro_batches, 2 * ranks - 1)
    behind, rounds = ranks - rank, many - ranks
    filled = 2 * ranks - 1 - rank
    """When the first pass of the second chunk begins."""
    turning = filled + 2 * rank
    middle = turning + 3 * behind
    drain = middle + ROUND * rounds
    alone, left = drain + 2 * rank, drain + 2 * ranks

    def slots(*runs: tuple[int, int, int]) -> Integers:
        """Return the slots of runs, each a first slot, a number and a step, cut to the micro-batches there are."""
        found = [first + step * np.arange(number) for first, number, step in runs]
        return np.concatenate(found)[:micro_batches]

    middles = rounds, ROUND
    down, up = (
        (
            (Kind.FORWARD, slots((rank, 2 * behind - 1, 1), (filled + 1, rank, 2), (middle, *middles))),
            (Kind.INPUT_GRADIENT, slots((middle + 1, *middles), (drain, rank, 2), (alone, behind, 2))),
            (Kind.WEIGHT_GRADIENT, slots((middle + 2, *middles), (alone + 1, behind, 2), (left + rank, rank, 1))),
        ),
        (
            (Kind.FORWARD, slots((filled, rank, 2), (turning, behind, 3), (middle + 3, *middles))),
            (Kind.INPUT_GRADIENT, slots((turning + 1, behind, 3), (middle + 4, *middles), (drain + 1, rank, 2))),
            (Kind.WEIGHT_GRADIENT, slots((turning + 2, behind, 3), (middle + 5, *middles), (left, rank, 1))),
        ),
    )
    for stage, rows in ((rank, down), (2 * ranks - 1 - rank, up)):
        for kind, found in rows:
            yield run(kind, stage, np.arange(micro_batches), found)
