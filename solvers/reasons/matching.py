"""Which cut of one plan became which cut of another: in order, and moved as little as can be."""

from __future__ import annotations

from collections.abc import Sequence


def matched(cuts: Sequence[int], wanted: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs of indices into both, ascending, of which there are as many as the shorter one has.

    The sum of their distances is least; so a cut without a partner lies between the partners
    of its neighbours. Cost: O(len(cuts) x len(wanted)).
    """
    if len(cuts) > len(wanted):
        return [(one, other) for other, one in matched(wanted, cuts)]
    least = [[0] * (len(wanted) + 1)]
    for at, cut in enumerate(cuts):
        row: list[int] = []
        for other in range(len(wanted) + 1):
            if other <= at:
                row.append(-1)
                continue
            here = least[at][other - 1] + abs(cut - wanted[other - 1])
            row.append(here if row[-1] < 0 else min(here, row[-1]))
        least.append(row)
    pairs: list[tuple[int, int]] = []
    at, other = len(cuts), len(wanted)
    while at:
        if other > at and least[at][other] == least[at][other - 1]:
            other -= 1
            continue
        at, other = at - 1, other - 1
        pairs.append((at, other))
    return pairs[::-1]
