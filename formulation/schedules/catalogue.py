"""The order of passes that each option of a training names."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import PipelineSchedule, ScheduleError
from pipecut.formulation.schedules.zero_bubble_v import zero_bubble_v


def schedule_of(
    training: Training, stages: int, steps: int = 1, *, warm_ups: Sequence[int] = ()
) -> PipelineSchedule:
    """Return the order of so many steps of a training, without a break; a group may hold several of the stages.

    ``warm_ups`` are those of a plan under 1F1B; without them the training's own. Raises ScheduleError where stages
    do not divide into the chunks of groups, or micro-batches into rounds.
    """
    micro_batches = training.micro_batches * steps
    if training.warms_up:
        return one_f_one_b(stages, micro_batches, warm_ups or training.warm_ups(stages))
    if stages % training.chunks:
        raise ScheduleError(f"the plan has {stages} stages, no multiple of training.chunks {training.chunks}")
    return in_chunks(training.schedule, training.ranks(stages), training.chunks, micro_batches)


def in_chunks(schedule: Schedule, ranks: int, chunks: int, micro_batches: int) -> PipelineSchedule:
    """Return the order of one step of so many groups that hold so many stages. Raises as those schedules do.

    Of groups that hold one stage the function and module of the schedule's name say it. Two versions of weights
    change what is kept, and no order.
    """
    if schedule.in_a_v:
        return zero_bubble_v(ranks, micro_batches)
    if chunks > 1:
        return interleaved(ranks, chunks, micro_batches)
    name = Schedule.ASYNC_ONE_F_ONE_B if schedule is Schedule.DOUBLE_BUFFERED else schedule
    module = importlib.import_module(f"{__package__}.{name}")
    return getattr(module, name)(ranks, micro_batches)
