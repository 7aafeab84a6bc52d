"""The schedule that each option of a training names, for stages on devices of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from formulation.problem.options import Schedule
from formulation.schedules.async_one_f_one_b import async_one_f_one_b
from formulation.schedules.gpipe import gpipe
from formulation.schedules.naive import naive
from formulation.schedules.one_f_one_b import one_f_one_b
from formulation.schedules.table import PipelineSchedule

__all__ = ["SCHEDULES"]

SCHEDULES: Mapping[Schedule, Callable[[int, int], PipelineSchedule]] = MappingProxyType(
    {
        Schedule.NAIVE: naive,
        Schedule.GPIPE: gpipe,
        Schedule.ONE_F_ONE_B: one_f_one_b,
        Schedule.ASYNC_ONE_F_ONE_B: async_one_f_one_b,
        Schedule.DOUBLE_BUFFERED: async_one_f_one_b,
    }
)
"""Builders by option: stages and micro-batches in, schedule out."""
