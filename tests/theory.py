"""What papers say of schedules beside what pages show (``report.simulation``)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from pipecut.formulation.problem.units import ceil_div
from pipecut.formulation.timeline.durations import Durations
from pipecut.formulation.timeline.measures import TimelineMeasures
from pipecut.formulation.timeline.timeline import Timeline


def pipedream_period_ns(durations: Durations, replicas: Sequence[int]) -> Fraction:
    """Return a lower bound of the period of 1F1B-RR: the largest (f + b) / replicas of any stage.

    PipeDream's formula without synchronisation (arXiv 1806.03377, §3.2). Reached by most replications, not by all:
    round-robin order and rounding the micro-batches in flight up per replica may leave devices waiting.
    """
    passes = zip(durations.forward_ns, durations.whole_backward_ns, replicas, strict=True)
    return max(Fraction(forward + backward, count) for forward, backward, count in passes)


def interleaved_in_flight(ranks: int, chunks: int, micro_batches: int, rank: int) -> int:
    """Return the most passes in flight on a rank of interleaved 1F1B, all its chunks together.

    One more than the warm-up: min(2 (p - r - 1) + (v - 1) p + 1, m v), each of 1/v of the layers of the rank. On
    rank 0 this is p v (1 + (p - 1) / (p v)), Korthikanti et al.'s factor on 1F1B (arXiv 2205.05198, §4.2.3).
    """
    return min(2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1, micro_batches * chunks)


def zero_bubble_v_in_flight(ranks: int, micro_batches: int, rank: int) -> int:
    """Return the most passes in flight on a rank of ZB-V until ``W``, both its chunks together.

    min(2 P, 2 M, M + r + 1), each of half of the layers of the rank: what the first stage of 1F1B keeps.
    """
    return min(2 * ranks, 2 * micro_batches, micro_batches + rank + 1)


def noam(replicas: Sequence[int]) -> int:
    """Return PipeDream's number of active minibatches for each replica of the input stage.

    ceil(devices / devices of the input stage) (arXiv 1806.03377, §3.3).
    """
    return ceil_div(sum(replicas), replicas[0])


def idle_of_ideal(timeline: Timeline) -> Fraction:
    """Return idle device time over the time without idling, of a run that takes time: Megatron-LM's convention."""
    idle = TimelineMeasures(timeline).bubble_of_total
    return idle / (1 - idle)
