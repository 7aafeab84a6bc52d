"""Numbers and names as words of a page: rounded for the eye, escaped for HTML and SVG.

Names come from users' files. What is no printable character (control characters, halves of surrogate pairs,
marks that turn the direction of text) is shown as a question mark, as in the terminal.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from types import MappingProxyType

_TIMES = (("ns", 1), ("µs", 10**3), ("ms", 10**6), ("s", 10**9))
_AMOUNTS = (("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40))
NOTHING = "–"


def text(name: object) -> str:
    """Return a name, escaped for the text and the attributes of HTML and SVG."""
    return html.escape("".join(one if one.isprintable() else "?" for one in str(name)), quote=True)


def duration(time_ns: float) -> str:
    """Return a time with four significant digits: ``12.34 ms``."""
    return _scaled(time_ns, _TIMES, 1000)


def round_duration(time_ns: int) -> str:
    """Return a round time with the digits that it needs: ``1.5 ms``."""
    unit, size = next((one for one in reversed(_TIMES) if time_ns >= one[1]), _TIMES[0])
    return f"{time_ns / size:,.10g} {unit}"


def amount(size_bytes: float) -> str:
    """Return an amount of data with four significant digits and a binary prefix: ``1.500 GiB``."""
    return _scaled(size_bytes, _AMOUNTS, 1024)


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
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{ending}"


FORMATS: Mapping[str, Callable[[float], str]] = MappingProxyType(
    {"ns": duration, "exact": exact, "bytes": amount, "share": percent, "seconds": lambda value: f"{value:.2f} s"}
)
"""How a number of each unit is written."""


def _scaled(value: float, units: tuple[tuple[str, int], ...], step: int) -> str:
    unit, size = next((one for one in units if abs(value) < step * one[1] * 0.99995), units[-1])
    scaled = float(f"{value / size:.4g}")
    whole = value % size == 0 or abs(scaled) >= 1000
    return f"{scaled:,.0f} {unit}" if whole else f"{scaled:#.4g} {unit}"
