"""Numbers and names as words of a page: rounded for the eye, and printable.

Names come from users' files. What is no printable character (control characters, halves of surrogate pairs,
marks that turn the direction of text) is shown as a question mark. What the terminal says the same way
(``commands.terminal.terminal``) is written once, in ``formulation.costs.amounts``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from pipecut.formulation.costs import amounts

TIMES = ("ns", 1), ("µs", 10**3), ("ms", 10**6), ("s", 10**9)
"""Units of time by size, as pages write them."""
NOTHING = "–"


def printable(name: object) -> str:
    """Return a name with a question mark for what is no printable character."""
    shown = str(name)
    return shown if shown.isprintable() else "".join(one if one.isprintable() else "?" for one in shown)


def duration(time_ns: float) -> str:
    """Return a time with four significant digits: ``12.34 ms``."""
    return _grouped(amounts.duration(time_ns).replace("us", "µs"))


def round_duration(time_ns: int) -> str:
    """Return a round time with the digits that it needs: ``1.5 ms``."""
    unit, size = next((one for one in reversed(TIMES) if time_ns >= one[1]), TIMES[0])
    return f"{time_ns / size:,.10g} {unit}"


def amount(size_bytes: float) -> str:
    """Return an amount of data with a binary prefix: ``11 GiB`` if that is exact, else ``1.500 GiB``."""
    return _grouped(amounts.scaled_size(size_bytes))


def exact(time_ns: float) -> str:
    """Return a time to the nanosecond: ``12,340,567 ns``; of a fraction, the first digits behind the point."""
    return f"{time_ns:,} ns" if isinstance(time_ns, int) else f"{time_ns:,.1f} ns"


def percent(share: float) -> str:
    """Return a share in percent; only exactly 0 is ``0 %``."""
    if share == 0:
        return "0 %"
    value = 100 * share
    if abs(value) < 0.05:
        return "< 0.1 %" if value > 0 else "> −0.1 %"
    return f"{value:.1f} %".replace("-", "−")


def count(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 layer``, ``3 layers``, ``2 micro-batches``."""
    return f"{number:,} {amounts.plural(number, noun)}"


def rank_name(content: Mapping[str, Any], rank: int) -> tuple[str, str]:
    """Return what a rank is called, and which stages it holds: nothing more to say where it is a stage alone."""
    stages = content["ranks"][rank]["stages"]
    if len(content["ranks"]) == len(content["stages"]):
        return f"stage {stages[0]}", ""
    return f"rank {rank}", f"stages {', '.join(map(str, stages))}"


FORMATS: Mapping[str, Callable[[float], str]] = MappingProxyType(
    {
        "ns": duration,
        "exact": exact,
        "bytes": amount,
        "rate": lambda value: f"{value:,.4g}",
        "exact_bytes": lambda value: count(int(value), "byte"),
        "whole": lambda value: f"{value:,}",
        "price": lambda value: f"{amounts.price(int(value))} per hour",
        "share": percent,
        "seconds": lambda value: f"{value:.2f} s",
    }
)
"""How a number of each unit is written."""


def _grouped(shown: str) -> str:
    """Put commas between the thousands of a number with its unit."""
    number, _, unit = shown.partition(" ")
    return f"{int(number):,} {unit}" if number.isdigit() else shown
