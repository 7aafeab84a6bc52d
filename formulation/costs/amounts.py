"""Amounts for people: times, sizes, prices and counts with the unit that fits, and values of goals in their units.

Only for display; everything that is compared stays in whole nanoseconds, bytes and millionths. Every message that
names a value of a goal writes it with :func:`goal_amount`, so no price is ever called nanoseconds.
"""

from __future__ import annotations

from decimal import Decimal

from pipecut.formulation.problem.constraints import Goal

Units = tuple[tuple[str, int], ...]

TIMES: Units = (("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9))
SIZES: Units = (("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40))
"""Units by size, the smallest first."""
DIGITS = 4
"""Significant digits of a number that is rounded for the eye."""
LEAST_SHOWN_GAP = 0.0001
"""Smaller gaps are said to be smaller than this."""


def goal_text(goal: Goal, value: int) -> str:
    """Return a value of a goal as short text: ``12.34 ms``, ``9.500 GiB``, ``19.84 per hour``, ``3 stages``."""
    if goal.timed:
        return scaled_duration(value, TIMES)
    if goal is Goal.MEMORY:
        return scaled_size(value)
    if goal is Goal.COST:
        return f"{price(value)} per hour"
    return f"{value} {plural(value, 'device' if goal is Goal.DEVICES else 'stage')}"


def goal_amount(goal: Goal, value: int) -> str:
    """Return a value of a goal for the eye and, of times and memory, to the last unit as well."""
    if goal.timed:
        return exact_duration(value)
    return f"{scaled_size(value)} ({value:,} bytes)" if goal is Goal.MEMORY else goal_text(goal, value)


def exact_duration(time_ns: int) -> str:
    """Return a time twice, for the eye and to the nanosecond: ``12.34 ms (12,340,567 ns)``."""
    short = scaled_duration(time_ns, TIMES)
    return f"{short} ({time_ns:,} ns)" if time_ns >= TIMES[1][1] else short


def price(millionths: int) -> str:
    """Return a price from whole millionths, without zeros at the end."""
    return f"{(Decimal(millionths) / 10**6).normalize():,f}"


def duration(time_ns: float) -> str:
    """Return a time with four significant digits: ``12.34 ms``."""
    return scaled_duration(time_ns, TIMES)


def gap(value: float) -> str:
    """Return a gap in percent; only a gap of exactly 0 is shown as ``0 %``."""
    if value == 0:
        return "0 %"
    if abs(value) < LEAST_SHOWN_GAP:
        return "< 0.01 %" if value > 0 else "> -0.01 %"
    return f"{significant(100 * value, 3)} %"


def scaled_duration(time_ns: float, units: Units) -> str:
    """Return a time in the unit that fits, with four significant digits; below a thousand of the smallest, all."""
    return _scaled(time_ns, units, 1000)


def scaled_size(size_bytes: float) -> str:
    """Return an amount of data in the unit that fits: all digits if they are whole, else four significant ones."""
    for unit, size in SIZES:
        if size <= size_bytes < 1024 * size and size_bytes % size == 0:
            return f"{size_bytes // size:.0f} {unit}"
    return _scaled(size_bytes, SIZES, 1024)


def significant(value: float, digits: int) -> str:
    """Return a number with so many significant digits, never as a power of ten."""
    if abs(value) < 10**digits:
        value = float(f"{value:.{digits}g}")  # first, as rounding may add a digit before the point
    return f"{value:.{max(0, digits - len(str(int(abs(value)))))}f}"


def plural(number: int, noun: str) -> str:
    """Return a noun as it stands behind a number."""
    return noun + ("" if number == 1 else "es" if noun.endswith(("ch", "s")) else "s")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 layer``, ``3 layers``, ``2 micro-batches``."""
    return f"{number} {plural(number, noun)}"


def _scaled(value: float, units: Units, step: int) -> str:
    if value < step and value == int(value):
        return f"{value:.0f} {units[0][0]}"
    for unit, size in units:
        rounded = significant(value / size, DIGITS)
        if float(rounded) < step:
            return f"{rounded} {unit}"
    unit, size = units[-1]
    return f"{value / size:.0f} {unit}"
