"""Orders of a graph with branches: those worth a try, and few that together hold every plan.

Worth a try are branches one after another, or side by side.

Each is made the same way, by rank: of the atoms whose producers are done the one of least rank comes next. By the
work that must come before a atom, branches advance at the same speed; by the work that must follow, the longest
branch goes first; by the share of the way that lies behind, all branches end together (the field's *round robin*,
weighted). Keeping few bytes alive finishes one branch before it begins another.

A plan of so many stages cuts its order at nested sets of atoms, each of which holds with an atom all that it takes
from. So orders of which one cuts at all sets of every such chain hold all plans: what the best of them is, no plan
of any order undercuts.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from formulation.limits.size import TooLargeError
from formulation.problem.cuts import AtomGraph

Rank = Fraction | int
Chain = tuple[int, ...]
"""Nested sets of atoms as bit masks, small ones first."""
MOST_SETS, MOST_CHAINS = 300, 5_000


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


def covering(atoms: AtomGraph, cuts: int, most: int) -> list[tuple[int, ...]]:
    """Return orders such that whatever sets so many cuts leave before them, one of the orders has these cuts.

    Raises TooLargeError for more than ``most`` of them, and for more than MOST_CHAINS ways to cut. Cost: orders x
    ways to cut.
    """
    cuts = min(cuts, len(atoms) - 1)
    left, found = _chains(atoms.downsets(MOST_SETS)[1:-1], cuts), list[tuple[int, ...]]()
    while left:
        if len(found) == most:
            raise TooLargeError(f"more than {most} orders of the layers hold all plans with {cuts} cuts")
        held = list(left[0])
        for chain in left[1:]:
            held += [one for one in chain if one not in held and all(_nested(one, other) for other in held)]
        held.sort(key=int.bit_count)
        found.append(_through(atoms, held))
        passed = set(itertools.accumulate((1 << atom for atom in found[-1]), int.__or__))
        left = [chain for chain in left if not passed.issuperset(chain)]
    return found


def _chains(sets: Sequence[int], cuts: int) -> list[Chain]:
    """Return all so many nested sets, of sets that are sorted by size."""
    chains: list[Chain] = [()]
    for _ in range(cuts):
        chains = [
            (*chain, one)
            for chain in chains
            for one in sets
            if not chain or (chain[-1] != one and chain[-1] & ~one == 0)
        ]
        if len(chains) > MOST_CHAINS:
            raise TooLargeError(f"there are more than {MOST_CHAINS} ways to cut all orders of the layers")
    return chains


def _nested(one: int, other: int) -> bool:
    return one & ~other == 0 or other & ~one == 0


def _through(atoms: AtomGraph, sets: Sequence[int]) -> tuple[int, ...]:
    """Return an order that has made each of these nested sets before anything else."""
    first = [next((at for at, one in enumerate(sets) if one >> atom & 1), len(sets)) for atom in range(len(atoms))]
    return tuple(sorted(range(len(atoms)), key=lambda atom: (first[atom], atom)))
