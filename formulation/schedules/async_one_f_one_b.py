"""1F1B without a flush, with replicated stages: PipeDream's 1F1B-RR.

Two replicas of stage 0 (ranks 0 and 1) before one of stage 1 (rank 2), passes twice as long at stage 0::

    rank 0  F0 -- F2 -- B0 -- F4 -- B2 -- F6 -- B4 -- .  .  B6 -- .  .
    rank 1  F1 -- F3 -- .  .  B1 -- F5 -- B3 -- F7 -- B5 -- .  .  B7 --
    rank 2  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 .  .

With one replica each the order is that of 1F1B, over as many steps as one likes: nothing drains in between.
Replica ``r`` of ``R`` takes the micro-batches ``r, r + R, r + 2 R, ...``, forward and backward. A replica of
stage ``s`` keeps ceil((devices of the stages from s on) / R) micro-batches in flight, S - s without replication;
at the input stage this is NOAM. Every micro-batch in flight keeps the weights it was forwarded with (weight
stashing). The bubble is only at both ends of the run; in between the slowest stage sets the period, the largest
(f + b) / replicas, unless slow transfers (``report.simulation.one_f_one_b_period_ns``) or unlucky replica counts
make it longer. Source: PipeDream (arXiv 1806.03377, §3.3 and 3.4; SOSP 2019).
"""

from __future__ import annotations

from collections.abc import Sequence

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


def async_one_f_one_b(stages: int, micro_batches: int, replicas: Sequence[int] | None = None) -> PipelineSchedule:
    """Return 1F1B over a run of many micro-batches; ``replicas[s]`` of stage ``s`` (default: one each).

    Ranks are numbered stage by stage. Raises ScheduleError for sizes below 1 or another number of replicas
    than of stages.
    """
    check_number(stages, micro_batches)
    counts = [1] * stages if replicas is None else list(replicas)
    if len(counts) != stages:
        raise ScheduleError(f"{len(counts)} replica counts for {stages} stages")
    check_sizes(**{f"replicas of stage {stage}": count for stage, count in enumerate(counts)})
    rows = []
    placement: list[tuple[int, ...]] = []
    for stage, count in enumerate(counts):
        warmup = in_flight_of_replica(counts, stage) - 1
        for replica in range(count):
            own = np.arange(replica, micro_batches, count)
            every = np.arange(len(own))
            forward = run(Kind.FORWARD, stage, own, 2 * (every - min(warmup, len(own))))
            rows.append((forward, run(Kind.BACKWARD, stage, own, 2 * every + 1)))
        placement.append(tuple(range(len(rows) - count, len(rows))))
    return in_slots("async_one_f_one_b", rows, micro_batches=micro_batches, stage_ranks=placement, flush=False)


def in_flight_of_replica(replicas: Sequence[int], stage: int) -> int:
    """Return how many micro-batches a replica of a stage keeps in flight; at stage 0 this is NOAM.

    ceil(devices from this stage on / devices of this stage) (arXiv 1806.03377, §3.3).
    """
    return -(-sum(replicas[stage:]) // replicas[stage])
