"""The schedule that each option of a training names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.schedules.async_one_f_one_b import async_one_f_one_b
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.naive import naive
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import PipelineSchedule, ScheduleError
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from pipecut.formulation.schedules.zero_bubble_v import zero_bubble_v

SCHEDULES: Mapping[Schedule, Callable[[int, int], PipelineSchedule]] = MappingProxyType(
    {
        Schedule.NAIVE: naive,
        Schedule.GPIPE: gpipe,
        Schedule.ZERO_BUBBLE_H1: zero_bubble_h1,
        Schedule.ASYNC_ONE_F_ONE_B: async_one_f_one_b,
        Schedule.DOUBLE_BUFFERED: async_one_f_one_b,
    }
)
"""Builders by option, for stages on devices of their own: stages and micro-batches in, schedule out."""


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
    if training.chunks == 1:
        return SCHEDULES[training.schedule](stages, micro_batches)
    if stages % training.chunks:
        raise ScheduleError(f"the plan has {stages} stages, no multiple of training.chunks {training.chunks}")
    return in_chunks(training.schedule, training.ranks(stages), training.chunks, micro_batches)


def in_chunks(schedule: Schedule, ranks: int, chunks: int, micro_batches: int) -> PipelineSchedule:
    """Return the order of one step of so many groups that hold several stages. Raises as those schedules do."""
    if schedule.in_a_v:
        return zero_bubble_v(ranks, micro_batches)
    return interleaved(ranks, chunks, micro_batches)
