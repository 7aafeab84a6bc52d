"""Steps between device states as flat arrays, sorted by the devices taken after them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from pipecut.formulation.costs.tables import Tables
from pipecut.solvers.dynamic.iteration_time.spans import Bits, Index
from pipecut.solvers.dynamic.states.states import StateSpace


@dataclass(frozen=True, slots=True, eq=False)
class FlatSteps:
    """A stage of ``kind[m]`` on ``place[m]`` leads from ``state[m]`` to ``after[m]``.

    ``joins[m]`` is the *class* of its servers: sets of servers that every other stage is joined to by equal links
    are one class, and ``link[p, q]`` is the link between classes (-1: a transfer is free). ``levels`` are ranges
    of steps after which equally many devices are taken, ascending.
    """

    space: StateSpace
    state: Index
    after: Index
    joins: Index
    first: Index
    place: Index
    kind: Index
    levels: tuple[tuple[int, int], ...]
    taken: Index
    empty: Index
    complete: Bits
    link: Index


def flat_steps(space: StateSpace, tables: Tables) -> FlatSteps:
    """Flatten the steps of a space; of steps that cost the same and lead to the same, one is kept."""
    _, representatives, classes = np.unique(space.joined, axis=0, return_index=True, return_inverse=True)
    classes = classes.reshape(-1)
    rows = [
        (
            steps.state,
            space.node_state[steps.node],
            classes[steps.servers],
            classes[space.node_servers[steps.node]],
            np.full(len(steps.state), kind),
            steps.place,
        )
        for steps in space.steps
        for kind in steps.kinds
    ]
    table = np.concatenate([np.array(row, dtype=np.int64) for row in rows], axis=1)
    _, kept = np.unique(table[:5], axis=1, return_index=True)
    table = table[:, kept]
    taken = np.zeros(len(space.states), dtype=np.int64)
    taken[space.node_state] = space.taken
    complete = np.zeros(len(space.states), dtype=bool)
    complete[space.node_state] = space.complete
    order = np.lexsort((table[4], taken[table[1]]))
    table = table[:, order]
    bounds = np.flatnonzero(np.diff(taken[table[1]], prepend=-1, append=-1))
    return FlatSteps(
        space=space,
        state=table[0],
        after=table[1],
        joins=table[2],
        first=table[3],
        kind=table[4],
        place=table[5],
        levels=tuple((int(low), int(high)) for low, high in itertools.pairwise(bounds)),
        taken=taken,
        empty=space.empty.astype(np.int64),
        complete=complete,
        link=space.joined[np.ix_(representatives, representatives)].astype(np.int64),
    )
