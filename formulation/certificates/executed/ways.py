"""How stages are put before suffixes of plans: from the devices that the one takes to those of the longer one.

A *node* is what stages before a suffix must know of its devices (``formulation.suffixes``): those that
are taken, and the end of its first stage. A stage is put there by its own *end* and leads to another node; what
the boundary between them takes depends on both ends.

And rows of whole numbers of which none is at most another's in every column.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.times import activation_ns, gradient_ns
from pipecut.formulation.limits import NEVER, Deadline, TooLargeError
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.units import Link
from pipecut.formulation.suffixes import End, State, suffixes

MOST_MOVES = 200_000


@dataclass(frozen=True, slots=True)
class Move:
    """A stage on some devices before suffixes of one state: the node it leads to, and its kinds, by number."""

    node: int
    kinds: tuple[int, ...]


class NodeMoves:
    """The nodes of an instance, and the moves between them.

    ``nodes[state]`` are the nodes of a state with their ends, ``moves[state]`` the moves from it by their own
    ends; ``whole[n]`` tells whether a whole plan may take the devices of node n. The ``empty`` states are those
    behind the last stage. Raises TooLargeError for too many moves, StoppedError after the deadline, and ValueError
    as ``formulation.suffixes.suffixes``.
    """

    def __init__(self, instance: Instance, deadline: Deadline = NEVER) -> None:
        self._instance, known = instance, suffixes(instance, deadline)
        kinds = [GroupKind.of(instance, group) for group in Group.possible(instance, deadline)]
        self.kinds = tuple(dict.fromkeys(kinds))
        number = {kind: at for at, kind in enumerate(self.kinds)}
        by_place = [tuple(dict.fromkeys(number[kinds[at]] for at in place.groups)) for place in known.places]
        self.places = CutSpace.of(instance).places
        self.nodes: dict[State, list[tuple[int, End]]] = {}
        self.moves: dict[State, dict[End, list[Move]]] = {}
        self.empty = tuple(known.empty())
        numbers: dict[tuple[State, End], int] = {}
        complete: list[bool] = []
        waiting, seen, made = list(self.empty), set(self.empty), 0
        while waiting:
            state = waiting.pop()
            deadline.check()
            for step in known.before(state):
                key = step.state, step.first
                if key not in numbers:
                    numbers[key] = len(numbers)
                    complete.append(known.complete(step.state))
                    self.nodes.setdefault(step.state, []).append((numbers[key], step.first))
                own = self.moves.setdefault(state, {}).setdefault(known.places[step.place].end, [])
                own.append(Move(numbers[key], by_place[step.place]))
                made += 1
                if step.state not in seen:
                    seen.add(step.state)
                    waiting.append(step.state)
            if made > MOST_MOVES:
                raise TooLargeError(
                    f"more than {MOST_MOVES} ways to put a stage before others are too many for a proof about"
                    " executed times; lower constraints.max_servers or plan on the line"
                )
        self.whole: NDArray[np.bool_] = np.array(complete, dtype=np.bool_)
        self._crossed = cache(self._crossed_over)
        self._link = cache(self._link_of)

    def boundary(self, end: End, behind: End) -> Rows:
        """Return activation and gradient, in ns, over the boundary between two ends, by place: two rows."""
        return self._crossed(self._link(end, behind))

    def _link_of(self, one: End, other: End) -> Link | None:
        groups = [Group(tuple((server, 1) for server in servers)) for servers, _ in (one, other)]
        return Group.link_between(self._instance, *groups, lanes=min(one[1], other[1]))

    def _crossed_over(self, link: Link | None) -> Rows:
        inner = self.places[1:-1]
        rows = [[one(self._instance, cut, link) for cut in inner] for one in (activation_ns, gradient_ns)]
        return np.pad(np.array(rows, dtype=np.int64).reshape(2, len(inner)), ((0, 0), (1, 1)))

    def __iter__(self) -> Iterator[tuple[State, End, list[Move]]]:
        """Yield the moves by the state that they go on from, and their own end."""
        for state, ends in self.moves.items():
            for end, moves in ends.items():
                yield state, end, moves


Rows = NDArray[np.int64]
Index = NDArray[np.intp]
FEW, MANY = 64, 1 << 12
"""So many rows are compared at once with those that are left, of which so many at once."""


def unbeaten(rows: Rows, deadline: Deadline = NEVER) -> Index:
    """Return which rows no other is at most in every column, one of equals.

    Rows are sorted by their first differences, so none is beaten by one behind it. Raises StoppedError after the
    deadline. Cost: n log n for n rows that differ in up to three columns; else each row is compared with those
    that are kept before it.
    """
    rows = rows[:, np.ptp(rows, axis=0) > 0] if len(rows) else rows
    order = np.lexsort(rows.T[::-1]) if rows.shape[1] else np.arange(min(1, len(rows)))
    if rows.shape[1] < 2 or len(order) < 2:
        return order[:1]
    if rows.shape[1] == 2:
        second = rows[order, 1]
        return order[np.append(True, second[1:] < np.minimum.accumulate(second)[:-1])]
    deadline.check()
    return order[_on_stairs(rows[order])] if rows.shape[1] == 3 else _sieved(rows, order, deadline)


def _on_stairs(rows: Rows) -> Index:
    """Return the unbeaten of sorted rows of three columns: what the last two rule out so far makes stairs.

    Kung, Luccio and Preparata, On finding the maxima of a set of vectors, JACM 22 (1975).
    """
    across: list[int] = []
    down: list[int] = []
    found: list[int] = []
    for at, (second, third) in enumerate(rows[:, 1:].tolist()):
        step = bisect_right(across, second)
        if step and down[step - 1] <= third:
            continue
        found.append(at)
        first = last = bisect_left(across, second)
        while last < len(down) and down[last] >= third:
            last += 1
        across[first:last], down[first:last] = [second], [third]
    return np.array(found, dtype=np.intp)


def _sieved(rows: Rows, left: Index, deadline: Deadline) -> Index:
    """Return the unbeaten of rows in a sorted order."""
    kept: list[Index] = []
    while len(left):
        deadline.check()
        some, left = left[:FEW], left[FEW:]
        beats = (rows[some][:, None] <= rows[some][None]).all(axis=2)
        some = some[~np.triu(beats, 1).any(axis=0)]
        kept.append(some)
        parts = (rows[left[at : at + MANY]] for at in range(0, len(left), MANY))
        beaten = [(rows[some][:, None] <= part[None]).all(axis=2).any(axis=0) for part in parts]
        left = left[~np.concatenate(beaten)] if beaten else left
    return np.concatenate(kept)
