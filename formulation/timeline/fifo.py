"""Execution with contention: links carry one message at a time, in the order in which they are asked.

Here the order of requests matters, so entries are completed in the order of time. The heap holds at most one event
for each queue (an entry about to stop, or a device about to fetch), so its size is the number of queues, and the
cost is linear in entries times the logarithm of that. Events at the same time come in the order of entries, which
is that of ranks: ties never depend on chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from formulation.schedules.dependencies import NONE
from formulation.timeline.durations import Transfers
from formulation.timeline.program import Program
from formulation.timeline.times import ActionTimes

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
