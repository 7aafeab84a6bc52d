"""Whole nanoseconds and whole bytes: the only place where a quantity is rounded.

Every duration of pipecut is an ``int`` of nanoseconds and every amount of data an ``int`` of bytes, each
rounded *up*, once, by :func:`ceil_div`. Rounding up keeps sums safe (a plan never looks faster than it is) and
composes: ``ceil(ceil(x) / n) == ceil(x / n)`` for a whole ``n``, so dividing a rounded time among ``n`` devices
loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

NS_PER_SECOND = 1_000_000_000
BITS_PER_BYTE = 8


def ceil_div(numerator: int, denominator: int) -> int:
    """Return the smallest whole number not below ``numerator / denominator`` (denominator > 0)."""
    return -(-numerator // denominator)


def ceil_fraction(value: Fraction) -> int:
    """Return the smallest whole number not below ``value``."""
    return ceil_div(value.numerator, value.denominator)


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """A connection between two devices: bandwidth in *bits* per second, latency in ns per message."""

    bits_per_second: int
    latency_ns: int = 0

    def __post_init__(self) -> None:
        if self.bits_per_second <= 0 or self.latency_ns < 0:
            raise ValueError(f"{self}: expected a bandwidth above 0 and a latency of 0 or more")

    def times(self, number: int, among: int = 1) -> Link:
        """Return so many of these side by side and shared ``among`` several, rounded down but above 0."""
        return Link(max(1, self.bits_per_second * number // among), self.latency_ns)


def slowest(links: tuple[Link, ...]) -> Link:
    """Return the link that bounds all of these: their smallest bandwidth with their largest latency."""
    return Link(min(link.bits_per_second for link in links), max(link.latency_ns for link in links))


def slowest_of(links: Iterable[Link | None]) -> Link | None:
    """Return the link that bounds those that are there; None where none is."""
    known = tuple(link for link in links if link is not None)
    return slowest(known) if known else None


@dataclass(frozen=True, slots=True)
class Volume:
    """Data that one device puts on its link: an exact number of bytes in a number of messages."""

    amount_bytes: Fraction
    messages: int

    def transfer_ns(self, link: Link) -> int:
        """Return the time to move this volume over ``link`` (PipePar eq. 4, plus latency). Nothing costs 0."""
        if self.amount_bytes == 0:
            return 0
        seconds = self.amount_bytes * BITS_PER_BYTE / link.bits_per_second
        return ceil_fraction(seconds * NS_PER_SECOND) + self.messages * link.latency_ns


NOTHING = Volume(Fraction(0), 0)
