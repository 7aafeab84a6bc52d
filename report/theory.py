"""What theory says of a schedule without executing it: bubbles, iteration times, periods, micro-batches in flight.

Each function names its source and where it holds; a test compares it with the timeline, with ``==`` where it is
exact and with an inequality where it is a bound. S stages, M micro-batches; ``f_s`` and ``b_s`` are the forward
and backward times of stage s (the latter with recomputation), ``a_s`` and ``g_s`` the transfers of activation
and gradient over the boundary behind it, all without contention and overlapped with computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from formulation.problem.units import ceil_div
from formulation.timeline.durations import Durations


def gpipe_bubble(stages: int, micro_batches: int) -> Fraction:
    """Return idle over *total* device time of uniform stages, (S - 1) / (M + S - 1).

    Exact for GPipe and 1F1B. Source: GPipe, arXiv 1811.06965, §2.3.
    """
    return Fraction(stages - 1, micro_batches + stages - 1)


def zero_bubble_h1_iteration_ns(
    stages: int, micro_batches: int, forward_ns: int, input_gradient_ns: int, weight_gradient_ns: int
) -> int:
    """Return the iteration time of uniform stages under ZB-H1, M (F + I + W) + (S - 1) (F + I - W).

    Exact if W is not longer than F, nor than I, and M is at least S. Source: arXiv 2401.10241, Table 2.
    """
    ideal = micro_batches * (forward_ns + input_gradient_ns + weight_gradient_ns)
    return ideal + (stages - 1) * (forward_ns + input_gradient_ns - weight_gradient_ns)


def naive_iteration_ns(durations: Durations, micro_batches: int) -> int:
    """Return the iteration time without a pipeline, M times the latency. Exact for any stages."""
    return micro_batches * durations.latency_ns


def gpipe_iteration_ns(durations: Durations, micro_batches: int) -> int:
    """Return GPipe's iteration time: the latency, and M - 1 times the slowest forward and slowest backward pass.

    Exact for any stages: each half is a flow shop of equal jobs, which is paced by its slowest machine, and no
    backward pass can start before the last stage has done all forward passes.
    """
    slowest = max(durations.forward_ns) + max(durations.whole_backward_ns)
    return durations.latency_ns + (micro_batches - 1) * slowest


def iteration_upper_bound_ns(durations: Durations, micro_batches: int) -> int:
    """Return an upper bound of the iteration time of GPipe and 1F1B with uneven stages, and no other warm-ups.

    (M + S - 1) (max f + max a + max b + max g): as if every stage were as slow as the slowest in either direction
    and also spent the transfers itself; longer passes never make a fixed order faster.
    """
    slowest = max(durations.forward_ns) + max(durations.whole_backward_ns)
    slowest += max(durations.activation_ns, default=0) + max(durations.gradient_ns, default=0)
    return (micro_batches + durations.stages - 1) * slowest


def one_f_one_b_period_ns(durations: Durations, warm_ups: Sequence[int] = ()) -> Fraction:
    """Return the period of 1F1B, with or without a flush, far from both ends of a long run.

    The largest average over runs of neighbouring stages s..q: (sum of f + b of the stages + sum of a + g of the
    boundaries between them) / (q - s + 1). It is the maximum cycle mean of the order of actions: going down from
    F at s to F at q, to the B that follows there, and up to B at s, one comes to the micro-batch q - s + 1 after
    the first; no other simple cycle exists. With ``warm_ups`` w it is the one w_s - w_q + 1 after it. Without
    transfers classic warm-ups have the slowest stage, PipeDream's formula
    (arXiv 1806.03377, §3.2); with them it is more than the larger of stage and transfer that PipeDream and
    ``formulation.evaluate`` charge, since 1F1B has too few micro-batches in flight to hide them. Cost: quadratic.
    """
    passes = [f + b for f, b in zip(durations.forward_ns, durations.whole_backward_ns, strict=True)]
    boundaries = [a + g for a, g in zip(durations.activation_ns, durations.gradient_ns, strict=True)]
    warm = list(warm_ups) or [durations.stages - stage for stage in range(durations.stages)]
    best = Fraction(0)
    for first in range(durations.stages):
        total = 0
        for last in range(first, durations.stages):
            total += passes[last] + (boundaries[last - 1] if last > first else 0)
            best = max(best, Fraction(total, warm[first] - warm[last] + 1))
    return best


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


def zero_bubble_h1_in_flight(stages: int, stage: int, micro_batches: int) -> tuple[int, int]:
    """Return the most micro-batches in flight at a stage of ZB-H1 until ``I``, and until ``W``.

    min(S - s, M), as in 1F1B, and min(S, M): the same at every stage (arXiv 2401.10241, §2.1).
    """
    return min(stages - stage, micro_batches), min(stages, micro_batches)


def zero_bubble_v_iteration_ns(ranks: int, micro_batches: int, pass_ns: int) -> int:
    """Return the iteration time of ZB-V where every pass of either chunk, F, I and W, takes as long.

    6 M + P - 1 of them with M of at least 2 P - 1: a rank stands still for none of them, and the last one begins
    P - 1 of them later than the first (arXiv 2401.10241, §6). With fewer 6 M + 4 P - 2 - 2 M, if that is more.
    """
    return (6 * micro_batches + max(ranks - 1, 4 * ranks - 2 - 2 * micro_batches)) * pass_ns


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
