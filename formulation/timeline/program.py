"""A schedule made ready to execute: entries in queues, each with a duration and what it waits for.

Every rank is a queue of its actions. Synchronisations and optimiser steps are entries of further queues behind
them (``formulation.timeline.program``), so that whatever executes a program knows only this: a queue does its
entries in order, one at a time; an entry starts when the queue is free, the *message* it needs has arrived, and
the entry that *gates* it has stopped and freed its device.

Weight updates: when gradients are synchronised and the optimiser runs, as queues behind those of the ranks.

With a flush a step ends with one update. The gradients of a stage are synchronised once all its replicas have
done their last backward pass (with ``overlap_sync``) or all their work (without); stages on the same devices take
turns, in the order in which they get ready. The optimiser runs on the device after all its actions.

Without a flush every replica updates its weights after each ``updates_every`` backward passes. All replicas of a
stage take part, so one waits for the others. Without overlap its device stands still meanwhile. With overlap it
goes on with the weights that it has, gathering gradients in a second buffer; only the first backward pass of the
round after that waits until the first buffer is free. So the period of a stage of R replicas is the larger of
computation and synchronisation, over R, as in PipeDream's formula (arXiv 1806.03377, §3.2). The time of the
optimiser counts as part of the synchronisation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipecut.formulation.schedules.table import (
    NONE,
    DeadlockError,
    Integers,
    Kind,
    PipelineSchedule,
    check_complete,
    check_order,
    deadlock,
    dependencies,
    positions,
    rank_of_actions,
)
from pipecut.formulation.timeline.durations import Durations, Execution

SYNC, OPTIMIZER, JOIN = range(len(Kind), len(Kind) + 3)
"""Codes of the entries of updates, after those of kinds of actions. JOIN takes no time: it waits for a gate."""


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """Entries of the update queues, as columns, and the gates that they put before actions.

    ``stops`` are the ends of the queues among all entries; ``ranks`` the rank that each queue works for, NONE for
    a synchronisation, which belongs to the network.
    """

    stops: tuple[int, ...]
    ranks: tuple[int, ...]
    stage: Integers
    kind: Integers
    micro_batch: Integers
    duration: Integers
    gate: Integers
    action_gate: Integers


@dataclass(slots=True)
class _Writer:
    """Collects entries queue by queue, as blocks of columns (stage, kind, micro-batch, duration, gate)."""

    next_index: int
    blocks: list[Integers]
    stops: list[int]
    ranks: list[int]

    def put(self, stage: int, kind: int, micro_batch: int, duration: int = 0, gate: int = NONE) -> int:
        """Add an entry to the open queue and return its index among all entries."""
        return self.put_all(np.array([[stage], [kind], [micro_batch], [duration], [gate]], dtype=np.int64))

    def put_all(self, block: Integers) -> int:
        """Add entries to the open queue and return the index of the first."""
        self.blocks.append(block)
        self.next_index += block.shape[1]
        return self.next_index - block.shape[1]

    def close(self, rank: int) -> None:
        """End the open queue."""
        self.stops.append(self.next_index)
        self.ranks.append(rank)

    def updates(self, action_gate: Integers) -> Updates:
        """Return everything collected as columns."""
        table = np.concatenate([np.zeros((5, 0), dtype=np.int64), *self.blocks], axis=1)
        stage, kind, micro_batch, duration, gate = table
        return Updates(tuple(self.stops), tuple(self.ranks), stage, kind, micro_batch, duration, gate, action_gate)


def updates_of(schedule: PipelineSchedule, durations: Durations, execution: Execution) -> Updates:
    """Return the updates of a schedule; none where they take no time. Cost: linear in actions."""
    writer = _Writer(len(schedule), [], [], [])
    gates = np.full(len(schedule), NONE, dtype=np.int64)
    if schedule.flush:
        _flush(schedule, durations, execution, writer)
    else:
        weights = positions(schedule, Kind.BACKWARD, Kind.WEIGHT_GRADIENT)
        for stage, times in enumerate(zip(durations.sync_ns, durations.optimizer_ns, strict=True)):
            if sum(times):
                _rounds(schedule, execution, stage, sum(times), weights[stage], writer, gates)
    return writer.updates(gates)


def _flush(schedule: PipelineSchedule, durations: Durations, execution: Execution, writer: _Writer) -> None:
    """Write one update: a queue for each set of devices that synchronise, then the optimiser of each rank."""
    ends = _last_backward(schedule)
    synced: dict[int, int] = {}
    for ranks in dict.fromkeys(schedule.stage_ranks):
        stages = [stage for stage in ends if schedule.stage_ranks[stage] == ranks and durations.sync_ns[stage]]
        for stage in sorted(stages, key=lambda one: min(ends[one].items())[1]):
            waits = [
                end if execution.overlap_sync else schedule.offsets[rank + 1] - 1
                for rank, end in ends[stage].items()
            ]
            for gate in waits[:-1]:
                writer.put(stage, JOIN, schedule.micro_batches - 1, 0, gate)
            synced[stage] = writer.put(
                stage, SYNC, schedule.micro_batches - 1, durations.sync_ns[stage], waits[-1]
            )
        if stages:
            writer.close(NONE)
    for rank in range(schedule.ranks):
        _optimise(schedule, durations, execution, rank, [one for one in ends if rank in ends[one]], synced, writer)


def _optimise(
    schedule: PipelineSchedule,
    durations: Durations,
    execution: Execution,
    rank: int,
    stages: list[int],
    synced: dict[int, int],
    writer: _Writer,
) -> None:
    """Write the optimiser of a rank, behind its actions, each stage behind its synchronisation and in that order.

    Without overlap the device stands still for all its synchronisations before.
    """
    last = schedule.micro_batches - 1
    if not any(durations.optimizer_ns[stage] for stage in stages):
        return
    writer.put(stages[0], JOIN, last, 0, schedule.offsets[rank + 1] - 1)
    in_turn = sorted(stages, key=lambda stage: synced.get(stage, NONE))
    if not execution.overlap_sync:
        for stage in in_turn:
            writer.put(stage, JOIN, last, 0, synced.get(stage, NONE))
    for stage in in_turn:
        if durations.optimizer_ns[stage]:
            writer.put(stage, OPTIMIZER, last, durations.optimizer_ns[stage], synced.get(stage, NONE))
    writer.close(rank)


def _last_backward(schedule: PipelineSchedule) -> dict[int, dict[int, int]]:
    """Return, by stage and rank, the index of the last action that adds to the weight gradient."""
    ends: dict[int, dict[int, int]] = {stage: {} for stage in range(schedule.stages)}
    index = np.flatnonzero(np.isin(schedule.kind, (Kind.BACKWARD, Kind.WEIGHT_GRADIENT)))
    pair = schedule.stage[index] * schedule.ranks + rank_of_actions(schedule)[index]
    found, from_end = np.unique(pair[::-1], return_index=True)
    for key, place in zip(found.tolist(), from_end.tolist(), strict=True):
        ends[key // schedule.ranks][key % schedule.ranks] = int(index[len(index) - 1 - place])
    return ends


def _rounds(
    schedule: PipelineSchedule,
    execution: Execution,
    stage: int,
    duration_ns: int,
    weights: Integers,
    writer: _Writer,
    gates: Integers,
) -> None:
    """Write the updates of one stage, round by round, and the gates before the actions that wait for them.

    ``weights[m]`` is the action that completes the weight gradient of micro-batch m.
    """
    replicas, total = len(schedule.stage_ranks[stage]), schedule.micro_batches
    size = replicas * execution.updates_every
    every = np.arange(total)
    place = every % size
    closes = (place == size - 1) | (every == total - 1)
    block = np.stack([np.full(total, stage), np.where(closes, SYNC, JOIN), every, closes * duration_ns, weights])
    first = writer.put_all(block)
    writer.close(NONE)
    if execution.overlap_sync:
        waiting = every[(every >= 2 * size) & (place < replicas)]
        gates[weights[waiting]] = first + (waiting // size - 1) * size - 1
    else:
        finished = every[place >= size - replicas]
        after = weights[finished] + 1
        row_ends = np.isin(after, schedule.offsets)
        gates[after[~row_ends]] = first + np.minimum((finished[~row_ends] // size + 1) * size, total) - 1


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
