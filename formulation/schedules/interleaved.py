"""Interleaved 1F1B: every rank holds several chunks of the model, so the pipeline fills faster.

Two ranks with two chunks each, so four stages; stage ``s`` runs on rank ``s mod ranks``; tokens are PyTorch's
(stage, kind, micro-batch)::

    rank 0  0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 .   2B2 .   2B3 0B2 0B3
    rank 1  .   1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3 .

Micro-batches go through a chunk in groups as large as the number of ranks; rank ``r`` of ``p`` warms up with
``2 (p - r - 1) + (v - 1) p`` passes over its ``v`` chunks. In flight on rank ``r``: one more than its warm-up, at
most ``m v``, each of 1/v of the layers, so rank 0 keeps 1 + (p - 1) / (p v) times the memory of 1F1B. Bubble of
uniform stages relative to ideal: (p - 1) / (v m). Source: Megatron-LM (SC'21, arXiv 2104.04473, §2.2) and its
``schedules.py``; Korthikanti et al. (arXiv 2205.05198) for the memory.
"""

from __future__ import annotations

import numpy as np

from pipecut.formulation.schedules.table import (
    Kind,
    PipelineSchedule,
    ScheduleError,
    check_number,
    check_sizes,
    in_slots,
    run,
)


def interleaved(ranks: int, chunks: int, micro_batches: int) -> PipelineSchedule:
    """Return Megatron's interleaved 1F1B schedule of ``ranks * chunks`` stages.

    Raises ScheduleError for sizes below 1, and unless ``micro_batches`` is a multiple of ``ranks``.
    """
    check_sizes(ranks=ranks, chunks=chunks, micro_batches=micro_batches)
    check_number(ranks * chunks, micro_batches)
    if micro_batches % ranks:
        above = micro_batches + ranks - micro_batches % ranks
        raise ScheduleError(
            f"interleaved 1F1B on {ranks} ranks needs a multiple of {ranks} micro-batches, got {micro_batches}; "
            f"the next is {above}"
        )
    every = np.arange(micro_batches * chunks)
    group, inside = np.divmod(every, ranks * chunks)
    chunk, place = np.divmod(inside, ranks)
    micro_batch = group * ranks + place
    rows = []
    for rank in range(ranks):
        warmup = min(2 * (ranks - rank - 1) + (chunks - 1) * ranks, len(every))
        forward = run(Kind.FORWARD, chunk * ranks + rank, micro_batch, 2 * (every - warmup))
        backward = run(Kind.BACKWARD, (chunks - 1 - chunk) * ranks + rank, micro_batch, 2 * every + 1)
        rows.append((forward, backward))
    placement = [(stage % ranks,) for stage in range(ranks * chunks)]
    return in_slots("interleaved", rows, micro_batches=micro_batches, stage_ranks=placement)
