"""Model parallelism without a pipeline: one micro-batch at a time through all stages and back.

::

    rank 0  F0 .  .  .  .  .  .  B0 F1 .  .  .  .  .  .  B1
    rank 1  .  F0 .  .  .  .  B0 .  .  F1 .  .  .  .  B1 .
    rank 2  .  .  F0 .  .  B0 .  .  .  .  F1 .  .  B1 .  .
    rank 3  .  .  .  F0 B0 .  .  .  .  .  .  F1 B1 .  .  .

In flight: 1 at every stage. Bubble of uniform stages: (S - 1) / S of the total, whatever the micro-batches;
iteration time: M times the sum of all passes and transfers. Source: the baseline that GPipe starts from
(Huang et al., NeurIPS 2019, Fig. 2b).
"""

from __future__ import annotations

import numpy as np

from pipecut.formulation.schedules.table import Kind, PipelineSchedule, check_number, in_slots, one_rank_each, run


def naive(stages: int, micro_batches: int) -> PipelineSchedule:
    """Return the schedule that forwards a micro-batch only when the one before is done. Raises ScheduleError."""
    check_number(stages, micro_batches)
    every = np.arange(micro_batches)
    rows = [
        (run(Kind.FORWARD, stage, every, 2 * every), run(Kind.BACKWARD, stage, every, 2 * every + 1))
        for stage in range(stages)
    ]
    return in_slots("naive", rows, micro_batches=micro_batches, stage_ranks=one_rank_each(stages))
