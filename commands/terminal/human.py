"""Numbers for people: times, amounts of data and gaps with the prefix that fits, as a terminal shows them.

Only for display; everything that is compared stays in whole nanoseconds and bytes. Shared with the pages
(``report.wording``), but for what any terminal can show: ``us`` for microseconds, no commas between thousands.
"""

from __future__ import annotations

from formulation.problem.amounts import TIMES, exact_duration, plural, scaled_duration, scaled_size, significant
from report.wording import printable

__all__ = ["amount", "count", "duration", "exact_duration", "gap", "printable"]

LEAST_SHOWN_GAP = 0.0001
WIDTH = 80
"""Columns of a narrow terminal, which lines of words are wrapped to."""


def duration(time_ns: int) -> str:
    """Return a time with four significant digits: ``12.34 ms``."""
    return scaled_duration(time_ns, TIMES)


def amount(size_bytes: int) -> str:
    """Return an amount of data with a binary prefix: ``11 GiB`` if that is exact, else ``1.500 GiB``."""
    return scaled_size(size_bytes)


def gap(value: float) -> str:
    """Return a gap in percent; only a gap of exactly 0 is shown as ``0 %``."""
    if value == 0:
        return "0 %"
    if abs(value) < LEAST_SHOWN_GAP:
        return "< 0.01 %" if value > 0 else "> -0.01 %"
    return f"{significant(100 * value, 3)} %"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 layer``, ``3 layers``."""
    return f"{number} {plural(number, noun)}"
