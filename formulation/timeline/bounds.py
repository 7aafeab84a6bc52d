"""What a step takes at least, and of uniform stages exactly, without executing it.

S stages, M micro-batches; ``f_s`` and ``b_s`` are the forward and backward times of stage s (the latter with what
is computed again). Transfers do not wait for each other, and run beside computation. What papers say of schedules
stands in ``report.theory``.
"""

from __future__ import annotations

from itertools import accumulate

from formulation.timeline.durations import Durations


def uniform_iteration_ns(
    ranks: int, micro_batches: int, forward_ns: int, backward_ns: int, chunks: int = 1
) -> int:
    """Return the iteration time of uniform stages, (v m + p - 1) (f + b).

    Exact for GPipe and 1F1B (v = 1) and interleaved 1F1B, whose stages are 1/v as long. Source: Megatron-LM, arXiv
    2104.04473, §2.2.
    """
    return (chunks * micro_batches + ranks - 1) * (forward_ns + backward_ns)


def iteration_lower_bound_ns(durations: Durations, micro_batches: int) -> int:
    """Return a lower bound of the iteration time of stages on devices of their own, with whole backward passes.

    The larger of the latency and, over stages s, fill + M (f_s + b_s) + drain: stage s cannot begin before its
    first activation has come through all stages before it, nor the step end before its last gradient has gone back
    through them. Equal to the iteration time for uniform stages without transfers. Where ``I`` and ``W`` are apart
    (zero bubble), gradients travel on before ``B`` would be done, and a step can be shorter.
    """
    passes = [f + b for f, b in zip(durations.forward_ns, durations.whole_backward_ns, strict=True)]
    boundaries = [a + g for a, g in zip(durations.activation_ns, durations.gradient_ns, strict=True)]
    around = accumulate((p + t for p, t in zip(passes, boundaries, strict=False)), initial=0)
    busy = max(before + micro_batches * own for before, own in zip(around, passes, strict=True))
    return max(busy, durations.latency_ns)
