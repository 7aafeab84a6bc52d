"""Columns of whole numbers of any size: what is priced of many layers at once, exactly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.problem.units import BITS_PER_BYTE, NS_PER_SECOND, Link

Column = NDArray[np.object_]
"""Python's integers, as bytes times bits times nanoseconds do not fit into 64 bits."""


def column(numbers: Iterable[int]) -> Column:
    """Return a column of these numbers."""
    return np.array([*numbers], dtype=np.object_)


class Links(NamedTuple):
    """Links of many kinds of groups, as columns."""

    bits_per_second: Column
    latency_ns: Column


# Devices of one kind that share layers, as Among has those of many.
Sharers = tuple[int, Link | None, Fraction, Fraction]


class Among(NamedTuple):
    """Devices of many kinds that share layers, or have the same weights: columns ``[kind, 1]``.

    How many they are; their links (None: nothing is sent); what part of a layer they have together, and what one
    of them lacks of it, as numerators and denominators.
    """

    devices: Column
    link: Links | None
    part: tuple[Column, Column]
    lacking: tuple[Column, Column]

    @staticmethod
    def of(rows: Sequence[Sharers]) -> Among:
        """Return these rows as columns; all have a link, or none."""
        devices, links, *parts = zip(*rows, strict=True)
        known = [link for link in links if link is not None]
        pairs = [zip(*(one.as_integer_ratio() for one in part), strict=True) for part in parts]
        (a, b), (c, d) = (map(_standing, pair) for pair in pairs)
        both = zip(*((one.bits_per_second, one.latency_ns) for one in known), strict=True)
        link = Links(*map(_standing, both)) if known else None
        return Among(_standing(devices), link, (a, b), (c, d))


def _standing(numbers: Iterable[int]) -> Column:
    return column(numbers)[:, None]


def scaled(numbers: Column, share: Fraction) -> Column:
    """Return a share of each number, rounded up."""
    return -(-numbers * share.numerator // share.denominator)


def transfer(
    numerators: Column, denominator: Column | int, messages: Column | int, link: Link | Links | None
) -> Column:
    """Return the times of ``numerators / denominator`` bytes over a link in some messages; nothing takes none."""
    if link is None:
        return 0 * numerators
    times = -(-numerators * (BITS_PER_BYTE * NS_PER_SECOND) // (denominator * link.bits_per_second))
    return (times + messages * link.latency_ns) * (numerators != 0)
