"""Downsets of a directed acyclic graph, as bit masks: bit ``v`` is set where node ``v`` belongs to the set.

The planner of dnn-partitioning calls a downset an *ideal*; PipeDream describes one by its maximal
nodes, an *antichain*. The sets are found depth first, nodes tried in rising order, because that is the order
in which those programs number them, and their ties follow it. The full number can be exponential in the width
of the graph, so every enumeration has a limit.

Why a peer's planner returns no plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


class TooManyDownsetsError(ValueError):
    """The graph has more downsets than the caller is ready to enumerate."""


class NothingFitsError(ValueError):
    """No plan fits into the memory of the devices (or, for dnn-partitioning, onto what they support)."""


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


def downsets(required: Sequence[int], limit: int) -> list[int]:
    """Return all sets that contain with a node everything in its mask ``required``, the empty set first.

    Raises TooManyDownsetsError beyond ``limit`` sets. Cost: sets times nodes.
    """
    found, seen = [0], {0}
    path = [(0, iter(range(len(required))))]
    while path:
        here, candidates = path[-1]
        node = next(candidates, None)
        if node is None:
            path.pop()
            continue
        grown = here | 1 << node
        if grown in seen or required[node] & ~here:
            continue
        if len(found) >= limit:
            raise TooManyDownsetsError(f"more than {limit} downsets; merge nodes of the graph, or raise the limit")
        found.append(grown)
        seen.add(grown)
        path.append((grown, iter(range(len(required)))))
    return found
