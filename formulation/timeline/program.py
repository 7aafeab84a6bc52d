"""A schedule made ready to execute: entries in queues, each with a duration and what it waits for.

Every rank is a queue of its actions. Synchronisations and optimiser steps are entries of further queues behind
them (``formulation.timeline.updates``), so that whatever executes a program knows only this: a queue does its
entries in order, one at a time; an entry starts when the queue is free, the *message* it needs has arrived, and
the entry that *gates* it has stopped and freed its device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from formulation.schedules.actions import Kind
from formulation.schedules.dependencies import NONE, dependencies, rank_of_actions
from formulation.schedules.table import Integers, PipelineSchedule
from formulation.schedules.validate import DeadlockError, check_complete, check_order, deadlock
from formulation.timeline.durations import Durations, Execution
from formulation.timeline.updates import Updates, updates_of

LETTERS = (*(kind.letter for kind in Kind), "S", "U", "J")
"""Labels of entries by code: actions, synchronisation, update by the optimiser, wait for (join) replicas."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Entries in order of queue, then of execution. The first are the actions of the schedule, in its order.

    Queue ``q`` is ``offsets[q]:offsets[q + 1]``; the first queues are the ranks. ``needs[i]`` is the entry whose
    message entry ``i`` waits for, ``gate[i]`` one whose end it waits for (NONE: nothing). ``message_ns[i]`` and
    ``link[i]`` tell of the message that entry ``i`` sends when it stops; ``link`` is NONE where it sends nothing.
    """

    schedule: PipelineSchedule
    durations: Durations
    execution: Execution
    offsets: tuple[int, ...]
    queue_rank: tuple[int, ...]
    stage: Integers
    kind: Integers
    micro_batch: Integers
    duration: Integers
    needs: Integers
    gate: Integers
    message_ns: Integers
    link: Integers

    def __len__(self) -> int:
        return len(self.kind)

    def queue_of(self, index: int) -> int:
        """Return the queue of an entry."""
        return int(np.searchsorted(np.asarray(self.offsets), index, side="right")) - 1

    def letter(self, index: int) -> str:
        """Return the letter of an entry: that of its action, S (synchronisation), U (update) or J (join)."""
        return LETTERS[int(self.kind[index])]

    def label(self, index: int) -> str:
        """Return the token of an entry: stage, letter, micro-batch."""
        return f"{self.stage[index]}{self.letter(index)}{self.micro_batch[index]}"

    def stuck(self, cursor: list[int]) -> DeadlockError:
        """Return the error for queues that cannot go on from where they stand."""
        return deadlock(
            cursor,
            self.offsets[1:],
            lambda index: (int(self.needs[index]), int(self.gate[index])),
            self.queue_of,
            self.label,
            lambda queue: "the network" if self.queue_rank[queue] == NONE else f"rank {self.queue_rank[queue]}",
        )


def compile_program(schedule: PipelineSchedule, durations: Durations, execution: Execution) -> Program:
    """Make a schedule ready to execute. Cost: linear in actions.

    Raises ScheduleError for actions that are missing, repeated or misplaced, DeadlockError where a rank does an
    action before what it needs, ValueError for durations of another number of stages.
    """
    if durations.stages != schedule.stages:
        raise ValueError(f"durations of {durations.stages} stages for a schedule of {schedule.stages}")
    check_complete(schedule)
    needs = dependencies(schedule)
    ranks = rank_of_actions(schedule)
    index = np.arange(len(schedule))
    same_rank = ranks[needs] == ranks
    if np.any(same_rank & (needs > index)):
        check_order(schedule)
    # What stands earlier in the same row is done anyway; only messages of other ranks are worth waiting for.
    needs[same_rank] = NONE
    message_ns, link = _messages(schedule, durations, needs)
    updates = updates_of(schedule, durations, execution)
    return _assembled(schedule, durations, execution, (needs, message_ns, link), updates)


def _messages(schedule: PipelineSchedule, durations: Durations, needs: Integers) -> tuple[Integers, Integers]:
    """Return transfer time and link of the message that each action sends; NONE where it sends nothing."""
    sends = needs[needs != NONE]
    stage = schedule.stage[sends]
    is_forward = schedule.kind[sends] == Kind.FORWARD
    message_ns = np.zeros(len(schedule), dtype=np.int64)
    link = np.full(len(schedule), NONE, dtype=np.int64)
    for chosen, boundary, times, links in (
        (is_forward, stage, durations.activation_ns, durations.activation_link),
        (~is_forward, stage - 1, durations.gradient_ns, durations.gradient_link),
    ):
        message_ns[sends[chosen]] = np.array(times, dtype=np.int64)[boundary[chosen]]
        link[sends[chosen]] = np.array(links, dtype=np.int64)[boundary[chosen]]
    link[message_ns == 0] = NONE
    return message_ns, link


def _assembled(
    schedule: PipelineSchedule,
    durations: Durations,
    execution: Execution,
    columns: tuple[Integers, Integers, Integers],
    updates: Updates,
) -> Program:
    """Put the queues of the updates behind those of the ranks."""
    needs, message_ns, link = columns
    extra = len(updates.kind)
    none, zero = np.full(extra, NONE, dtype=np.int64), np.zeros(extra, dtype=np.int64)
    return Program(
        schedule=schedule,
        durations=durations,
        execution=execution,
        offsets=(*schedule.offsets, *updates.stops),
        queue_rank=(*range(schedule.ranks), *updates.ranks),
        stage=np.concatenate([schedule.stage, updates.stage]),
        kind=np.concatenate([schedule.kind, updates.kind]),
        micro_batch=np.concatenate([schedule.micro_batch, updates.micro_batch]),
        duration=np.concatenate([_action_ns(schedule, durations), updates.duration]),
        needs=np.concatenate([needs, none]),
        gate=np.concatenate([updates.action_gate, updates.gate]),
        message_ns=np.concatenate([message_ns, zero]),
        link=np.concatenate([link, none]),
    )


def _action_ns(schedule: PipelineSchedule, durations: Durations) -> Integers:
    """Return the time of every action; a stage that recomputes does so before B or I."""
    recompute = np.array(durations.recompute_ns, dtype=np.int64)
    table = np.stack(
        [
            np.array(durations.forward_ns, dtype=np.int64),
            np.array(durations.backward_ns, dtype=np.int64) + recompute,
            np.array(durations.input_gradient_ns, dtype=np.int64) + recompute,
            np.array(durations.weight_gradient_ns, dtype=np.int64),
        ]
    )
    return table[schedule.kind, schedule.stage]
