"""Columns of whole numbers of any size: what is priced of many layers at once, exactly."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.problem.units import BITS_PER_BYTE, NS_PER_SECOND, Link

Column = NDArray[np.object_]
"""Python's integers, as bytes times bits times nanoseconds do not fit into 64 bits."""


def column(numbers: Iterable[int]) -> Column:
    """Return a column of these numbers."""
    return np.array([*numbers], dtype=np.object_)


def scaled(numbers: Column, share: Fraction) -> Column:
    """Return a share of each number, rounded up."""
    return -(-numbers * share.numerator // share.denominator)


def transfer(numerators: Column, denominator: int, messages: Column | int, link: Link) -> Column:
    """Return the times of ``numerators / denominator`` bytes over a link in some messages; nothing takes none."""
    times = -(-numerators * (BITS_PER_BYTE * NS_PER_SECOND) // (denominator * link.bits_per_second))
    return (times + messages * link.latency_ns) * (numerators != 0)
