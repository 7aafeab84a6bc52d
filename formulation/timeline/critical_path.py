"""What the critical chain of a timeline consists of: how long which sort of event at which stage is on it.

The critical chain: the actions and transfers without a gap between them that make the makespan what it is.

Followed backwards from the entry that stops last. Whatever starts does so at the moment in which something else
ends, or at 0; where several things end together, its own device comes before messages, and messages before gates,
so that a device that is never idle stays on the chain. Shortening anything outside the chain gains nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipecut.formulation.schedules.table import NONE, Integers, Kind
from pipecut.formulation.timeline.durations import Transfers
from pipecut.formulation.timeline.program import JOIN, LETTERS
from pipecut.formulation.timeline.timeline import Timeline


class Reason(enum.StrEnum):
    """What an event of the chain waited for: the end of the event before it."""

    START = "start"
    """For nothing: it starts at 0."""
    DEVICE = "device"
    """Its device was busy with the event before."""
    ACTIVATION = "activation"
    """The activation had to be made, or to arrive."""
    GRADIENT = "gradient"
    """The gradient had to be made, or to arrive."""
    LINK = "link"
    """The link was busy with another message."""
    UPDATE = "update"
    """Gradients had to be complete, or synchronised."""


@dataclass(frozen=True, slots=True)
class Event:
    """An action, synchronisation or update (``transfer`` false), or the message that it sends, on the chain.

    ``entry`` is its place in the program, ``label`` what it is called.
    """

    entry: int
    label: str
    transfer: bool
    start_ns: int
    stop_ns: int
    reason: Reason


Step = tuple[int, bool]
"""An entry, and whether its message is meant."""


def critical_chain(timeline: Timeline) -> list[Event]:
    """Return the chain from 0 to the makespan, in order of time. Cost: linear in entries."""
    follower = _Follower.of(timeline)
    events: list[Event] = []
    step: Step | None = int(timeline.times.stop_ns.argmax()), False
    while step is not None:
        event, step = follower.event(*step)
        events.append(event)
    return events[::-1]


@dataclass(frozen=True, slots=True)
class _Follower:
    """Finds what an event waited for. Views of the arrays of a timeline, which give up single numbers quickly."""

    transfers: Transfers
    firsts: frozenset[int]
    """The first entry of each queue."""
    stage: memoryview
    kind: memoryview
    micro_batch: memoryview
    needs: memoryview
    gate: memoryview
    link: memoryview
    taker: memoryview
    """The entry that takes the message of each entry."""
    start_ns: memoryview
    stop_ns: memoryview
    depart_ns: memoryview
    arrive_ns: memoryview
    link_before: memoryview

    @classmethod
    def of(cls, timeline: Timeline) -> _Follower:
        """Return the follower of a timeline."""
        program, times = timeline.program, timeline.times
        takes = np.flatnonzero(program.needs != NONE)
        taker = np.full(len(program), NONE, dtype=np.int64)
        taker[program.needs[takes]] = takes
        columns: list[Integers] = [program.stage, program.kind, program.micro_batch, program.needs, program.gate]
        columns += [program.link, taker, times.start_ns, times.stop_ns, times.depart_ns, times.arrive_ns]
        views = [column.data for column in (*columns, times.link_before)]
        return cls(program.execution.transfers, frozenset(program.offsets), *views)

    def event(self, at: int, is_message: bool) -> tuple[Event, Step | None]:
        """Return an entry or its message as an event, and what it waited for, past JOINs, which take no time."""
        if is_message:
            start, stop = self.depart_ns[at], self.arrive_ns[at]
            reason, step = self._before_message(at)
        else:
            start, stop = self.start_ns[at], self.stop_ns[at]
            reason, step = self._before_entry(at)
        while step is not None and self.kind[step[0]] == JOIN:
            reason, step = self._before_entry(step[0])
        label = f"{self.stage[at]}{LETTERS[self.kind[at]]}{self.micro_batch[at]}"
        return Event(at, label, is_message, start, stop, reason), step

    def _before_entry(self, at: int) -> tuple[Reason, Step | None]:
        """Return what the start of an entry waited for."""
        start, source = self.start_ns[at], self.needs[at]
        if start == 0:
            return Reason.START, None
        fetched = source != NONE and self.transfers is Transfers.RECEIVER and self.link[source] != NONE
        step = None if fetched else self._device_before(at, start)
        if step is not None:
            return Reason.DEVICE, step
        if source != NONE and self.arrive_ns[source] == start:
            return self._reason(source), (source, self.link[source] != NONE)
        return Reason.UPDATE, self._freed_by(self.gate[at])

    def _before_message(self, source: int) -> tuple[Reason, Step | None]:
        """Return what the departure of a message waited for."""
        depart, before = self.depart_ns[source], self.link_before[source]
        if depart == 0:
            return Reason.START, None
        if self.stop_ns[source] == depart:
            return self._reason(source), (source, False)
        if before != NONE and self.arrive_ns[before] == depart:
            return Reason.LINK, (before, True)
        taker = self.taker[source]
        step = self._device_before(taker, depart)
        if step is not None:
            return Reason.DEVICE, step
        return Reason.UPDATE, self._freed_by(self.gate[taker])

    def _device_before(self, at: int, now: int) -> Step | None:
        """Return the entry before in the queue if it frees the device at ``now``, or the message that holds it."""
        if at in self.firsts:
            return None
        step = self._freed_by(at - 1)
        freed = self.arrive_ns if step[1] else self.stop_ns
        return step if freed[at - 1] == now else None

    def _freed_by(self, at: int) -> Step:
        """Return what frees the device of an entry: its end, or that of its message if the device waits for it."""
        return at, self.transfers is Transfers.SENDER and self.link[at] != NONE

    def _reason(self, source: int) -> Reason:
        return Reason.ACTIVATION if self.kind[source] == Kind.FORWARD else Reason.GRADIENT


SYNCHRONISATION, OPTIMISER = "synchronisation", "optimiser"
NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "gradient of the input",
    "W": "gradient of the weights",
    "S": SYNCHRONISATION,
    "U": OPTIMISER,
}
"""What the letters of the timeline stand for."""
MESSAGES = {"F": "activation", "B": "gradient", "I": "gradient"}


@dataclass(frozen=True, slots=True)
class ChainPart:
    """All events of one sort at one stage: passes, or messages that the stage sends (``transfer``)."""

    stage: int
    name: str
    transfer: bool
    events: int
    time_ns: int


def parts_of_chain(timeline: Timeline, updates_ns: Sequence[int] = ()) -> tuple[ChainPart, ...]:
    """Return the parts of the critical chain, the longest first; their times add up to the makespan.

    ``updates_ns`` is by stage how much of each synchronisation is the optimiser, a part of its own here
    (``formulation.costs.prices.updates_ns``). Cost: linear in the entries of the timeline.
    """
    sums: dict[tuple[int, str, bool], tuple[int, int]] = {}
    for event in critical_chain(timeline):
        letter = event.label.lstrip("0123456789")[0]
        name = MESSAGES.get(letter, NAMES[letter]) if event.transfer else NAMES[letter]
        key = int(event.label[: event.label.index(letter)]), name, event.transfer
        lasted = event.stop_ns - event.start_ns
        update = min(lasted, updates_ns[key[0]]) if updates_ns and name == SYNCHRONISATION else 0
        spent = [(key, lasted - update)] * (not update or update < lasted)
        spent += [((key[0], OPTIMISER, False), update)] * (update > 0)
        for part, time_ns in spent:
            events, known_ns = sums.get(part, (0, 0))
            sums[part] = events + 1, known_ns + time_ns
    parts = [ChainPart(*key, *found) for key, found in sums.items()]
    return tuple(sorted(parts, key=lambda part: (-part.time_ns, part.stage, part.name)))
