"""Quantities as people write them, made into exact integers: ``10 Gbit/s``, ``11 GiB``, ``13 TFLOP/s``, ``5 us``.

Each function takes what stands in a file and returns a whole number in pipecut's own unit (bit/s, bytes,
FLOP/s, ns). The arithmetic is exact. Amounts of data and speeds are printed with few decimals (``23.64 GiB``), so
what lies between two whole numbers is rounded once: what there is down, what is needed up. Of a nanosecond there
are no parts.
Units are strict, because a wrong guess here is a factor of 8 that no later check would notice: ``bit`` and
``B`` differ, ``GB`` is 10^9 and ``GiB`` 2^30 bytes, and a unit in the wrong case is refused with the right one.
The one abbreviation taken is ``Gbps`` (``kbps``, ``Mbps``, ``Tbps``) for ``Gbit/s``: every data sheet of a
network means bits by it.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from pipecut.formulation.problem.units import BITS_PER_BYTE, NS_PER_SECOND

LONGEST_TEXT = 40
"""Characters of the longest quantity that is read; anything longer is no quantity."""
LARGEST = 10**18
"""The largest value in a base unit (an exabyte, 31 years in ns); with it, sums stay far inside 64 bits."""

_NUMBER = re.compile(r"(-?)([0-9]+(?:\.[0-9]+)?) *(.*)", re.ASCII)
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}


class QuantityError(ValueError):
    """A text is not the quantity that was expected; the message says what to write."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A physical dimension: how to name it, an example, its base unit, and what people usually write.

    ``rounds``: how parts of the base unit are made whole; None where they are an error.
    """

    name: str
    example: str
    base: str
    usual: tuple[str, ...]
    positive: bool = True
    rounds: Callable[[Fraction], int] | None = math.floor

    def wanted(self) -> str:
        """Return the start of every message: what was expected."""
        return f"expected {self.name} like '{self.example}'"


_BANDWIDTH = _Kind("a bandwidth", "10 Gbit/s", "bit/s", ("Gbit/s", "GB/s"))
_DATA = _Kind("an amount of data", "11 GiB", "bytes", ("GiB", "GB"))
_NEED = _Kind("an amount of data", "2 GiB", "bytes", ("GiB", "GB"), positive=False, rounds=math.ceil)
_SPEED = _Kind("a speed", "13.4 TFLOP/s", "FLOP/s", ("TFLOP/s",))
_DURATION = _Kind("a duration", "5 us", "ns", ("us", "ms", "s"), positive=False, rounds=None)
_BITS = _Kind("an amount in bits; pipecut counts data in bytes, B", "8 bit", "bits", ("bit",))

_TIMES = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": NS_PER_SECOND}
_LONG_TIMES = {"min": 60 * NS_PER_SECOND, "h": 3600 * NS_PER_SECOND}


def bandwidth(value: object) -> int:
    """Return a bandwidth in bits per second: ``bit/s``, ``B/s``, ``bps`` with k M G T P or Ki Mi Gi Ti Pi.

    Parts of a bit are left out. Raises QuantityError for anything else, and for less than 1 bit per second.
    """
    return _read(value, _BANDWIDTH)


def memory(value: object) -> int:
    """Return what there is room for in bytes: ``B`` with k M G T P or Ki Mi Gi Ti Pi. Parts of one are left out.

    Raises QuantityError for anything else (bits and bare numbers included), and for less than 1 byte.
    """
    return _read(value, _DATA)


def needed_memory(value: object) -> int:
    """Return what is needed, in the units of :func:`memory`. Part of a byte counts whole, a bare ``0`` is nothing.

    Raises QuantityError for anything else.
    """
    return 0 if value in (0, "0") and not isinstance(value, bool) else _read(value, _NEED)


def speed(value: object) -> int:
    """Return a computing speed in FLOP/s: ``FLOP/s`` with k M G T P.

    Parts of a FLOP are left out. Raises QuantityError for anything else, and for less than 1 FLOP/s.
    """
    return _read(value, _SPEED)


def duration(value: object) -> int:
    """Return a duration in ns: ``ns``, ``us``, ``ms``, ``s``, ``min``, ``h``. A bare ``0`` is 0 in any unit.

    Raises QuantityError for anything else and for parts of a nanosecond.
    """
    return 0 if value in (0, "0") and not isinstance(value, bool) else _read(value, _DURATION)


def ratio(value: object) -> Fraction:
    """Return an exact number of 0 or more: ``2``, ``1.5`` or ``3/2``. Raises QuantityError for anything else."""
    text = str(value)
    found = re.fullmatch(r"[0-9]+(\.[0-9]+|/0*[1-9][0-9]*)?", text, re.ASCII)
    if isinstance(value, bool) or not found or len(text) > LONGEST_TEXT:
        raise QuantityError(f"expected a number of 0 or more like '2', '1.5' or '3/2', got {_quoted(value)}")
    return Fraction(text)


def price(value: object) -> int:
    """Return a price per hour in millionths of the currency. Raises QuantityError for anything finer."""
    try:
        millionths = ratio(value) * 10**6
    except QuantityError as error:
        raise QuantityError(f"expected a price per hour like '2.48', got {_quoted(value)}") from error
    if millionths.denominator != 1 or millionths > LARGEST:
        raise QuantityError(f"expected a price per hour of whole millionths, got {_quoted(value)}")
    return int(millionths)


def _units() -> dict[str, tuple[_Kind, int]]:
    """Every unit that is known, with its dimension and its size in the base unit."""
    units: dict[str, tuple[_Kind, int]] = {}
    for prefix, factor in (_DECIMAL | _BINARY).items():
        units[f"{prefix}bit/s"] = (_BANDWIDTH, factor)
        units[f"{prefix}B/s"] = (_BANDWIDTH, factor * BITS_PER_BYTE)
        units[f"{prefix}B"] = (_DATA, factor)
        units[f"{prefix}bit"] = (_BITS, factor)
    for prefix, factor in _DECIMAL.items():
        units[f"{prefix}bps"] = (_BANDWIDTH, factor)
        units[f"{prefix}FLOP/s"] = (_SPEED, factor)
    return units | {unit: (_DURATION, size) for unit, size in (_TIMES | _LONG_TIMES).items()}


_UNITS = _units()


def _read(value: object, kind: _Kind) -> int:
    """Read one quantity of a dimension, or say what is wrong with it and what to write."""
    if not isinstance(value, str):
        raise QuantityError(f"{kind.wanted()}, got {_quoted(value)}{_with_usual_unit(value, kind)}")
    if len(value) > LONGEST_TEXT:
        raise QuantityError(f"{kind.wanted()}, got a text of {len(value)} characters")
    found = _NUMBER.fullmatch(value.strip())
    if not found:
        raise QuantityError(f"{kind.wanted()}, got {_quoted(value)}")
    sign, number, unit = found.groups()
    if not unit:
        raise QuantityError(f"{kind.wanted()}, got {_quoted(value)}{_with_usual_unit(sign + number, kind)}")
    known, size = _UNITS.get(unit, (None, 1))
    if known is None:
        raise QuantityError(f"{kind.wanted()}, got {_quoted(value)}{_meant(number, unit, kind)}")
    if known.name != kind.name:
        raise QuantityError(f"{kind.wanted()}, got {_quoted(value)} ({known.name})")
    return _whole(sign, Fraction(number) * size, value, kind)


def _whole(sign: str, amount: Fraction, text: str, kind: _Kind) -> int:
    """Return an amount as a whole number of its base unit, rounded as its kind says, if it has a sensible size."""
    if sign or (kind.positive and amount == 0):
        limit = "not above 0" if kind.positive else "below 0"
        raise QuantityError(f"{kind.wanted()}, got {_quoted(text)}, which is {limit}")
    if amount.denominator != 1 and (kind.rounds is None or kind.rounds(amount) == 0):
        raise QuantityError(f"{_quoted(text)} is not a whole number of {kind.base}")
    if amount > LARGEST:
        raise QuantityError(f"{_quoted(text)} is more than 10^18 {kind.base}, the most that pipecut counts")
    return int(amount) if kind.rounds is None else kind.rounds(amount)


def _with_usual_unit(number: object, kind: _Kind) -> str:
    """Name what a bare number may have meant."""
    if isinstance(number, bool) or not _NUMBER.fullmatch(str(number)):
        return ""
    return " without a unit; write " + " or ".join(f"'{number} {unit}'" for unit in kind.usual)


def _meant(number: str, unit: str, kind: _Kind) -> str:
    """Name the units that a misspelt one is closest to: first those that differ in case or abbreviation."""
    if not re.fullmatch(r"[A-Za-zµμ]+(/[A-Za-z]+)?", unit):
        return ""
    spellings: dict[str, list[str]] = {}
    for known, (other, _) in _UNITS.items():
        if other.name == kind.name and not known.endswith("bps"):
            for sloppy in _sloppy(known):
                spellings.setdefault(sloppy, []).append(known)
    folded = unit.casefold()
    near = difflib.get_close_matches(folded, spellings, n=1, cutoff=0.7)
    units = spellings.get(folded) or (spellings[near[0]] if near else [])
    return "; did you mean " + " or ".join(f"'{number} {one}'" for one in units) + "?" if units else ""


def _sloppy(unit: str) -> set[str]:
    """Return the ways in which a unit is commonly misspelt, in lower case."""
    folded = unit.casefold()
    short = folded.replace("bit", "b")
    prefix = short.removesuffix("/s").removesuffix("b").removesuffix("flop")
    return {
        folded,
        short,
        folded.replace("/s", "ps"),
        short.replace("/s", "ps"),
        folded.replace("p/s", "ps"),
        prefix,
    }


def _quoted(value: object) -> str:
    """Show what stands in the file, at a bounded length."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return "a section" if isinstance(value, dict) else "a list"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= LONGEST_TEXT + 2 else text[:LONGEST_TEXT] + "..."
