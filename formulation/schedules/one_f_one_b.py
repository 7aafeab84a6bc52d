"""1F1B with a flush: after a warm-up, one forward pass and one backward pass in turn.

::

    rank 0  F0 F1 F2 F3 .  .  .  B0 F4 B1 F5 B2 .  B3 .  B4 .  B5
    rank 1  .  F0 F1 F2 .  .  B0 F3 B1 F4 B2 F5 B3 .  B4 .  B5 .
    rank 2  .  .  F0 F1 .  B0 F2 B1 F3 B2 F4 B3 F5 B4 .  B5 .  .
    rank 3  .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 .  .  .

Stage ``s`` (from 0) warms up with S - s - 1 forward passes. In flight: min(S - s, M). Bubble of uniform stages:
that of GPipe, (S - 1) / (M + S - 1) of the total; only the memory is less. Source: PipeDream-Flush (Narayanan et
al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021) and Megatron-LM (SC'21, arXiv 2104.04473, §2.2).
"""

from __future__ import annotations

import numpy as np

from formulation.schedules.actions import BACKWARD, FORWARD
from formulation.schedules.table import PipelineSchedule, check_number, in_slots, one_rank_each, run

__all__ = ["one_f_one_b"]


def one_f_one_b(stages: int, micro_batches: int) -> PipelineSchedule:
    """Return the 1F1B schedule of one optimiser step. Raises ScheduleError for sizes below 1."""
    check_number(stages, micro_batches)
    every = np.arange(micro_batches)
    rows = []
    for stage in range(stages):
        warmup = min(stages - stage - 1, micro_batches)
        forward = run(FORWARD, stage, every, 2 * (every - warmup))
        rows.append((forward, run(BACKWARD, stage, every, 2 * every + 1)))
    return in_slots("one_f_one_b", rows, micro_batches=micro_batches, stage_ranks=one_rank_each(stages))
