"""Labels: what a stage so far costs, in three numbers that are compared together, thousands at once.

A label is (communication in ns, bytes held from pass to pass, largest working set in bytes). One *beats* another
if it is no more in all three; what comes after adds the same to both, or takes the larger working set, so a beaten
label can never end better. The working set stays a number of its own until the end: added to the bytes held it
would count twice where a later layer needs a larger one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]
"""Shape (labels, 3): columns TIME, HELD, WORKING. Inside an atom that is computed again by itself also AGAIN."""
TIME, HELD, WORKING, AGAIN = 0, 1, 2, 3
START: Labels = np.zeros((1, 3), dtype=np.int64)
"""The one label of a stage without layers."""


def best_rows(labels: Labels, group: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the rows of labels that no other of their group beats, one of equals; by group, then ascending time.

    By time, and for each size of the working set: a label goes if one before it with no larger working set holds
    no more. Of bytes held, or of their rank where numbers become too large, more than any label holds is taken off
    for each group before, so that the least so far never comes from another group. Cost: sorting, for each size of
    the working set.
    """
    order = np.lexsort((labels[:, WORKING], labels[:, HELD], labels[:, TIME], group))
    if len(order) <= 1:
        return order
    groups = group[order]
    before = np.concatenate([[0], np.cumsum(groups[1:] != groups[:-1])])
    held, working = labels[order, HELD], labels[order, WORKING]
    most = int(held.max()) + 1
    if most > (1 << 62) // (int(before[-1]) + 1):
        held, most = np.unique(held, return_inverse=True)[1], len(order)
    height = held - before * most
    kept = np.zeros(len(order), dtype=np.bool_)
    for size in np.unique(working):
        rows = np.flatnonzero(working <= size)
        least = np.minimum.accumulate(height[rows])
        better = np.concatenate([[True], least[1:] < least[:-1]])
        kept[rows[better]] |= working[rows[better]] == size
    return order[kept]


def best_labels(labels: Labels) -> Labels:
    """Return the labels that no other beats, by ascending time."""
    return labels[best_rows(labels, np.zeros(len(labels), dtype=np.int64))]


def joined(one: Labels, other: Labels) -> Labels:
    """Return every label of ``one`` followed by every one of ``other``."""
    both = one[:, None, :] + other[None, :, :]
    np.maximum(one[:, None, WORKING], other[None, :, WORKING], out=both[:, :, WORKING])
    return both.reshape(-1, both.shape[-1])


def parts_of(label: Labels, one: Labels, other: Labels) -> tuple[Labels, Labels] | None:
    """Return a label of ``one`` and a label of ``other`` that make up this one together; None if none do."""
    found = np.flatnonzero((joined(one, other) == label).all(axis=1))
    if not len(found):
        return None
    first, second = divmod(int(found[0]), len(other))
    return one[first], other[second]
