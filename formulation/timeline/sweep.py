"""Execution without contention: every entry's times follow from those of the entries it waits for.

No clock and no event queue: each queue runs as far as it gets, and goes on when the entry it waits for is done.
Every entry is visited once, and once more if its queue had to wait there, so the cost is linear in entries.
"""

from __future__ import annotations

import numpy as np

from formulation.schedules.dependencies import NONE
from formulation.schedules.table import Integers
from formulation.timeline.durations import Transfers
from formulation.timeline.program import Program
from formulation.timeline.times import ActionTimes

UNKNOWN = -1


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
