"""How numbers of the fidelity studies are written, and how errors are averaged."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

GIB = 2**30


class Errors(NamedTuple):
    """Mean absolute errors of a published table, in percent: of the executed schedule and of the closed form."""

    executed: float
    closed_form: float


def error_percent(predicted: Fraction | float, published: Fraction | float) -> float:
    """Return how far a prediction is above the published number, in percent of the latter."""
    return float((predicted / published - 1) * 100)


def mean_absolute(errors: Iterable[float]) -> float:
    """Return the mean of absolute values."""
    values = [abs(error) for error in errors]
    return sum(values) / len(values)


def signed(percent: float) -> str:
    """Write an error."""
    return f"{round(percent, 1) + 0.0:+.1f} %"  # + 0.0: no negative zero


def share(value: Fraction | float) -> str:
    """Write a fraction in percent."""
    return f"{float(value) * 100:.1f} %"


def gib(amount_bytes: Fraction | int) -> str:
    """Write bytes in GiB."""
    return f"{float(amount_bytes) / GIB:.2f}"
