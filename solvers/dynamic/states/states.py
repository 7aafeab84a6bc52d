"""The states of ``certificates.states`` as arrays: nodes, and the stages that lead from one to another.

A *node* is a state together with the end of the suffix's first stage: its servers and adapters. A step puts a
stage before a suffix; which one of the suffix's nodes it comes from is decided by the link between the two, so
steps start at states and end at nodes. Steps are kept by the kinds of their groups: stages on equal kinds reach
equally far.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.constraints import Placement
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.shares import server_classes
from pipecut.formulation.suffixes import End, State, Step, Suffixes, suffixes

Numbers = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Steps whose groups have these kinds, by ascending node: from ``state[m]``, a stage on ``servers[m]``.

    ``kinds`` are indices into ``Tables.kinds``, one for each way in which the devices may work together;
    ``servers`` indices into ``StateSpace.ends``; ``place`` into the places of the suffixes.
    """

    kinds: tuple[int, ...]
    state: Numbers
    servers: Numbers
    node: Numbers
    place: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class StateSpace:
    """All nodes and steps of an instance.

    ``joined[t, u]``: index in ``Tables.links`` of the slowest link between a stage of end t and one of
    end u, -1 if there is none; ``alike[t]``: the first end whose links to all others are those of t.
    ``taken[n]``: devices taken by node n (on the line: from its first device on).
    """

    suffixes: Suffixes
    states: tuple[State, ...]
    ends: tuple[End, ...]
    joined: Numbers
    alike: Numbers
    empty: Numbers
    node_state: Numbers
    node_servers: Numbers
    complete: NDArray[np.bool_]
    taken: Numbers
    steps: tuple[Steps, ...]

    def key(self, node: int) -> tuple[State, End]:
        """Return the state of a node and the end of the first stage."""
        return self.states[self.node_state[node]], self.ends[self.node_servers[node]]

    def step(self, state: int, place: int) -> Step:
        """Return the step from a state with a stage on a place. Raises LookupError if there is none."""
        for step in self.suffixes.before(self.states[state]):
            if step.place == place:
                return step
        raise LookupError(f"state {self.states[state]}: no stage on place {place} comes before it")


def state_space(tables: Tables, *, demanded: bool = False) -> StateSpace:
    """Enumerate states, nodes and steps of the instance of these tables (whose groups are all possible ones).

    With ``demanded`` demands tell servers apart, too.

    Raises ValueError as :func:`formulation.suffixes.suffixes` does. Cost: O(states x places) in Python.
    """
    found = suffixes(tables.instance, tables.deadline, demanded=demanded)
    grown = _Grown(found, tables)
    ends = tuple(grown.ends)
    whole = tables.instance.devices
    on_line = tables.instance.constraints.placement is Placement.LINE
    states = tuple(grown.states)
    joined = _joined(tables, ends)
    rows: dict[bytes, int] = {}
    alike = [rows.setdefault(row.tobytes(), at) for at, row in enumerate(joined)]
    taken = [whole - state[0] if on_line else sum(state) for state in states]
    return StateSpace(
        suffixes=found,
        states=states,
        ends=ends,
        joined=joined,
        alike=_numbers(alike),
        empty=_numbers([grown.states[state] for state in found.empty()]),
        node_state=_numbers([state for state, _ in grown.nodes]),
        node_servers=_numbers([first for _, first in grown.nodes]),
        complete=np.array([found.complete(states[state]) for state, _ in grown.nodes]),
        taken=_numbers([taken[state] for state, _ in grown.nodes]),
        steps=grown.steps(),
    )


class _Grown:
    """States, nodes and steps, numbered as they are met on the way from the empty suffix."""

    def __init__(self, found: Suffixes, tables: Tables) -> None:
        self.states: dict[State, int] = {state: at for at, state in enumerate(found.empty())}
        self.nodes: dict[tuple[int, int], int] = {}
        self.ends: dict[End, int] = {}
        self._rows: dict[tuple[int, ...], list[tuple[int, int, int, int]]] = {}
        for place in found.places:
            self.ends.setdefault(place.end, len(self.ends))
        kinds = [tuple(dict.fromkeys(tables.kind_of[one] for one in place.groups)) for place in found.places]
        waiting = list(self.states)
        while waiting:
            tables.deadline.check()
            state = waiting.pop()
            for step in found.before(state):
                if step.state not in self.states:
                    waiting.append(step.state)
                after = self.states.setdefault(step.state, len(self.states))
                first = self.ends.setdefault(step.first, len(self.ends))
                node = self.nodes.setdefault((after, first), len(self.nodes))
                own = self.ends[found.places[step.place].end]
                self._rows.setdefault(kinds[step.place], []).append((node, self.states[state], own, step.place))

    def steps(self) -> tuple[Steps, ...]:
        """Return the steps by the kinds of their places."""
        made: list[Steps] = []
        for kinds, rows in self._rows.items():
            node, state, own, place = np.array(sorted(rows), dtype=np.int32).T
            made.append(Steps(kinds, state.copy(), own.copy(), node.copy(), place.copy()))
        return tuple(made)


def _joined(tables: Tables, ends: tuple[End, ...]) -> Numbers:
    """Return the index of the link between every two ends.

    It depends on which classes of alike servers are in either set, on which servers are in both, and on the fewer
    adapters: pairs of ends of which that is the same are looked at once.
    """
    instance, index = tables.instance, {link: at for at, link in enumerate(tables.links)}
    of_server = np.array(server_classes(instance))
    held = np.zeros((len(ends), len(of_server)), dtype=np.float32)
    for at, (row, _) in enumerate(ends):
        held[at, list(row)] = 1
    lanes = np.array([number for _, number in ends])
    _, code = np.unique(np.minimum.outer(lanes, lanes), return_inverse=True)
    code = code.reshape(len(ends), len(ends))
    for one in in_time(range(int(of_server.max()) + 1), tables.deadline):
        own = held[:, of_server == one]
        number, both = own.sum(axis=1), own @ own.T
        for bits in (number[:, None] > 0, number[None, :] > 0, both > 0, np.outer(number, number) > both):
            _, code = np.unique(2 * code + bits, return_inverse=True)
            code = code.reshape(len(ends), len(ends))
    found = np.zeros(int(code.max(initial=0)) + 1, dtype=np.int64)
    _, firsts = np.unique(code, return_index=True)
    for number, at in enumerate(in_time(firsts.tolist(), tables.deadline)):
        pair = [ends[one] for one in divmod(at, len(ends))]
        some = (Group(tuple((server, 1) for server in servers)) for servers, _ in pair)
        link = Group.link_between(instance, *some, lanes=min(number for _, number in pair))
        found[number] = -1 if link is None else index[link]
    return found[code]


def _numbers(values: list) -> Numbers:  # type: ignore[type-arg]
    return np.array(values, dtype=np.int32)
