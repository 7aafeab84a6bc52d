"""How a stage is put before a suffix of a plan: from what is known of the one to what is known of the longer one.

An *end* is a node of ``solvers.dynamic.states`` (devices that are taken, servers of the first stage) and, where
receivers pay for boundaries, the link in front of the first stage: what it fetches is a part of its passes, so the
link is said before the stage in front is known, and only stages over such a link are put there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.limits import TooLargeError, in_time
from pipecut.formulation.problem.options import BoundaryCharge
from pipecut.solvers.dynamic.states.states import StateSpace

MOST_WAYS = 50_000
NOTHING = -1
"""No suffix behind the last stage, and no link in front of the first."""


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """All ways, an entry each: a stage of ``kind`` before ``source``, over ``link``, makes ``target``.

    ``front`` is the link in front of the stage where receivers pay, else NOTHING. ``state`` and ``servers`` are
    those of the step (for the way back); ``node[e]`` is the node of an end, ``whole[e]`` whether a plan may be
    whole there.
    """

    kind: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    link: NDArray[np.int64]
    front: NDArray[np.int64]
    place: NDArray[np.int64]
    state: NDArray[np.int64]
    node: NDArray[np.int64]
    whole: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.kind)


def ways_of(tables: Tables, space: StateSpace) -> Ways:
    """Write out all ways. Raises TooLargeError for too many. Cost: steps x nodes of a state x links."""
    receiver = tables.instance.cost.boundary_charge is BoundaryCharge.RECEIVER
    # Nodes of a state whose servers have the same links to all others are the same to what is put before them.
    first: dict[tuple[int, int], int] = {}
    keys = zip(space.node_state.tolist(), space.alike[space.node_servers].tolist(), strict=True)
    same = [first.setdefault(key, node) for node, key in enumerate(keys)]
    by_state: dict[int, list[int]] = {}
    for (state, _), node in first.items():
        by_state.setdefault(state, []).append(node)
    ends: dict[tuple[int, int], int] = {}
    rows: dict[tuple[int, ...], tuple[int, int]] = {}
    empty = set(space.empty.tolist())

    def end(node: int, front: int) -> int:
        return ends.setdefault((same[node], front if receiver else NOTHING), len(ends))

    for kinds, state, servers, node, place in in_time(_steps(space), tables.deadline):
        fronts = {NOTHING, *(space.joined[:, space.node_servers[node]].tolist() if receiver else [])}
        sources = [(NOTHING, NOTHING)] if state in empty else []
        for behind in by_state.get(state, []):
            link = int(space.joined[servers, space.node_servers[behind]])
            sources.append((end(behind, link), link))
        for front, (source, link), kind in itertools.product(sorted(fronts), sources, kinds):
            rows.setdefault((kind, source, end(node, front), link, front), (place, state))
        if len(rows) > MOST_WAYS:
            raise TooLargeError(
                f"more than {MOST_WAYS} ways to put a stage before others can not be searched; lower"
                " constraints.max_servers or plan on the line"
            )
    table = np.array([(*key, *value) for key, value in rows.items()], dtype=np.int64).reshape(len(rows), 7)
    nodes = np.array([node for node, _ in ends], dtype=np.int64)
    unfetched = np.array([front == NOTHING for _, front in ends], dtype=np.bool_)
    kind, source, target, link, front, place, state = table.T
    return Ways(kind, source, target, link, front, place, state, nodes, space.complete[nodes] & unfetched)


def _steps(space: StateSpace) -> Iterator[tuple[tuple[int, ...], int, int, int, int]]:
    """Yield kinds, state, servers, node and place of every step."""
    for steps in space.steps:
        columns = (steps.state, steps.servers, steps.node, steps.place)
        for state, servers, node, place in zip(*(one.tolist() for one in columns), strict=True):
            yield steps.kinds, state, servers, node, place
