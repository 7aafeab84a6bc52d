"""docs/formulation.md, "Memory of a stage"."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from formulation.problem.layers import Split
from formulation.problem.options import Schedule
from tests.formulation.page.stages import PricedStage


def in_flight(schedule: Schedule, behind: int, micro_batches: int) -> int:
    """Micro-batches in flight at a stage; ``behind`` is S - s."""
    return {
        Schedule.NAIVE: 1,
        Schedule.GPIPE: micro_batches,
        Schedule.ONE_F_ONE_B: min(behind, micro_batches),
        Schedule.ASYNC_ONE_F_ONE_B: behind,
        Schedule.DOUBLE_BUFFERED: behind,
    }[schedule]


def versions(schedule: Schedule, behind: int) -> int:
    """Versions of the weights that a stage keeps."""
    return {Schedule.ASYNC_ONE_F_ONE_B: behind, Schedule.DOUBLE_BUFFERED: 2}.get(schedule, 1)


def peak_bytes(stage: PricedStage, behind: int) -> int:
    """peak_s of a stage that is followed by ``behind - 1`` more."""
    numbers, shares, training = stage.numbers, stage.shares, stage.numbers.training
    fixed = kept = 0
    working: list[int] = []
    copies = versions(training.schedule, behind)
    flying = in_flight(training.schedule, behind, training.micro_batches)
    for layer in stage.layers:
        matrix, form = numbers.layers[layer].split is Split.MATRIX, stage.form(layer)
        held = Fraction(1) if form == 0 or (form == 1 and not matrix) else shares.shard
        taken = shares.replica if form == (2 if matrix else 1) else shares.device
        made = shares.replica if form == 1 else shares.device
        fixed += copies * ceil(held * numbers.weights[layer]) + ceil(held * numbers.gradients[layer])
        fixed += ceil(held * numbers.optimizer[layer])
        kept += ceil(taken * numbers.stash[layer])
        working.append(ceil(taken * 2 * numbers.taken[layer]) + ceil(made * 2 * numbers.made[layer]))
    received = ceil(shares.device * stage.crossing_bytes)
    return fixed + (1 if stage.again else flying) * kept + flying * received + max(working)


def capacity_bytes(stage: PricedStage) -> int:
    """Memory of the smallest device of a stage, less what is reserved."""
    return min(stage.numbers.memory[server] for server in stage.servers)
