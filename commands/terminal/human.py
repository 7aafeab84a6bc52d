"""Numbers for people: times, amounts of data and gaps with the prefix that fits, as a terminal shows them.

Only for display; everything that is compared stays in whole nanoseconds and bytes. Shared with the pages
(``report.wording``), but for what any terminal can show: ``us`` for microseconds, no commas between thousands.
"""

from __future__ import annotations

from formulation.costs.amounts import duration as duration
from formulation.costs.amounts import exact_duration as exact_duration
from formulation.costs.amounts import gap as gap
from formulation.costs.amounts import plural, scaled_size
from report.wording import printable as printable

WIDTH = 80
"""Columns of a narrow terminal, which lines of words are wrapped to."""


def amount(size_bytes: int) -> str:
    """Return an amount of data with a binary prefix: ``11 GiB`` if that is exact, else ``1.500 GiB``."""
    return scaled_size(size_bytes)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 layer``, ``3 layers``."""
    return f"{number} {plural(number, noun)}"
