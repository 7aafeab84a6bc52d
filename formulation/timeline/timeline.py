"""The execution of a schedule: run it, and read when everything happened.

When everything happened: what an execution hands over.

Execution with contention: links carry one message at a time, in the order in which they are asked.

Here the order of requests matters, so entries are completed in the order of time. The heap holds at most one event
for each queue (an entry about to stop, or a device about to fetch), so its size is the number of queues, and the
cost is linear in entries times the logarithm of that. Events at the same time come in the order of entries, which
is that of ranks: ties never depend on chance.

Execution without contention: every entry's times follow from those of the entries it waits for.

No clock and no event queue: each queue runs as far as it gets, and goes on when the entry it waits for is done.
Every entry is visited once, and once more if its queue had to wait there, so the cost is linear in entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from pipecut.formulation.schedules.table import NONE, Action, Integers, PipelineSchedule
from pipecut.formulation.timeline.durations import Contention, Durations, Execution, Transfers
from pipecut.formulation.timeline.program import JOIN, Program, compile_program


@dataclass(frozen=True, slots=True, eq=False)
class ActionTimes:
    """Start and stop of every entry and of the message that it sends, in ns (its stop, where it sends none).

    ``link_before[i]`` is the entry whose message used the link right before that of entry ``i``; NONE where there
    is none, or links have no contention.
    """

    start_ns: Integers
    stop_ns: Integers
    depart_ns: Integers
    arrive_ns: Integers
    link_before: Integers


UNKNOWN = -1


def fifo(program: Program) -> ActionTimes:
    """Return the times of all entries. Raises DeadlockError with the circle of who waits for whom."""
    clock = _Clock.of(program)
    for queue in range(len(clock.ends)):
        clock.advance(queue)
    while clock.events:
        now, at, fetching = heappop(clock.events)
        if fetching:
            clock.start(at, clock.send(clock.needs[at], now))
        else:
            clock.complete(at, now)
    if sum(clock.cursor) < sum(clock.ends):
        raise program.stuck(clock.cursor)
    return clock.times()


@dataclass(slots=True)
class _Clock:
    """The state of an execution at a moment: where every queue and every link stands."""

    start_ns: list[int]
    stop_ns: list[int]
    depart_ns: list[int]
    arrive_ns: list[int]
    freed_ns: list[int]
    """When the device of each entry can go on: ``stop_ns``, or ``arrive_ns`` if it stands still to send."""
    link_before: list[int]
    needs: list[int]
    gate: list[int]
    duration: list[int]
    message_ns: list[int]
    link: list[int]
    queue_of: list[int]
    cursor: list[int]
    ends: tuple[int, ...]
    free: list[int]
    transfers: Transfers
    events: list[tuple[int, int, bool]]
    """(time, entry, whether its device fetches the message that it needs; else it stops)."""
    waiting: dict[int, list[int]]
    link_free: dict[int, int]
    link_last: dict[int, int]

    @classmethod
    def of(cls, program: Program) -> _Clock:
        """Return the state before anything has happened."""
        starts, ends = program.offsets[:-1], program.offsets[1:]
        sizes = [end - start for start, end in zip(starts, ends, strict=True)]
        start_ns, stop_ns, depart_ns, arrive_ns = ([UNKNOWN] * len(program) for _ in range(4))
        return cls(
            start_ns=start_ns,
            stop_ns=stop_ns,
            depart_ns=depart_ns,
            arrive_ns=arrive_ns,
            freed_ns=arrive_ns if program.execution.transfers is Transfers.SENDER else stop_ns,
            link_before=[NONE] * len(program),
            needs=program.needs.tolist(),
            gate=program.gate.tolist(),
            duration=program.duration.tolist(),
            message_ns=program.message_ns.tolist(),
            link=program.link.tolist(),
            queue_of=[queue for queue, size in enumerate(sizes) for _ in range(size)],
            cursor=list(starts),
            ends=ends,
            free=[0] * len(ends),
            transfers=program.execution.transfers,
            events=[],
            waiting={},
            link_free={},
            link_last={},
        )

    def times(self) -> ActionTimes:
        """Return all times as arrays."""
        columns = (self.start_ns, self.stop_ns, self.depart_ns, self.arrive_ns, self.link_before)
        return ActionTimes(*(np.array(column, dtype=np.int64) for column in columns))

    def advance(self, queue: int) -> None:
        """Let a queue begin its next entry, or wait for what is not done yet."""
        at = self.cursor[queue]
        if at == self.ends[queue]:
            return
        stop_ns, now = self.stop_ns, self.free[queue]
        gated, source = self.gate[at], self.needs[at]
        for one in (gated, source):
            if one >= 0 and stop_ns[one] < 0:
                self.waiting.setdefault(one, []).append(queue)
                return
        if gated >= 0:
            now = max(now, self.freed_ns[gated])
        if source < 0:
            self.start(at, now)
        elif self.transfers is Transfers.RECEIVER and self.link[source] >= 0:
            heappush(self.events, (max(now, stop_ns[source]), at, True))
        else:
            self.start(at, max(now, self.arrive_ns[source]))

    def start(self, at: int, now: int) -> None:
        """Start an entry whose time has come."""
        self.start_ns[at] = now
        heappush(self.events, (now + self.duration[at], at, False))

    def complete(self, at: int, now: int) -> None:
        """Stop an entry, hand its message to the link, and go on with the queues that waited for it."""
        queue = self.queue_of[at]
        self.stop_ns[at] = self.depart_ns[at] = self.arrive_ns[at] = now
        if self.link[at] >= 0 and self.transfers is not Transfers.RECEIVER:
            self.send(at, now)
        self.free[queue] = self.freed_ns[at]
        self.cursor[queue] += 1
        self.advance(queue)
        for other in self.waiting.pop(at, ()):
            self.advance(other)

    def send(self, source: int, now: int) -> int:
        """Put a message on its link behind those that asked before; return when it arrives."""
        link = self.link[source]
        self.depart_ns[source] = max(now, self.link_free.get(link, 0))
        arrival = self.depart_ns[source] + self.message_ns[source]
        self.link_before[source] = self.link_last.get(link, NONE)
        self.arrive_ns[source] = self.link_free[link] = arrival
        self.link_last[link] = source
        return arrival


def sweep(program: Program) -> ActionTimes:
    """Return the times of all entries. Raises DeadlockError with the circle of who waits for whom."""
    start, stop = [UNKNOWN] * len(program), [UNKNOWN] * len(program)
    needs, gate, duration = program.needs.tolist(), program.gate.tolist(), program.duration.tolist()
    travel, fetch, hold = (column.tolist() for column in _shares(program))
    cursor, ends = list(program.offsets[:-1]), program.offsets[1:]
    free = [0] * len(ends)
    waiting: dict[int, list[int]] = {}
    ready = list(range(len(ends)))
    while ready:
        queue = ready.pop()
        now, end = free[queue], ends[queue]
        for at in range(cursor[queue], end):
            source, gated = needs[at], gate[at]
            if gated >= 0 and stop[gated] < 0:
                source = gated
            if source >= 0 and stop[source] < 0:
                waiting.setdefault(source, []).append(queue)
                cursor[queue] = at
                break
            if source >= 0 and (arrival := stop[source] + travel[source]) > now:
                now = arrival
            if gated >= 0 and (freed := stop[gated] + hold[gated]) > now:
                now = freed
            start[at] = now = now + fetch[at]
            stop[at] = now = now + duration[at]
            now += hold[at]
            if at in waiting:
                ready.extend(waiting.pop(at))
        else:
            cursor[queue] = end
        free[queue] = now
    if sum(cursor) < sum(ends):
        raise program.stuck(cursor)
    return _with_messages(program, np.array(start, dtype=np.int64), np.array(stop, dtype=np.int64))


def _shares(program: Program) -> tuple[Integers, Integers, Integers]:
    """Return how long each entry's message travels, it fetches the one it needs, and its device waits after it."""
    nothing = np.zeros(len(program), dtype=np.int64)
    if program.execution.transfers is Transfers.RECEIVER:
        return nothing, np.where(program.needs == NONE, 0, program.message_ns[program.needs]), nothing
    waits = program.execution.transfers is Transfers.SENDER
    return program.message_ns, nothing, program.message_ns if waits else nothing


