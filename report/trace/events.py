"""Single events of the Trace Event Format, each as JSON on one line.

The format counts in microseconds; nanoseconds are written as exact decimals of them, never through a
floating-point number. Whoever writes a slice brings its ``args`` as JSON, since most of it is the same for
thousands of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

DEVICES, NETWORK = 1, 2
"""The two processes."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """Where a slice is drawn: its process, and its thread there."""

    process: int
    thread: int


def microseconds(time_ns: int) -> str:
    """Return nanoseconds as an exact decimal of microseconds: 1234 is ``1.234``."""
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def quoted(value: object) -> str:
    """Return a value as JSON."""
    return json.dumps(value)


def process(number: int, name: str) -> list[str]:
    """Return the name of a process and its place among the processes."""
    return [
        _about("process_name", TraceRow(number, 0), "name", name),
        _order("process_sort_index", TraceRow(number, 0), number),
    ]


def thread(row: TraceRow, name: str) -> list[str]:
    """Return the name of a row and its place in its process."""
    return [_about("thread_name", row, "name", name), _order("thread_sort_index", row, row.thread)]


def _order(kind: str, row: TraceRow, place: int) -> str:
    return _about(kind, row, "sort_index", place)


def _about(kind: str, row: TraceRow, key: str, value: object) -> str:
    return json.dumps(
        {"ph": "M", "name": kind, "pid": row.process, "tid": row.thread, "args": {key: value}},
        separators=(",", ":"),
    )


def slice_of(row: TraceRow, name: str, category: str, start_ns: int, stop_ns: int, args: str) -> str:
    """Return something that lasts; ``name`` and ``category`` have no character that JSON escapes."""
    head = f'{{"ph":"X","pid":{row.process},"tid":{row.thread},"name":"{name}","cat":"{category}"'
    return f'{head},"ts":{microseconds(start_ns)},"dur":{microseconds(stop_ns - start_ns)},"args":{args}}}'


def arrow(phase: str, number: int, row: TraceRow, time_ns: int) -> str:
    """Return the start (``s``), a step (``t``) or the end (``f``) of an arrow, at a slice of this moment."""
    ends = ',"bp":"e"' if phase == "f" else ""
    head = f'{{"ph":"{phase}","id":{number},"pid":{row.process},"tid":{row.thread},"name":"tensor","cat":"tensor"'
    return f'{head},"ts":{microseconds(time_ns)}{ends}}}'


def counter(row: TraceRow, name: str, time_ns: int, size_bytes: int) -> str:
    """Return what is held from a moment on; counters belong to a process and are told apart by their names."""
    head = f'{{"ph":"C","pid":{row.process},"tid":{row.thread},"name":"{name}","ts":{microseconds(time_ns)}'
    return f'{head},"args":{{"bytes":{size_bytes}}}}}'
