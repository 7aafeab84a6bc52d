"""ZB-H1: 1F1B with the two gradients apart, and the weight gradients put into the bubbles.

::

    rank 0  F0 F1 F2 F3 .  .  .  I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5
    rank 1  .  F0 F1 F2 .  .  I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 I4 W3 I5 W4 W5
    rank 2  .  .  F0 F1 .  I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 I5 W3 W4 W5
    rank 3  .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5

The order of F and I is that of 1F1B; stage ``s`` does the weight gradient of micro-batch ``k`` right after the
input gradient of micro-batch ``k + s``, and the rest at the end. So stage before stage gets its gradient without
waiting for a weight gradient, and every stage has at most S micro-batches not yet done with, as many as stage 0
of 1F1B: no device keeps activations of more, while later stages keep more than under 1F1B. Gradients of outputs
that wait for W come on top, of up to s + 1 micro-batches at stage s. In flight between F and I: min(S - s, M), as
in 1F1B; between F and W: min(S, M). Bubble of uniform stages with passes of F, I, W: (S - 1) (F + I - W) a device,
against (S - 1) (F + I + W) of 1F1B, as long as W is not longer than F or I and M is at least S. Source: Qi et al.,
"Zero Bubble Pipeline Parallelism" (arXiv 2401.10241, §2.1 and Table 2), who call the input gradient B.
"""

from __future__ import annotations

import numpy as np

from pipecut.formulation.schedules.table import Kind, PipelineSchedule, check_number, in_slots, one_rank_each, run


def zero_bubble_h1(stages: int, micro_batches: int) -> PipelineSchedule:
    """Return the ZB-H1 schedule of one optimiser step. Raises ScheduleError for sizes below 1."""
    check_number(stages, micro_batches)
    every = np.arange(micro_batches)
    rows = []
    for stage in range(stages):
        warmup = min(stages - stage - 1, micro_batches)
        forward = run(Kind.FORWARD, stage, every, 3 * (every - warmup))
        inputs = run(Kind.INPUT_GRADIENT, stage, every, 3 * every + 1)
        weights = run(Kind.WEIGHT_GRADIENT, stage, every, 3 * (every + stage) + 2)
        rows.append((forward, inputs, weights))
    return in_slots("zero_bubble_h1", rows, micro_batches=micro_batches, stage_ranks=one_rank_each(stages))
