"""What the three parallel forms cost inside a stage, in bytes (PipePar Fig. 1; AccPar Tables 4 and 5).

``C = A x B`` on ``n`` devices, A the input, B the weights, C the output:

====  ==================  =============  ======================  ============================
form  A                   B              C                       communication inside
====  ==================  =============  ======================  ============================
0     split by rows       replicated     split by rows           all-reduce of the gradient of B
1     split by columns    split by rows  n partial sums, added   all-reduce of C
2     replicated          by columns     split by columns        all-reduce of the gradient of A
====  ==================  =============  ======================  ============================

*Between* two layers a tensor F and its gradient E (equally large) change their layout. With equal shares
``alpha = 1/n`` and ``beta = (n-1)/n`` a change between rows and columns moves ``alpha * beta`` of a tensor, a
change from either to *whole* moves ``beta``, and whole to anything is free. Which changes occur follows from
what the producer makes and the consumer takes, for F forward and for E backward.
"""

from __future__ import annotations

from fractions import Fraction

from formulation.layers import FORMS, Split
from formulation.options import AllReduce
from formulation.units import NOTHING, Volume

ROWS, WHOLE, COLUMNS = "rows", "whole", "columns"

MADE = (ROWS, WHOLE, COLUMNS)
"""Layout of a layer's output, and of the output gradient that it needs, by form."""
TAKEN_BY_MATRIX = (ROWS, COLUMNS, WHOLE)
"""Layout of the input that a matrix product takes, and of the input gradient that it makes, by form."""


def all_reduce(size_bytes: Fraction, devices: int, kind: AllReduce) -> Volume:
    """Volume of the sum of a tensor over ``devices`` devices; nothing for one device."""
    if devices == 1 or size_bytes == 0:
        return NOTHING
    if kind is AllReduce.PLAIN:
        return Volume(Fraction(size_bytes), 1)
    steps = 2 * (devices - 1)
    return Volume(size_bytes * Fraction(steps, devices), steps)


def inside(
    split: Split,
    form: int,
    devices: int,
    *,
    sizes: tuple[Fraction, Fraction, Fraction],
    kind: AllReduce,
) -> Volume:
    """Volume inside one layer. ``sizes`` are the bytes of (weight gradient, output, input).

    Layers that multiply no matrix only synchronise the weights that they hold, and only under form 0: with a
    whole copy of the data every device computes the same gradient, and columns hold their own weights.
    """
    weights, output, inputs = sizes
    if split is Split.MATRIX:
        return all_reduce((weights, output, inputs)[form], devices, kind)
    return all_reduce(weights, devices, kind) if form == 0 else NOTHING


def _moved(have: str, want: str, devices: int) -> Fraction:
    """Share of a tensor that each device must fetch to turn layout ``have`` into ``want``."""
    if have in (want, WHOLE):
        return Fraction(0)
    if want == WHOLE:
        return Fraction(devices - 1, devices)
    return Fraction(devices - 1, devices * devices)


def between(consumer: Split, source: int, form: int, size_bytes: int, devices: int) -> Volume:
    """Volume between a producer of form ``source`` and a consumer of form ``form``: F forward, E backward.

    A matrix product takes and returns the layouts of its own form; a JOIN layer works in one layout, for
    inputs, outputs and both gradients.
    """
    if devices == 1:
        return NOTHING
    taken = TAKEN_BY_MATRIX[form] if consumer is Split.MATRIX else MADE[form]
    forward = _moved(MADE[source], taken, devices)
    backward = _moved(taken, MADE[source], devices)
    messages = ((forward > 0) + (backward > 0)) * (devices - 1)
    return Volume(size_bytes * (forward + backward), messages) if messages else NOTHING


def forms_on(allowed: tuple[int, ...], devices: int) -> tuple[int, ...]:
    """Forms that a layer may take on ``devices`` devices; on one device nothing is split: form 0 by convention."""
    return allowed if devices > 1 else FORMS[:1]
