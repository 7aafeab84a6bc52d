"""The execution of a schedule: run it, and read when everything happened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from formulation.schedules.actions import Action
from formulation.schedules.dependencies import NONE
from formulation.schedules.table import PipelineSchedule
from formulation.timeline.durations import Contention, Durations, Execution
from formulation.timeline.fifo import fifo
from formulation.timeline.program import Program, compile_program
from formulation.timeline.sweep import sweep
from formulation.timeline.times import ActionTimes
from formulation.timeline.updates import JOIN

DEFAULT = Execution()


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """One thing that happened: its label, where (a rank, or a link for transfers; None: between devices), when."""

    label: str
    place: int | None
    start_ns: int
    stop_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """A program and when its entries happened: first the actions, in the order of the schedule."""

    program: Program
    times: ActionTimes

    @property
    def schedule(self) -> PipelineSchedule:
        """The schedule that was executed."""
        return self.program.schedule

    @property
    def makespan_ns(self) -> int:
        """When the last entry stops."""
        return int(self.times.stop_ns.max())

    def actions(self, rank: int) -> Iterator[tuple[Action, int, int]]:
        """Yield the actions of a rank with start and stop, in order."""
        row = self.schedule.row(rank)
        yield from zip(
            self.schedule.actions(rank),
            self.times.start_ns[row].tolist(),
            self.times.stop_ns[row].tolist(),
            strict=True,
        )

    def updates(self) -> Iterator[TimeSpan]:
        """Yield synchronisations (``0S7``: stage 0, up to micro-batch 7) and optimiser steps (``0U7``)."""
        program = self.program
        for index in range(len(self.schedule), len(program)):
            if program.kind[index] != JOIN:
                rank = program.queue_rank[program.queue_of(index)]
                place = None if rank == NONE else rank
                yield TimeSpan(
                    program.label(index), place, int(self.times.start_ns[index]), int(self.times.stop_ns[index])
                )

    def transfers(self) -> Iterator[TimeSpan]:
        """Yield the messages between devices, labelled by the action that sends them, in order of actions."""
        for index in np.flatnonzero(self.program.link != NONE).tolist():
            link, depart, arrive = (
                self.program.link[index],
                self.times.depart_ns[index],
                self.times.arrive_ns[index],
            )
            yield TimeSpan(self.program.label(index), int(link), int(depart), int(arrive))


def run(schedule: PipelineSchedule, durations: Durations, execution: Execution = DEFAULT) -> Timeline:
    """Execute a schedule. Cost: linear in actions (with contention, times the logarithm of the ranks).

    Raises ScheduleError for an incomplete schedule, DeadlockError for an impossible one, with the circle of who
    waits for whom, and ValueError for durations of another number of stages.
    """
    program = compile_program(schedule, durations, execution)
    times = fifo(program) if execution.contention is Contention.FIFO else sweep(program)
    return Timeline(program, times)
