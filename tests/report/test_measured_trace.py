"""The trace of a run that was measured: the same events as those of a simulated one."""

from __future__ import annotations

import json

from pipecut.report.trace import measured_trace


def test_actions_are_slices_of_their_devices_from_time_zero() -> None:
    rows = [("stage 0: process 0", [("0F0", "F", 5_000, 7_500), ("0B0", "B", 9_000, 9_001)]), ("stage 1", [])]
    found = json.loads(measured_trace(rows))["traceEvents"]
    slices = [one for one in found if one["ph"] == "X"]
    assert [(one["name"], one["cat"], one["ts"], one["dur"]) for one in slices] == [
        ("0F0", "forward", 0, 2.5),
        ("0B0", "backward", 4, 0.001),
    ]
    names = [one["args"]["name"] for one in found if one["name"] == "thread_name"]
    assert names == ["stage 0: process 0", "stage 1"]
