"""The bottleneck in any order of the atoms, exactly as far as it goes, where cuts are few: sets, not orders.

What stages hold up to a cut is a *downset*: with every atom all that it takes tensors from. A plan in any order
is a chain of downsets from none to all atoms, and what lies between two neighbours is a stage. So the least
bottleneck of all orders is a programme over downsets and the states of ``formulation.suffixes.states``::

    V[n, I] = least of  max( time of J - I on the stage's group, boundary at J, V[m, J] )
              over stages on a group that lead from a node m to node n, and downsets J above I

A boundary depends on its downset alone: the bytes of all tensors made in it and read outside. The time of a
stage is at first a sum over its atoms (:class:`solvers.choices.relaxed.Loads`), which no stage undercuts. The
stages of the best chain are then priced over all their forms, and the programme is asked again, until the best
chain consists of stages that are priced so. Memory, demands, what a receiver pays and what shared weights cost
are left out: all of these only take plans away or make them slower. So no plan of any order is below the value
of the best chain.

Cost: for every question pairs of nested downsets x steps of the states x kinds of a place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from formulation.costs.least import StagePrices
from formulation.limits.deadline import Deadline, StoppedError, in_time
from formulation.limits.size import TooLargeError
from formulation.outcome import Limits
from formulation.problem.constraints import Placement
from formulation.problem.cuts import AtomGraph
from formulation.problem.groups import Group, GroupKind
from formulation.problem.instance import Instance
from formulation.problem.options import Boundary, StageTime
from formulation.problem.units import Link, Volume
from formulation.suffixes.states import End, State, Step, Suffixes, suffixes
from solvers.choices.relaxed import Loads, Relaxed

Numbers = NDArray[np.int64]
Node = tuple[State, End | None]
"""A state of devices and the end of the first stage of its suffix; None behind the last stage."""
Values = dict[State, dict[End | None, Numbers]]
"""V of every node, by downset."""
MOST_DOWNSETS = 3_000
MOST_WORK = 2_000_000_000
"""Pairs of downsets x steps, above which the programme is not begun: about a minute."""


def over_downsets(instance: Instance, atoms: AtomGraph, below_ns: int, limits: Limits) -> Relaxed:
    """Search all orders for a bottleneck of less than ``below_ns``, as the slowest of all stages and boundaries.

    ``bound_ns`` is at most ``below_ns``: where it is ``below_ns``, no order has anything better. Raises
    TooLargeError where downsets, states of devices, or both together are too many.
    """
    bound_ns, orders = 0, list[tuple[int, ...]]()
    with contextlib.suppress(StoppedError):
        search = _Search(instance, atoms, below_ns, limits.deadline)
        while (chain := search.best()) is not None:
            bound_ns = max(bound_ns, chain.value_ns)
            orders.append(search.order(chain))
            if not search.priced(chain):
                break
        else:
            bound_ns = below_ns
    return Relaxed(bound_ns, tuple(reversed(orders)))


@dataclass(frozen=True, slots=True)
class _Chain:
    """The best chain: its value, and of every stage its kinds, the downset before it, and the one behind it."""

    value_ns: int
    stages: tuple[tuple[tuple[GroupKind, ...], int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Pairs of downsets whose stage is below the limit, by the smaller one, and what the stage takes."""

    low: Numbers
    up: Numbers
    spent: Numbers

    @staticmethod
    def of(limit_ns: int, low: Numbers, up: Numbers, rows: list[Numbers]) -> _Pairs:
        spent = np.max([row[up] - row[low] for row in rows], axis=0)
        kept = spent < limit_ns
        return _Pairs(low[kept], up[kept], spent[kept])

    def lower(self, found: Numbers, behind: Numbers) -> None:
        """Lower what is found of every downset to the best that a stage makes of what lies behind larger ones."""
        if len(self.low):
            firsts = np.flatnonzero(np.diff(self.low, prepend=-1))
            best = np.minimum.reduceat(np.maximum(self.spent, behind[self.up]), firsts)
            found[self.low[firsts]] = np.minimum(found[self.low[firsts]], best)


