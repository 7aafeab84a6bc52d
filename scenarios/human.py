"""Numbers for people: times, amounts of data and gaps with the prefix that fits, as a terminal shows them.

Only for display; everything that is compared stays in whole nanoseconds and bytes. Shared with the pages
(``report.wording``), but for what any terminal can show: ``us`` for microseconds, no commas between thousands.
"""

from __future__ import annotations

from report.wording import TIMES, plural, printable, scaled_amount, scaled_duration, significant

__all__ = ["amount", "count", "duration", "exact_duration", "gap", "printable"]

_TIMES = tuple((unit.replace("µ", "u"), size) for unit, size in TIMES)

LEAST_SHOWN_GAP = 0.0001


def duration(time_ns: int) -> str:
    """Return a time with four significant digits: ``12.34 ms``."""
    return scaled_duration(time_ns, _TIMES)


def amount(size_bytes: int) -> str:
    """Return an amount of data with a binary prefix: ``11 GiB`` if that is exact, else ``1.500 GiB``."""
    return scaled_amount(size_bytes)


def exact_duration(time_ns: int) -> str:
    """Return a time twice, for the eye and to the nanosecond: ``12.34 ms (12,340,567 ns)``."""
    return f"{duration(time_ns)} ({time_ns:,} ns)" if time_ns >= _TIMES[1][1] else duration(time_ns)


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
