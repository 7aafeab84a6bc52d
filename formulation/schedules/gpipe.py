"""F-then-B: all forward passes of a step, then all backward passes.

::

    rank 0  F0 F1 F2 F3 .  .  .  .  .  .  B0 B1 B2 B3
    rank 1  .  F0 F1 F2 F3 .  .  .  .  B0 B1 B2 B3 .
    rank 2  .  .  F0 F1 F2 F3 .  .  B0 B1 B2 B3 .  .
    rank 3  .  .  .  F0 F1 F2 F3 B0 B1 B2 B3 .  .  .

In flight: all M micro-batches at every stage. Bubble of uniform stages: (S - 1) / (M + S - 1) of the total, which
is (S - 1) / M relative to ideal. Source: GPipe (Huang et al., NeurIPS 2019, arXiv 1811.06965, §2.3). Its Fig. 2c
runs the backward passes from the last micro-batch to the first; here they run from the first, as in PyTorch's
``ScheduleGPipe``. For stages that take the same time for every micro-batch both take equally long.
"""

from __future__ import annotations

import numpy as np

from pipecut.formulation.schedules.table import Kind, PipelineSchedule, check_number, in_slots, one_rank_each, run


def gpipe(stages: int, micro_batches: int) -> PipelineSchedule:
    """Return GPipe's schedule. Raises ScheduleError for sizes below 1."""
    check_number(stages, micro_batches)
    every = np.arange(micro_batches)
    rows = [
        (run(Kind.FORWARD, stage, every, every), run(Kind.BACKWARD, stage, every, micro_batches + every))
        for stage in range(stages)
    ]
    return in_slots("gpipe", rows, micro_batches=micro_batches, stage_ranks=one_rank_each(stages))