class _Search:
    """The downsets, what stages between them take as far as it is known, and the states of devices."""

    def __init__(self, instance: Instance, atoms: AtomGraph, below_ns: int, deadline: Deadline) -> None:
        self.instance, self.atoms, self.below_ns, self.deadline = instance, atoms, below_ns, deadline
        # Which layer has weights that several use depends on the order; what the others take does not.
        self._untied = replace(instance, model=instance.model.untied())
        self.downsets = atoms.downsets(MOST_DOWNSETS)
        self.held = np.array([[one >> atom & 1 for atom in range(len(atoms))] for one in self.downsets])
        self.suffixes: Suffixes = suffixes(instance, deadline)
        groups = Group.possible(instance, deadline)
        self.kinds = [
            tuple(dict.fromkeys(GroupKind.all_of(instance, (groups[index] for index in place.groups))))
            for place in self.suffixes.places
        ]
        self._steps = self._all_steps()
        self.pairs = self._all_pairs()
        used = (step.place for row in self._steps.values() for step in row)
        work = sum(len(self.pairs[kind].low) for place in used for kind in self.kinds[place])
        if work > MOST_WORK:
            raise TooLargeError(f"{work} steps over pairs of downsets, at most {MOST_WORK} are searched")
        self._crossing = _crossing_bytes(instance, atoms, self.held)
        self._boundary, self._transfer = cache(self._boundary_ns), cache(self._transfer_ns)
        self._exact: set[tuple[GroupKind, int, int]] = set()

    def best(self) -> _Chain | None:
        """Return the best chain by what is known of stages, None if none is below the limit."""
        nowhere = np.full(len(self.downsets), self.below_ns)
        values: Values = {}
        for state in self.suffixes.empty():
            values[state] = {None: nowhere.copy()}
            values[state][None][-1] = 0
        for state, steps in in_time(self._steps.items(), self.deadline):
            for step in steps:
                behind = self._behind(values, state, step)
                found = values.setdefault(step.state, {}).setdefault(step.first, nowhere.copy())
                for kind in self.kinds[step.place]:
                    self.pairs[kind].lower(found, behind)
        whole = [
            (int(found[0]), state, end)
            for state, ends in values.items()
            for end, found in ends.items()
            if end is not None and self.suffixes.complete(state)
        ]
        value_ns, state, end = min(whole, default=(self.below_ns, (), ((), 0)))
        return None if value_ns >= self.below_ns else _Chain(value_ns, tuple(self._walk(values, state, end)))

    def order(self, chain: _Chain) -> tuple[int, ...]:
        """Return the atoms stage by stage, within a stage as in the given order."""
        return tuple(atom for _, low, up in chain.stages for atom in self._stage(low, up))

    def priced(self, chain: _Chain) -> bool:
        """Price the stages of a chain over all their forms; tell whether one takes longer than was known."""
        order, longer, start = self.order(chain), False, 0
        layers = replace(self._untied, model=self._untied.model.in_order(self.atoms.layers(order)))
        prices = StagePrices(layers)
        for kinds, low, up in chain.stages:
            stop = start + len(self.atoms.layers(self._stage(low, up)))
            for kind in kinds:
                longer |= self._price(prices, (kind, low, up), start, stop)
            start = stop
        return longer

    def _price(self, prices: StagePrices, stage: tuple[GroupKind, int, int], start: int, stop: int) -> bool:
        if stage in self._exact:
            return False
        self._exact.add(stage)
        kind, low, up = stage
        computing = prices.floors(kind)[0]
        spent, talking = computing[stop] - computing[start], prices.communication_ns(kind, start, stop)
        overlap = self.instance.cost.stage_time is StageTime.OVERLAP
        exact, pairs = max(spent, talking) if overlap else spent + talking, self.pairs[kind]
        at = np.flatnonzero((pairs.low == low) & (pairs.up == up))
        longer = bool((pairs.spent[at] < exact).any())
        pairs.spent[at] = np.maximum(pairs.spent[at], exact)
        return longer

    def _walk(self, values: Values, state: State, end: End) -> Iterator[tuple[tuple[GroupKind, ...], int, int]]:
        """Yield the stages of the best chain of a node, from the first on."""
        at, node = 0, (state, end)
        while at != len(self.downsets) - 1:
            node, kinds, up = self._step_back(values, node, at)
            yield kinds, at, up
            at = up

    def _step_back(self, values: Values, node: Node, at: int) -> tuple[Node, tuple[GroupKind, ...], int]:
        """Return the node behind the first stage of the best chain from a downset on, its kinds and its end."""
        for state, steps in self._steps.items():
            for step in steps if state in values else ():
                if (step.state, step.first) != node:
                    continue
                behind = self._behind(values, state, step)
                for kind in self.kinds[step.place]:
                    pairs = self.pairs[kind]
                    rows = slice(*np.searchsorted(pairs.low, [at, at + 1]))
                    fits = np.maximum(pairs.spent[rows], behind[pairs.up[rows]]) <= values[node[0]][node[1]][at]
                    if fits.any():
                        up = int(pairs.up[rows][np.flatnonzero(fits)[-1]])
                        reach = self._joined(values, state, step)
                        before = min(reach, key=lambda end: reach[end][up])
                        return (state, before), self.kinds[step.place], up
        raise LookupError(f"no stage makes up {values[node[0]][node[1]][at]} ns")

    def _behind(self, values: Values, state: State, step: Step) -> Numbers:
        """Return for every downset what lies behind a stage that ends there, with its boundary."""
        return np.min(list(self._joined(values, state, step).values()), axis=0)

    def _joined(self, values: Values, state: State, step: Step) -> dict[End | None, Numbers]:
        own = self.suffixes.places[step.place].end
        return {
            end: behind if end is None else np.maximum(behind, self._boundary(own, end))
            for end, behind in values[state].items()
        }

    def _boundary_ns(self, one: End, other: End) -> Numbers:
        groups = (Group(tuple((server, 1) for server in servers)) for servers, _ in (one, other))
        return self._transfer(Group.link_between(self.instance, *groups, lanes=min(one[1], other[1])))

    def _transfer_ns(self, link: Link | None) -> Numbers:
        """Return the time of every downset's boundary over a link."""
        ways = {Boundary.NONE: 0, Boundary.ACTIVATION: 1, Boundary.BOTH: 2}[self.instance.cost.boundary]
        if link is None or not ways:
            return np.zeros(len(self.downsets), dtype=np.int64)
        return np.array([ways * Volume(Fraction(one), 1).transfer_ns(link) for one in self._crossing])

    def _all_steps(self) -> dict[State, list[Step]]:
        """Return the stages before every state, each state behind all from which stages lead to it."""
        found: dict[State, list[Step]] = {}
        waiting = self.suffixes.empty()
        while waiting:
            self.deadline.check()
            state = waiting.pop()
            if state not in found:
                found[state] = list(self.suffixes.before(state))
                waiting += [step.state for step in found[state]]
        # On the line the first device taken falls from step to step, elsewhere the number of those taken rises.
        on_line = self.instance.constraints.placement is Placement.LINE
        return dict(sorted(found.items(), key=lambda row: -sum(row[0]) if on_line else sum(row[0])))

    def _all_pairs(self) -> dict[GroupKind, _Pairs]:
        prices, loads = StagePrices(self._untied), Loads(self.instance, self.atoms)
        low, up = _nested(self.downsets, self.deadline)
        kinds = {kind for row in self.kinds for kind in row}
        needed = 3 * low.nbytes * len(kinds)
        TooLargeError.refuse_above("the times of stages of any order", needed, "give an order")
        found: dict[GroupKind, _Pairs] = {}
        for kind in kinds:
            self.deadline.check()
            found[kind] = _Pairs.of(
                self.below_ns,
                low,
                up,
                [self.held @ np.array(row, dtype=np.int64) for row in loads.of(kind, prices)],
            )
        return found

    def _stage(self, low: int, up: int) -> list[int]:
        return np.flatnonzero(self.held[up] > self.held[low]).tolist()


