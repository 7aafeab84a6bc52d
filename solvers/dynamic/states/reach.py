"""Which suffixes of a plan exist within a threshold T, by slot, node and first layer: reachability, no search.

    R[k][n, i]: stages in slots k .. 0 can hold the layers from i on, taking the devices of node n.

A stage in slot k on a group g of kind c that starts at layer i stops at a layer j in (i, E(k, c, i)], where E is
the furthest end within T and the memory that slot k leaves. So from the suffixes of slot k - 1

    R[k][n, i] = some step (state s, group g, node n) and some node m of s with  R[k-1][m, j],
                 i < j <= E(k, c, i), and the boundary at j over the link of g and m takes at most T.

Only the *next* possible cut behind i matters, as E is the furthest: one comparison for each step and layer. Bits
of layers are packed, so that the ways into a node are joined eight at a time.

Cost: for each slot O(steps x layers) comparisons and O(states x classes x layers), where two sets of servers are
of one class if the same cuts can be crossed from both; there are hardly ever more than some ten.

A plan is read off by walking back from a node in which a whole plan ends up to the last stage (:func:`path_of`).
Of all such nodes it is the one with the fewest devices, then the fewest stages; then stage by stage the step whose
stage stops last. Alike servers were exchanged on the way, so the walk translates servers back as it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.suffixes import slots_matter
from pipecut.solvers.dynamic.states.states import Numbers, StateSpace, Steps
from pipecut.solvers.dynamic.tables.stage_table import StageTable

Packed = NDArray[np.uint8]
MOST_AT_ONCE = 1 << 25
"""Comparisons that are made in one go: they take so many bytes of memory, three times over."""
Ends = Callable[[int], Times]
"""Return the furthest ends of a slot, by kind and first layer 0 .. N."""


@dataclass(frozen=True, slots=True, eq=False)
class Crossings:
    """Which cuts can be crossed: ``rows[joined[t, u]]`` (packed) between servers t and u; ``classes[t]`` of t."""

    rows: Packed
    joined: Numbers
    classes: Numbers

    def between(self, kind: int, nodes: Numbers, space: StateSpace) -> Packed:
        """Return the rows between servers of a class and the first stages of nodes."""
        servers = int(np.argmax(self.classes == kind))
        return self.rows[self.joined[servers, space.node_servers[nodes]]]


def crossings(tables: Tables, space: StateSpace, threshold_ns: int) -> Crossings:
    """Find the cuts whose boundary takes at most the threshold, for every pair of sets of servers."""
    both = tables.activation + tables.gradient
    free = np.ones((1, both.shape[1]), dtype=bool)
    bits = np.concatenate([both <= threshold_ns, free]) if len(both) else free
    bits[:, 0] = bits[:, -1] = True
    rows, same = np.unique(np.packbits(bits, axis=1), axis=0, return_inverse=True)
    joined = same.reshape(-1)[space.joined].astype(np.int32)
    some, of_set = np.unique(space.alike, return_inverse=True)
    _, classes = np.unique(joined[np.ix_(some, some)], axis=0, return_inverse=True)
    return Crossings(rows, joined, classes.reshape(-1)[of_set].astype(np.int32))


class StateReach:
    """The tables R for one threshold, slot by slot, with these furthest ``ends`` of stages.

    ``depth`` is the least slot that a whole plan starts in, None if there is none. With ``closed`` every layer
    behind the first possible one counts as possible, which makes R a table of single numbers (certificates).
    """

    def __init__(
        self, space: StateSpace, tables: Tables, threshold_ns: int, ends: Ends, *, closed: bool = False
    ) -> None:
        self.space = space
        self.threshold_ns = threshold_ns
        self.ends = ends
        self.total = tables.rows
        self.crossings = crossings(tables, space, threshold_ns)
        self.reached: list[Packed] = []
        self.depth: int | None = None
        self._closed = closed
        self._deadline = tables.deadline
        self._ways = [_different_ways(steps, self.crossings, space) for steps in space.steps]
        self._number = np.int16 if self.total < 30_000 else np.int32

    def grow(self) -> bool:
        """Add the next slot; return False if no suffix is that long."""
        slot = len(self.reached)
        table = np.zeros((len(self.space.node_state), self.total // 8 + 1), dtype=np.uint8)
        rows, following = self._following()
        for ways in self._ways:
            self._put_before(ways, rows, following, table)
        if self._closed:
            table = np.packbits(np.logical_or.accumulate(self._unpacked(table), axis=1)[:, : self.total], axis=1)
            table = np.pad(table, ((0, 0), (0, self.total // 8 + 1 - table.shape[1])))
        self.reached.append(table)
        if self.depth is None and bool(((table[:, 0] >= 128) & self.space.complete).any()):
            self.depth = slot
        return bool(table.any())

    def bits(self, slot: int) -> NDArray[np.bool_]:
        """Return R[slot], by node and first layer 0 .. N."""
        return self._unpacked(self.reached[slot])

    def _unpacked(self, table: Packed) -> NDArray[np.bool_]:
        return np.unpackbits(table, axis=1, count=self.total + 1).view(bool)

    def _following(self) -> tuple[Numbers, NDArray[np.signedinteger]]:
        """Return rows [class, state] and in each row, for every layer i, the next possible cut behind i."""
        space, classes = self.space, int(self.crossings.classes.max(initial=0)) + 1
        rows = np.full((classes, len(space.states)), -1, dtype=np.int32)
        if not self.reached:
            rows[:, space.empty] = 0
            return rows, np.full((1, self.total), self.total, dtype=self._number)
        last = self.reached[-1]
        nodes = np.flatnonzero(last.any(axis=1)).astype(np.int32)
        nodes = nodes[np.argsort(space.node_state[nodes], kind="stable")]
        if not len(nodes):
            return rows, np.zeros((0, self.total), dtype=self._number)
        states, firsts = np.unique(space.node_state[nodes], return_index=True)
        possible = [
            np.bitwise_or.reduceat(last[nodes] & self.crossings.between(one, nodes, space), firsts, axis=0)
            for one in range(classes)
        ]
        rows[:, states] = np.arange(classes * len(states)).reshape(classes, -1)
        return rows, self._next(self._unpacked(np.concatenate(possible)))

    def _next(self, possible: NDArray[np.bool_]) -> NDArray[np.signedinteger]:
        """Return for every layer i the least possible cut behind i; two past the end if there is none."""
        cuts = np.arange(1, self.total + 1, dtype=self._number)
        found = np.where(possible[:, 1:], cuts, self._number(self.total + 2))
        return np.minimum.accumulate(found[:, ::-1], axis=1)[:, ::-1]

    def _put_before(self, ways: _Ways, rows: Numbers, following: NDArray[np.signedinteger], table: Packed) -> None:
        """Join what stages on groups of the same kinds reach into the table of the next slot."""
        row = rows[ways.classes, ways.state]
        kept = np.flatnonzero(row >= 0)
        if not len(kept):
            return
        slot = len(self.reached)
        furthest = self.ends(slot)[list(ways.kinds), :-1].max(axis=0).astype(self._number)
        chunk = max(1, MOST_AT_ONCE // self.total)
        for some in in_time(np.split(kept, range(chunk, len(kept), chunk)), self._deadline):
            hits = np.packbits(following[row[some]] <= furthest, axis=1)
            nodes = ways.node[some]
            firsts = np.flatnonzero(np.diff(nodes, prepend=-1))
            table[nodes[firsts], : hits.shape[1]] |= np.bitwise_or.reduceat(hits, firsts, axis=0)


@dataclass(frozen=True, slots=True, eq=False)
class _Ways:
    """Steps of the same kinds that differ in class of servers, state before or node after; by ascending node."""

    kinds: tuple[int, ...]
    classes: Numbers
    state: Numbers
    node: Numbers


def _different_ways(steps: Steps, crossed: Crossings, space: StateSpace) -> _Ways:
    """Keep one of the steps that lead on in the same way: alike servers make many of them."""
    count, classes = len(space.states), int(crossed.classes.max(initial=0)) + 1
    keys = (steps.node.astype(np.int64) * count + steps.state) * classes + crossed.classes[steps.servers]
    rest, own = np.divmod(np.unique(keys), classes)
    node, state = np.divmod(rest, count)
    return _Ways(steps.kinds, own, state, node)


def reach_at(
    space: StateSpace,
    table: StageTable,
    threshold_ns: int,
    *,
    thorough: bool = True,
    closed: bool = False,
) -> StateReach | None:
    """Return what is reached through all slots, or if not ``thorough`` up to the first plan; None if stopped.

    It is stopped by the deadline of the tables.
    """
    instance = table.tables.instance
    # Where labels know no slots, closed ones may have more stages than there are layers: each takes a device.
    slotted = not closed or slots_matter(instance)
    slots = min(table.limits.total, instance.devices) if slotted else instance.devices
    rules = table.limits.slots(slots)
    known: dict[int, Times] = {}

    def ends(slot: int) -> Times:
        if rules[slot] not in known:
            known[rules[slot]] = table.ends(rules[slot], threshold_ns)
        return known[rules[slot]]

    reach = StateReach(space, table.tables, threshold_ns, ends, closed=closed)
    for _ in range(slots):
        if table.tables.deadline.over():
            return None
        if not reach.grow() or (reach.depth is not None and not thorough):
            break
    return reach


def path_of(reach: StateReach, tables: Tables) -> Plan | None:
    """Return a plan with form 0 everywhere, or None if no suffix is a whole plan.

    Cost: O(steps into the nodes on the way).
    """
    space = reach.space
    found = [
        (int(space.taken[node]), slot, int(node))
        for slot, reached in enumerate(reach.reached)
        for node in np.flatnonzero((reached[:, 0] >= 128) & space.complete)  # a whole plan ends up in it
    ]
    if not found:
        return None
    _, depth, node = min(found)
    real = tuple(range(len(tables.instance.servers)))
    stages: list[Stage] = []
    layer = 0
    for slot in range(depth, -1, -1):
        stop, steps, at, before = _step_back(reach, slot, node, layer)
        place = int(steps.place[at])
        moved = space.step(int(steps.state[at]), place).moved
        real = tuple(real[moved[server]] for server in range(len(real)))
        index = _fitting_group(reach, tables, (slot, place), (layer, stop))
        group = tables.groups[index]
        counts = tuple(sorted((real[server], count) for server, count in group.counts))
        own = replace(group, counts=counts)
        stages.append(Stage(Span(layer, stop), own, (0,) * (stop - layer)))
        node, layer = before, stop
    return Plan(tuple(stages))


def _step_back(reach: StateReach, slot: int, node: int, layer: int) -> tuple[int, Steps, int, int]:
    """Return (layer after the stage, steps, index of the step, node before) of a stage that reaches this node."""
    best: tuple[int, Steps, int, int] | None = None
    for steps in reach.space.steps:
        low, high = np.searchsorted(steps.node, [node, node + 1])
        if low == high:
            continue
        end = max(int(reach.ends(slot)[kind, layer]) for kind in steps.kinds)
        for at in range(low, high):
            for before, stop in _stops(reach, steps, at, slot, layer, end):
                if best is None or stop > best[0]:
                    best = (stop, steps, at, before)
    if best is None:
        raise LookupError(f"slot {slot}: no stage from layer {layer} reaches node {node}")
    return best


def _stops(reach: StateReach, steps: Steps, at: int, slot: int, layer: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (node before, last cut) where a stage of this step can stop."""
    space, state = reach.space, int(steps.state[at])
    if slot == 0:
        if state in space.empty and end >= reach.total:
            yield -1, reach.total
        return
    nodes = np.flatnonzero(space.node_state == state).astype(np.int32)
    crossed = reach.crossings.rows[reach.crossings.joined[steps.servers[at], space.node_servers[nodes]]]
    possible = np.unpackbits(reach.reached[slot - 1][nodes] & crossed, axis=1, count=reach.total + 1)
    possible[:, : layer + 1] = 0
    possible[:, end + 1 :] = 0
    for node, row in zip(nodes, possible, strict=True):
        cuts = np.flatnonzero(row)
        if len(cuts):
            yield int(node), int(cuts[-1])


def _fitting_group(reach: StateReach, tables: Tables, where: tuple[int, int], span: tuple[int, int]) -> int:
    """Return the first way in which the devices of a place hold a span of layers in a slot."""
    slot, place = where
    for index in reach.space.suffixes.places[place].groups:
        if int(reach.ends(slot)[tables.kind_of[index], span[0]]) >= span[1]:
            return index
    raise LookupError(f"slot {slot}: no way of place {place} holds layers {span[0]} to {span[1]}")
