"""Orders of a graph with branches that are worth a try: branches one after another, or side by side.

Each is made the same way, by rank: of the atoms whose producers are done the one of least rank comes next. By the
work that must come before a atom, branches advance at the same speed; by the work that must follow, the longest
branch goes first; by the share of the way that lies behind, all branches end together (the field's *round robin*,
weighted). Keeping few bytes alive finishes one branch before it begins another.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from formulation.problem.cuts import AtomGraph

__all__: list[str] = []

Rank = Fraction | int


def interleavings(atoms: AtomGraph, work: Sequence[int], sent: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield different orders of atoms, the given one first.

    ``work[u]`` is the computation of a atom in any unit of time, ``sent[u]`` the bytes that others take from it.
    Cost: about linear in atoms and edges for each order, at most six.
    """
    after: list[list[int]] = [[] for _ in work]
    for atom, row in enumerate(atoms.before):
        for one in row:
            after[one].append(atom)
    head, tail = [0] * len(work), [0] * len(work)
    for atom, row in enumerate(atoms.before):
        head[atom] = max((head[one] + work[one] for one in row), default=0)
    for atom in reversed(range(len(work))):
        tail[atom] = work[atom] + max((tail[one] for one in after[atom]), default=0)
    share = [
        Fraction(2 * one + spent, 2 * (one + rest) or 1) for one, spent, rest in zip(head, work, tail, strict=True)
    ]
    seen: set[tuple[int, ...]] = set()
    for order in (
        tuple(range(len(work))),
        ordered(atoms, after, share.__getitem__),
        ordered(atoms, after, head.__getitem__),
        ordered(atoms, after, lambda atom: -tail[atom]),
        ordered(atoms, after, lambda atom: head[atom] + work[atom]),
        _few_bytes_alive(atoms, after, sent),
    ):
        if order not in seen:
            seen.add(order)
            yield order


def ordered(atoms: AtomGraph, after: Sequence[Sequence[int]], rank: Callable[[int], Rank]) -> tuple[int, ...]:
    """Return the order that takes, of all atoms whose producers are done, the one of least rank each time."""
    waiting = [len(row) for row in atoms.before]
    ready = [(rank(atom), atom) for atom, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    found: list[int] = []
    while ready:
        atom = heapq.heappop(ready)[1]
        found.append(atom)
        for one in after[atom]:
            waiting[one] -= 1
            if not waiting[one]:
                heapq.heappush(ready, (rank(one), one))
    return tuple(found)


def _few_bytes_alive(atoms: AtomGraph, after: Sequence[Sequence[int]], sent: Sequence[int]) -> tuple[int, ...]:
    """Return the order that each time takes the ready atom after which the fewest bytes wait for a reader."""
    waiting, readers = [len(row) for row in atoms.before], [len(row) for row in after]
    ready = {atom for atom, count in enumerate(waiting) if not count}
    found: list[int] = []
    while ready:

        def grows(atom: int) -> tuple[int, int]:
            freed = sum(sent[one] for one in atoms.before[atom] if readers[one] == 1)
            return (sent[atom] if after[atom] else 0) - freed, atom

        atom = min(ready, key=grows)
        ready.remove(atom)
        found.append(atom)
        for one in atoms.before[atom]:
            readers[one] -= 1
        for one in after[atom]:
            waiting[one] -= 1
            if not waiting[one]:
                ready.add(one)
    return tuple(found)
