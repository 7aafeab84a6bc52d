"""Rows of numbers of which none is at most another's in every column: what searches by labels keep."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.limits import Deadline, in_time

Rows = NDArray[np.int64]
Index = NDArray[np.intp]
# Rows of so many columns are compared by going down stairs.
STAIRS = 3
# So many rows are compared with those that are kept at once.
BLOCK = 128
# So many columns are compared first, spread over all of them.
FIRST = 6
# So many comparisons are made in one go, of which none takes more than a part of a second.
MOST_CELLS = 1 << 24
# After so many steps down the stairs someone looks at the time.
STEPS = 1 << 14

MOST = 1 << 60
"""Numbers up to there can be counted on from."""


def unbeaten(rows: Rows, group: NDArray[np.int64], deadline: Deadline) -> Index:
    """Return the rows that no other of their group is at most in every column, one of equals; by group.

    Raises StoppedError after the deadline. Cost: comparisons of every row with those that are kept of its group.
    """
    if len(rows) <= 1:
        return np.arange(len(rows))
    order = np.lexsort((rows.sum(axis=1), group))
    starts = np.flatnonzero(np.diff(group[order], prepend=group[order[0]] - 1))
    ends = np.append(starts[1:], len(order))
    kept = [order[starts[ends - starts == 1]]]
    sieve = _on_stairs if rows.shape[1] == STAIRS else _sieved
    for start, end in in_time(zip(starts.tolist(), ends.tolist(), strict=True), deadline):
        if end - start > 1:
            some = order[start:end]
            kept.append(some[sieve(rows[some], deadline)])
    return np.concatenate(kept)


def numbered(keys: Rows) -> NDArray[np.int64]:
    """Return a number for each row of small numbers, the same for the same."""
    found = np.zeros(len(keys), dtype=np.int64)
    if not keys.size:
        return found
    base = 1 + int(np.ptp(keys))
    for column in keys.T:
        if int(found.max(initial=0)) > MOST // base:
            found = np.unique(found, return_inverse=True)[1].reshape(-1)
        found = found * base + column - column.min()
    return found


def _on_stairs(rows: Rows, deadline: Deadline) -> Index:
    """Return the unbeaten rows of three columns: by the first of them, what the other two rule out makes stairs.

    Kung, Luccio and Preparata, On finding the maxima of a set of vectors, JACM 22 (1975).
    """
    order = np.lexsort(rows.T[::-1])
    across: list[int] = []
    down: list[int] = []
    found: list[int] = []
    for nth, (at, (_, second, third)) in enumerate(zip(order.tolist(), rows[order].tolist(), strict=True)):
        if not nth % STEPS:
            deadline.check()
        step = bisect_right(across, second)
        if step and down[step - 1] <= third:
            continue
        found.append(at)
        first = last = bisect_left(across, second)
        while last < len(down) and down[last] >= third:
            last += 1
        across[first:last] = [second]
        down[first:last] = [third]
    return np.array(found, dtype=np.intp)


def _sieved(rows: Rows, deadline: Deadline) -> Index:
    """Return the unbeaten rows of one group, which are sorted by their sums: later ones beat no earlier ones."""
    alive = np.arange(len(rows))
    found: list[Index] = []
    while len(alive):
        deadline.check()
        block, rest = alive[:BLOCK], alive[BLOCK:]
        beaten = _beats(rows[block], rows[block], deadline)
        beaten &= ~np.tril(np.ones_like(beaten))  # a row is beaten by earlier ones alone, equals among them
        block = block[~beaten.any(axis=0)]
        found.append(block)
        if len(rest):
            rest = rest[~_any_beats(rows[block], rows[rest], deadline)]
        alive = rest
    return np.concatenate(found)


def _any_beats(better: Rows, rows: Rows, deadline: Deadline) -> NDArray[np.bool_]:
    size = max(1, MOST_CELLS // max(1, len(better)))
    starts = in_time(range(0, len(rows), size), deadline)
    return np.concatenate([_beats(better, rows[at : at + size], deadline).any(axis=0) for at in starts])


def _beats(better: Rows, rows: Rows, deadline: Deadline) -> NDArray[np.bool_]:
    """Tell for every pair whether the one is at most the other in every column."""
    columns = rows.shape[1]
    first = np.unique(np.linspace(0, columns - 1, min(FIRST, columns)).astype(int))
    found = np.ones((len(better), len(rows)), dtype=np.bool_)
    for column in first.tolist():
        found &= better[:, column, None] <= rows[None, :, column]
    if columns > len(first):
        one, other = np.nonzero(found)
        size = max(1, MOST_CELLS // columns)
        for at in in_time(range(0, len(one), size), deadline):
            some = slice(at, at + size)
            found[one[some], other[some]] = (better[one[some]] <= rows[other[some]]).all(axis=1)
    return found