def _nested(downsets: list[int], deadline: Deadline) -> tuple[Numbers, Numbers]:
    """Return all pairs of a downset and a larger one that contains it, by the smaller one."""
    words = max(downsets).bit_length() // 64 + 1
    parts = np.array(
        [[one >> 64 * word & (1 << 64) - 1 for word in range(words)] for one in downsets], dtype=np.uint64
    )
    ups = [
        np.flatnonzero(((row & ~parts[at + 1 :]) == 0).all(axis=1)) + at + 1
        for at, row in in_time(enumerate(parts), deadline)
    ]
    low = np.repeat(np.arange(len(downsets)), [len(row) for row in ups])
    return low, np.concatenate([*ups, np.zeros(0, dtype=np.int64)])


def _crossing_bytes(instance: Instance, atoms: AtomGraph, held: Numbers) -> list[int]:
    """Return for every downset the bytes that cross the cut behind it (``formulation.costs.times.cut_bytes``)."""
    atom_of, readers = atoms.atom_of(), dict[int, dict[int, int]]()
    for edge in instance.edges:
        one, other = atom_of[edge.producer], atom_of[edge.consumer]
        if one != other:
            row = readers.setdefault(edge.producer, {})
            row[other] = row.get(other, 0) + edge.size_bytes
    found = np.zeros(len(held), dtype=np.int64)
    for producer, row in readers.items():
        sent = (1 - held[:, list(row)]) @ np.array(list(row.values()))
        found += held[:, atom_of[producer]] * np.minimum(sent, instance.output_bytes[producer])
    return found.tolist()
