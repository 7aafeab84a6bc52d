"""Numbers for people: times, amounts of data and gaps with the prefix that fits.

Only for display; everything that is compared stays in whole nanoseconds and bytes.
"""

from __future__ import annotations

_TIMES = (("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9))
_AMOUNTS = (("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40))

LEAST_SHOWN_GAP = 0.0001


def duration(time_ns: int) -> str:
    """Return a time with four significant digits: ``12.34 ms``."""
    return _scaled(time_ns, _TIMES, 1000)


def amount(size_bytes: int) -> str:
    """Return an amount of data with a binary prefix: ``11 GiB`` if that is exact, else ``1.500 GiB``."""
    for unit, size in _AMOUNTS:
        if size <= size_bytes < 1024 * size and size_bytes % size == 0:
            return f"{size_bytes // size} {unit}"
    return _scaled(size_bytes, _AMOUNTS, 1024)


def exact_duration(time_ns: int) -> str:
    """Return a time twice, for the eye and to the nanosecond: ``12.34 ms (12,340,567 ns)``."""
    return f"{duration(time_ns)} ({time_ns:,} ns)" if time_ns >= _TIMES[1][1] else duration(time_ns)


def gap(value: float) -> str:
    """Return a gap in percent; only a gap of exactly 0 is shown as ``0 %``."""
    if value == 0:
        return "0 %"
    if abs(value) < LEAST_SHOWN_GAP:
        return "< 0.01 %" if value > 0 else "> -0.01 %"
    return f"{_digits(100 * value, 3)} %"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 layer``, ``3 layers``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def printable(text: str) -> str:
    """Return a name without control characters, which could move a terminal's cursor."""
    return "".join(one if one.isprintable() else "?" for one in text)


def _scaled(value: int, units: tuple[tuple[str, int], ...], step: int) -> str:
    if value < step:
        return f"{value} {units[0][0]}"
    for unit, size in units[1:]:
        text = _digits(value / size, 4)
        if float(text) < step:
            return f"{text} {unit}"
    unit, size = units[-1]
    return f"{value / size:.0f} {unit}"


def _digits(value: float, digits: int) -> str:
    """Return ``value`` with so many significant digits, never as a power of ten."""
    if abs(value) < 10**digits:
        value = float(f"{value:.{digits}g}")  # first, as rounding may add a digit before the point
    before = len(str(int(abs(value))))
    return f"{value:.{max(0, digits - before)}f}"
