"""What the three parallel forms cost inside a stage, in bytes (PipePar Fig. 1; AccPar Tables 4 and 5).

``C = A x B`` on the ``n`` devices of a replica, A the input, B the weights, C the output:

====  ==================  =============  ======================  ============================
form  A                   B              C                       communication inside
====  ==================  =============  ======================  ============================
0     split by rows       replicated     split by rows           all-reduce of the gradient of B
1     split by columns    split by rows  n partial sums, added   all-reduce of C
2     replicated          by columns     split by columns        all-reduce of the gradient of A
====  ==================  =============  ======================  ============================

*Between* two layers a tensor F and its gradient E (equally large) change their layout. With a share ``alpha`` and
``beta = 1 - alpha`` a change between rows and columns moves ``alpha * beta`` of a tensor, a change from either to
*whole* moves ``beta``, and whole to anything is free. Which changes occur follows from
what the producer makes and the consumer takes, for F forward and for E backward.
"""

from __future__ import annotations

from fractions import Fraction

from formulation.problem.layers import FORMS, Split
from formulation.problem.options import AllReduce
from formulation.problem.units import NOTHING, Volume

__all__ = ["MADE", "TAKEN_BY_MATRIX", "WHOLE", "forms_on"]

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


def inside(split: Split, form: int, degree: int, *, sizes: tuple[Fraction, Fraction], kind: AllReduce) -> Volume:
    """Volume inside one layer for every micro-batch. ``sizes`` are the bytes of one replica's (output, input).

    Only matrix products talk: form 1 adds partial sums of the output, form 2 those of the input gradient.
    """
    if split is not Split.MATRIX or form == 0:
        return NOTHING
    return all_reduce(sizes[form - 1], degree, kind)


def synchronised(
    split: Split,
    form: int,
    degree: int,
    replicas: int,
    *,
    weights_bytes: int,
    shard: Fraction,
    kind: AllReduce,
) -> Volume:
    """Volume of the weight gradients of one layer, once a step, among the devices that hold the same weights.

    By rows all devices of a group do. Forms 1 and 2 shard a matrix (a device holds at most ``shard`` of it),
    columns bring their own weights, and a layer on whole copies of the data computes the same gradient everywhere:
    then each shard is summed over replicas.
    """
    if form == 0:
        return all_reduce(Fraction(weights_bytes), degree * replicas, kind)
    sharded = split is Split.MATRIX or form == 2
    return all_reduce(weights_bytes * (shard if sharded else Fraction(1)), replicas, kind)


def _moved(have: str, want: str, parts: tuple[Fraction, Fraction]) -> Fraction:
    """Bytes that a device must fetch to turn layout ``have`` into ``want``: to gather it, to turn it, or none."""
    gather, turn = parts
    if have in (want, WHOLE):
        return Fraction(0)
    return gather if want == WHOLE else turn


def between(
    consumer: Split,
    source: int,
    form: int,
    degree: int,
    *,
    parts: tuple[Fraction, Fraction],
    forwards: int = 1,
) -> Volume:
    """Volume between a producer of form ``source`` and a consumer of form ``form``: F forward, E backward.

    ``parts`` are the bytes that a device fetches to have the tensor whole, and to turn rows into columns. A matrix
    product takes and returns the layouts of its own form; a JOIN layer works in one layout, for inputs, outputs
    and both gradients. The forward pass runs ``forwards`` times.
    """
    if degree == 1:
        return NOTHING
    taken = TAKEN_BY_MATRIX[form] if consumer is Split.MATRIX else MADE[form]
    forward = _moved(MADE[source], taken, parts)
    backward = _moved(taken, MADE[source], parts)
    messages = (forwards * (forward > 0) + (backward > 0)) * (degree - 1)
    return Volume(forwards * forward + backward, messages) if messages else NOTHING


def forms_on(allowed: tuple[int, ...], degree: int) -> tuple[int, ...]:
    """Forms that a layer may take on a replica of ``degree`` devices; on one nothing is split: form 0."""
    return allowed if degree > 1 else FORMS[:1]
