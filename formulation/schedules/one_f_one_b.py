"""1F1B with a flush: after a warm-up, one forward pass and one backward pass in turn.

::

    rank 0  F0 F1 F2 F3 .  .  .  B0 F4 B1 F5 B2 .  B3 .  B4 .  B5
    rank 1  .  F0 F1 F2 .  .  B0 F3 B1 F4 B2 F5 B3 .  B4 .  B5 .
    rank 2  .  .  F0 F1 .  B0 F2 B1 F3 B2 F4 B3 F5 B4 .  B5 .  .
    rank 3  .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 .  .  .

Stage ``s`` (from 0) runs w_s forward passes before its first backward pass, as many as it then has micro-batches
in flight: min(S - s, M) if nothing else is said. With more of them, as eager 1F1B has with 2 (S - s) - 1 (Zhuang
et al., MLSys 2023, arXiv 2211.05322), transfers are hidden for more memory; with M at every stage the order is
that of GPipe. Bubble of uniform stages: that of GPipe, (S - 1) / (M + S - 1) of the total, with min(S - s, M) and
with M; only the memory is less.
Source: PipeDream-Flush (Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021) and
Megatron-LM (SC'21, arXiv 2104.04473, §2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pipecut.formulation.schedules.table import (
    Kind,
    PipelineSchedule,
    ScheduleError,
    check_number,
    in_slots,
    one_rank_each,
    run,
)


def one_f_one_b(stages: int, micro_batches: int, warm_ups: Sequence[int] = ()) -> PipelineSchedule:
    """Return the 1F1B schedule of one optimiser step; ``warm_ups[s]`` are the w_s of stage s.

    Raises ScheduleError for sizes below 1, and for warm-ups that no order has (``Plan.warm_ups``).
    """
    check_number(stages, micro_batches)
    known = list(warm_ups) or [stages - stage for stage in range(stages)]
    if len(known) != stages or known[-1] < 1 or any(one < other for one, other in pairwise(known)):
        raise ScheduleError(
            f"warm-ups {known} of {stages} stages: expected one each, 1 or more, none above the one before it"
        )
    every = np.arange(micro_batches)
    rows = []
    for stage, warm_up in enumerate(known):
        forward = run(Kind.FORWARD, stage, every, 2 * (every - min(warm_up - 1, micro_batches)))
        rows.append((forward, run(Kind.BACKWARD, stage, every, 2 * every + 1)))
    return in_slots("one_f_one_b", rows, micro_batches=micro_batches, stage_ranks=one_rank_each(stages))
