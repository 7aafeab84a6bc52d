"""Downsets of a directed acyclic graph, as bit masks: bit ``v`` is set where node ``v`` belongs to the set.

The planner of dnn-partitioning calls a downset an *ideal*; PipeDream describes one by its maximal
nodes, an *antichain*. The sets are found depth first, nodes tried in rising order, because that is the order
in which those programs number them, and their ties follow it. The full number can be exponential in the width
of the graph, so every enumeration has a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pipecut_literature.common.errors import TooManyDownsetsError


def masks(size: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """Return for each of ``size`` nodes the mask of the nodes that it points to: ``(from, to)``."""
    found = [0] * size
    for one, other in edges:
        found[one] |= 1 << other
    return found


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of the set bits, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def reachable(order: Sequence[int], following: Sequence[int]) -> list[int]:
    """Return for each node the mask of all nodes behind its ``following`` ones; ``order`` puts those first.

    Cost: one union for each edge.
    """
    found = [0] * len(following)
    for node in order:
        for other in bits(following[node]):
            found[node] |= found[other] | 1 << other
    return found


def topological(required: Sequence[int]) -> list[int]:
    """Return the nodes so that each stands after the nodes of its mask ``required``; small numbers first."""
    order: list[int] = []
    done = 0
    left = list(range(len(required)))
    while left:
        ready = [node for node in left if required[node] & ~done == 0]
        if not ready:
            raise ValueError("the graph has a cycle")
        order += ready
        done |= sum(1 << node for node in ready)
        left = [node for node in left if not done >> node & 1]
    return order


def downsets(required: Sequence[int], limit: int) -> tuple[list[int], list[list[int]]]:
    """Return all sets that contain with a node everything in its mask ``required``, the empty set first.

    The second list gives for each set the indices of its subsets that lack exactly one node, in the order in
    which the search met them. Raises TooManyDownsetsError beyond ``limit`` sets. Cost: sets times nodes.
    """
    found, below, index = [0], [[]], {0: 0}
    path = [(0, iter(range(len(required))))]
    while path:
        mine, candidates = path[-1]
        node = next(candidates, None)
        if node is None:
            path.pop()
            continue
        here = found[mine]
        if here >> node & 1 or required[node] & ~here:
            continue
        grown = here | 1 << node
        if grown not in index:
            if len(found) >= limit:
                raise TooManyDownsetsError(
                    f"more than {limit} downsets; merge nodes of the graph, or raise the limit"
                )
            index[grown] = len(found)
            found.append(grown)
            below.append([mine])
            path.append((index[grown], iter(range(len(required)))))
        else:
            below[index[grown]].append(mine)
    return found, below


def subsets(start: int, below: Sequence[Sequence[int]]) -> list[int]:
    """Return the indices of all proper subsets of the downset ``start``, by depth-first search through ``below``.

    A set is visited when it leaves the stack, so the order is that of dnn-partitioning's program.
    """
    stack, seen, order = [start], {start}, []
    while stack:
        current = stack.pop()
        if current != start:
            order.append(current)
        for smaller in below[current]:
            if smaller not in seen:
                seen.add(smaller)
                stack.append(smaller)
    return order