def _with_messages(program: Program, start_ns: Integers, stop_ns: Integers) -> ActionTimes:
    """Add when messages travel: from the stop of their sender on, or until their taker, fetching them, starts."""
    depart_ns = stop_ns.copy()
    if program.execution.transfers is Transfers.RECEIVER:
        takes = np.flatnonzero(np.where(program.needs == NONE, 0, program.message_ns[program.needs]))
        sources = program.needs[takes]
        depart_ns[sources] = start_ns[takes] - program.message_ns[sources]
    link_before = np.full(len(program), NONE, dtype=np.int64)
    return ActionTimes(start_ns, stop_ns, depart_ns, depart_ns + program.message_ns, link_before)


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
            depart, arrive = self.times.depart_ns[index], self.times.arrive_ns[index]
            yield TimeSpan(self.program.label(index), int(self.program.link[index]), int(depart), int(arrive))


def run(schedule: PipelineSchedule, durations: Durations, execution: Execution = DEFAULT) -> Timeline:
    """Execute a schedule. Cost: linear in actions (with contention, times the logarithm of the ranks).

    Raises ScheduleError for an incomplete schedule, DeadlockError for an impossible one, with the circle of who
    waits for whom, and ValueError for durations of another number of stages.
    """
    program = compile_program(schedule, durations, execution)
    times = fifo(program) if execution.contention is Contention.FIFO else sweep(program)
    return Timeline(program, times)
