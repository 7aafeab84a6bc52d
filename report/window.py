"""Which part of a long run is drawn: its beginning and its end; and what happens in them, event by event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from formulation.schedules.actions import Kind
from formulation.schedules.dependencies import NONE, positions
from formulation.schedules.table import Integers
from formulation.timeline.critical import critical_chain
from formulation.timeline.timeline import Timeline
from formulation.timeline.updates import JOIN

ACTIVATION, GRADIENT = "a", "g"
"""Kinds of events of messages; passes and updates have the letters of their actions."""
EVENT_COLUMNS = ("kind", "stage", "micro_batch", "start_ns", "stop_ns", "critical")
"""What an event is, as a row of data; ``stage`` of a message is the one before the boundary that it crosses."""
MOST_SHOWN = 32
LEAST_SHOWN = 8
EVENTS_SHOWN = 1200
"""Passes that a picture should not exceed by much."""
LEAST_HIDDEN = 8
"""A gap in the picture has to leave out at least a share of 1 / LEAST_HIDDEN of the time."""

Row = list[int | str]


@dataclass(frozen=True, slots=True)
class Window:
    """The time that is drawn: up to ``head_stop_ns``, and from ``tail_start_ns`` on; equal: everything."""

    head_stop_ns: int
    tail_start_ns: int

    @property
    def whole(self) -> bool:
        """Tell whether nothing is left out."""
        return self.head_stop_ns == self.tail_start_ns


def shown_by_default(stages: int) -> int:
    """Return how many micro-batches a readable picture of so many stages shows."""
    return min(MOST_SHOWN, max(LEAST_SHOWN, EVENTS_SHOWN // (2 * stages)))


def window_of(timeline: Timeline, shown: int) -> Window:
    """Return the time until half of ``shown`` micro-batches reach the last stage, and that from the last half on.

    A run that has no more than ``shown`` of them, or where hardly anything would be left out, is drawn whole.
    """
    total, makespan = timeline.schedule.micro_batches, timeline.makespan_ns
    half = max(1, shown // 2)
    if total > shown and total >= 2 * half:
        forward = positions(timeline.schedule, Kind.FORWARD)[-1, half - 1]
        backward = positions(timeline.schedule, Kind.BACKWARD, Kind.INPUT_GRADIENT)[-1, total - half]
        head, tail = int(timeline.times.stop_ns[forward]), int(timeline.times.start_ns[backward])
        if (tail - head) * LEAST_HIDDEN > makespan:
            return Window(head, tail)
    return Window(makespan, makespan)


def events_of(timeline: Timeline, window: Window) -> list[Row]:
    """Return passes, updates and messages that touch the window, as rows of EVENT_COLUMNS."""
    critical = {(event.entry, event.transfer) for event in critical_chain(timeline)}
    return [*_entries(timeline, window, critical), *_messages(timeline, window, critical)]


Critical = set[tuple[int, bool]]


def _entries(timeline: Timeline, window: Window, critical: Critical) -> Iterator[Row]:
    program, times = timeline.program, timeline.times
    for at in _touching(times.start_ns, times.stop_ns, window):
        if program.kind[at] == JOIN:
            continue
        yield [
            program.letter(at),
            int(program.stage[at]),
            int(program.micro_batch[at]),
            int(times.start_ns[at]),
            int(times.stop_ns[at]),
            int((at, False) in critical),
        ]


def _messages(timeline: Timeline, window: Window, critical: Critical) -> Iterator[Row]:
    program, times = timeline.program, timeline.times
    for at in _touching(times.depart_ns, times.arrive_ns, window):
        if program.link[at] == NONE:
            continue
        forward = int(program.kind[at]) == Kind.FORWARD
        yield [
            ACTIVATION if forward else GRADIENT,
            int(program.stage[at]) - (0 if forward else 1),
            int(program.micro_batch[at]),
            int(times.depart_ns[at]),
            int(times.arrive_ns[at]),
            int((at, True) in critical),
        ]


def _touching(start_ns: Integers, stop_ns: Integers, window: Window) -> list[int]:
    """Return the indices of those that lie in the window, at least in part."""
    return ((start_ns < window.head_stop_ns) | (stop_ns > window.tail_start_ns)).nonzero()[0].tolist()
