"""What a published planner expects of its plan, read out of its notes."""

from __future__ import annotations

import re


def expected_ns(note: str) -> int:
    """Return the first time of a note that is written to the nanosecond: ``12.34 ms (12,340,567 ns)``."""
    found = re.search(r"([\d,]+) ns", note)
    assert found is not None, note
    return int(found[1].replace(",", ""))
