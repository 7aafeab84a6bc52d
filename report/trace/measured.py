"""A run that was measured, as a trace in the form of the simulated one: both can be looked at side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from report.trace.events import DEVICES, TraceRow, process, slice_of, thread
from report.trace.whole import CATEGORIES
from report.wording import printable


def measured_trace(rows: Sequence[tuple[str, Iterable[tuple[str, str, int, int]]]]) -> str:
    """Return the trace of a step as JSON text, one event a line.

    ``rows`` are the devices: what each is called, and its actions with their tokens (``2F0``), the letter of their
    kind, start and stop in ns of one clock. The first start is time 0. Cost: linear in actions.
    """
    devices = [(name, list(actions)) for name, actions in rows]
    zero = min((start for _, actions in devices for _, _, start, _ in actions), default=0)
    events = process(DEVICES, "devices")
    for at, (name, actions) in enumerate(devices):
        row = TraceRow(DEVICES, at)
        events += thread(row, printable(name))
        events += [
            slice_of(row, token, CATEGORIES[letter], start - zero, stop - zero, "{}")
            for token, letter, start, stop in actions
        ]
    return '{"displayTimeUnit":"ns","traceEvents":[\n' + ",\n".join(events) + "\n]}\n"
