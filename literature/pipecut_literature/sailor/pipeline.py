"""1F1B as DeepSpeed executes it: a send and its receive are one event that holds both devices.

``torch.distributed.send`` and ``recv`` put a kernel on each device, in order with its passes; a message passes
when both have come to it, and neither computes meanwhile. Between two passes a device first hands on what it
has made, then takes what it needs, except before a forward pass that follows a backward pass, where it takes
first, as its partner of that moment gives first (``TrainSchedule`` of DeepSpeed)::

    stage 0   F0 [a0> F1 [a1> [<g0] B0 F2 [a2> [<g1] B1 ...
    stage 1      [a0] F0 B0 [a1] [g0> F1 B1 [a2] [g1> F2 ...

The actions are those of ``schedules.one_f_one_b``; the program below puts the messages between them and is
executed by ``timeline.sweep``, like any other. A message is an entry of its own queue, which waits for the entry
before it on either side; both sides go on behind a JOIN that waits for the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import NONE, Kind, PipelineSchedule
from pipecut.formulation.timeline.durations import Durations, Execution
from pipecut.formulation.timeline.program import JOIN, SYNC, Program
from pipecut.formulation.timeline.timeline import sweep

Message = tuple[int, int, int]
"""Direction (FORWARD: an activation, BACKWARD: a gradient), boundary, micro-batch."""


def blocking_pipeline_ns(durations: Durations, micro_batches: int) -> int:
    """Return when the last pass or message of an iteration is done, in ns.

    Synchronisation and update are not part of it. Cost: linear in stages times micro-batches.
    Raises ScheduleError for less than one micro-batch.
    """
    schedule = one_f_one_b(durations.stages, micro_batches)
    return int(sweep(_program(schedule, durations)).stop_ns.max())


@dataclass(slots=True)
class _Entries:
    """Entries of a program, column by column; the queues of the ranks first."""

    stage: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    micro_batch: list[int] = field(default_factory=list)
    duration: list[int] = field(default_factory=list)
    needs: list[int] = field(default_factory=list)
    gate: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=lambda: [0])

    def put(self, stage: int, kind: int, micro_batch: int, duration: int, needs: int = NONE) -> int:
        """Add an entry to the open queue and return its index."""
        row = (stage, kind, micro_batch, duration, needs, NONE)
        columns = (self.stage, self.kind, self.micro_batch, self.duration, self.needs, self.gate)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        return len(self.stage) - 1

    def close(self) -> None:
        """End the open queue."""
        self.offsets.append(len(self.stage))


def _program(schedule: PipelineSchedule, durations: Durations) -> Program:
    """Return the actions of a schedule with its messages between them."""
    entries = _Entries()
    joins: dict[Message, list[int]] = {}
    times: dict[int, tuple[int, ...]] = {
        Kind.FORWARD: durations.forward_ns,
        Kind.BACKWARD: durations.backward_ns,
    }
    for rank in range(schedule.ranks):
        for step in _steps(schedule, rank):
            if len(step) == 2:
                kind, micro_batch = step
                entries.put(rank, kind, micro_batch, times[kind][rank])
            else:
                joins.setdefault(step, []).append(entries.put(rank, JOIN, step[2], 0))
        entries.close()
    _put_messages(entries, joins, durations)
    queues = len(entries.offsets) - 1
    columns = (entries.stage, entries.kind, entries.micro_batch, entries.duration, entries.needs, entries.gate)
    return Program(
        schedule,
        durations,
        Execution(),
        tuple(entries.offsets),
        (*range(schedule.ranks), *(NONE,) * (queues - schedule.ranks)),
        *(np.array(column, dtype=np.int64) for column in columns),
        message_ns=np.zeros(len(entries.stage), dtype=np.int64),
        link=np.full(len(entries.stage), NONE, dtype=np.int64),
    )


def _steps(schedule: PipelineSchedule, rank: int) -> Iterator[tuple[int, int] | Message]:
    """Yield the passes of a rank, as (kind, micro-batch), with the messages that it takes part in between them."""
    row = schedule.row(rank)
    passes = list(zip(schedule.kind[row].tolist(), schedule.micro_batch[row].tolist(), strict=True))
    last = schedule.stages - 1
    before: tuple[int, int] | None = None
    for step in (*passes, None):
        taken, given = _taken(step, rank, last), _given(before, rank, last)
        turned = before is not None and step is not None and (before[0], step[0]) == (Kind.BACKWARD, Kind.FORWARD)
        yield from (*taken, *given) if turned else (*given, *taken)
        if step is not None:
            yield step
        before = step


def _taken(step: tuple[int, int] | None, rank: int, last: int) -> list[Message]:
    """Return the message that a pass needs from another device."""
    if step is None or rank == (0 if step[0] == Kind.FORWARD else last):
        return []
    return [(step[0], rank - 1 if step[0] == Kind.FORWARD else rank, step[1])]


def _given(step: tuple[int, int] | None, rank: int, last: int) -> list[Message]:
    """Return the message that a pass makes for another device."""
    if step is None or rank == (last if step[0] == Kind.FORWARD else 0):
        return []
    return [(step[0], rank if step[0] == Kind.FORWARD else rank - 1, step[1])]


def _put_messages(entries: _Entries, joins: dict[Message, list[int]], durations: Durations) -> None:
    """Add the queues of the messages, one for each boundary and direction, and let both ends wait for them."""
    times: dict[int, tuple[int, ...]] = {
        Kind.FORWARD: durations.activation_ns,
        Kind.BACKWARD: durations.gradient_ns,
    }
    starts = set(entries.offsets)
    open_queue: tuple[int, int] | None = None
    for message, ends in sorted(joins.items()):
        direction, boundary, micro_batch = message
        if open_queue not in (None, (direction, boundary)):
            entries.close()
        open_queue = direction, boundary
        before = [NONE if end in starts else end - 1 for end in ends]
        entry = entries.put(boundary, SYNC, micro_batch, times[direction][boundary], before[0])
        entries.gate[entry] = before[1]
        for end in ends:
            entries.gate[end] = entry
    if open_queue is not None:
        entries.close()
