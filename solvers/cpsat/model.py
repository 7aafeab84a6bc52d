"""The whole model for one threshold: variables, then every family there is.

Redundant families for executed times: how far a slot can reach, from the least that its passes take.

What follows from the order of passes is a sum over the layers of one slot and a sum over all others, so with the
threshold fixed "kind c in slot k can hold layers i to j" is a yes/no table, monotone in i and j, as for
``staircase`` (``solvers.cpsat.model``).

(106) ``reach_in_time``: a slot of kind c that starts at layer i or earlier ends at ``E(k, c, i)`` at the latest.

Redundant families: implied by the others, they make infeasibility visible early.

They need lower limits of stage times, not exact ones: sums of what each layer takes at least. So this proof leans
on no dynamic programme.

(101) ``staircase``: a slot of kind c that starts at layer i or earlier ends at ``E(c, i)`` at the latest. With the
    threshold fixed, "kind c can hold layers i to j" is a yes/no table, monotone in i and j, hence one clause of
    three literals for each step of the stairs (design note: monotone tables on order-encoded cut points).
(102) ``area`` and (103) ``alike``: see ``solvers.cpsat.constraints.symmetry``.
(106) ``reach_in_time``, for executed times: see ``solvers.cpsat.model``.

Between what values an objective lies, and what the limits of an instance say of its stages.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import pipecut.formulation.costs.bounds as formulation_costs_bounds
import pipecut.solvers.cpsat.constraints as room
from pipecut.formulation.costs.bounds import ceiling
from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.groups import line
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.options import Combine, StageTime, Synchronisation
from pipecut.formulation.problem.training import Schedule
from pipecut.solvers.cpsat.constraints.clocks import TIME_FAMILIES
from pipecut.solvers.cpsat.constraints.executed import EXECUTED
from pipecut.solvers.cpsat.constraints.passes import pass_prices
from pipecut.solvers.cpsat.constraints.symmetry import area, device_prices, post_alike
from pipecut.solvers.cpsat.variables import PLAN_FAMILIES, Family, Posted, Variables, make_variables

NEVER_NS = 1 << 61
"""What a layer takes in a form that there is not; sums of the least never have it."""


@dataclass(frozen=True, slots=True)
class Floor:
    """What a stage takes at least of ``often`` times the goal.

    ``sums[k, i]`` is a prefix sum (length N + 1) over layers on kind k, ``before[i]`` what is added for a stage
    that starts at layer i.
    """

    sums: Times
    before: Times
    often: int

    def furthest(self, kind: int, most: int) -> Times:
        """Return for every first layer the last layer index at which such a stage may stop."""
        own = self.sums[kind]
        return np.searchsorted(own, own + (most * self.often - self.before), side="right") - 1


class PassFloors:
    """The floors of an instance, slot by slot."""

    def __init__(self, tables: Tables) -> None:
        self.tables, self.prices = tables, pass_prices(tables)
        self.sides = range(len(self.prices.passes["forward"]))

    def of_slot(self, slot: int) -> Iterator[Floor]:
        """Yield what is known of a stage in this slot."""
        nothing, steps = np.zeros(self.tables.rows + 1, dtype=np.int64), self._steps
        for side in self.sides:
            if self.tables.instance.goals[0] is Goal.PERIOD:
                yield Floor(_prefix(self._least(side, steps, steps, int(self._charged))), nothing, steps)
                yield Floor(_prefix(self._least(side, 0, 0, 1)), nothing, steps)
                continue
            down = _prefix(self._least(side, 1, 0, 0).min(axis=0))
            yield Floor(_prefix(self._least(side, steps, steps, 1)), down, 1)
            once = self._least(side, 1, 1, 0).min(axis=0)
            yield Floor(_prefix(self._least(side, steps, steps, 0)), _prefix(once), 1)
            for forward, backward, every in self._through(slot):
                own = self._least(side, forward, backward, 0) - every * once
                yield Floor(_prefix(own), nothing + every * int(once.sum()), 1)

    def _through(self, slot: int) -> Iterator[tuple[int, int, int]]:
        """Yield how many passes of a slot lie on a path that takes so many micro-batches through all slots."""
        training, steps = self.tables.instance.training, self._steps
        if training.schedule is Schedule.NAIVE:
            yield steps, steps, steps
        elif training.schedule is Schedule.GPIPE:
            yield steps, steps, 1
        else:
            some = 1 if training.chooses_warm_ups else steps - training.warm_up_in(slot) + 1
            yield from {(some, steps, 1), (steps, some, 1)}

    @property
    def _steps(self) -> int:
        return self.tables.instance.training.micro_batches

    @property
    def _charged(self) -> bool:
        return self.tables.instance.cost.synchronisation is Synchronisation.CHARGED

    def _least(self, side: int, forward: int, backward: int, sync: int) -> Times:
        """Return by kind and layer the least of so many passes, over all forms and choices."""
        passes, layers = self.prices.passes, self.prices.layers
        weights = {"forward": forward, "backward": backward, "again": backward}
        possible = layers[0] < FORBIDDEN
        whole = np.zeros_like(layers[0])
        for name, columns in passes.items():
            column = columns[0] if name == "sync" else columns[side]
            whole += (sync if name == "sync" else weights[name]) * np.where(possible, layers[column], 0)
        least = np.where(possible, whole, NEVER_NS).min(axis=-1)
        for base, again in self.tables.recomputing().items():
            least[base] = least[again] = np.minimum(least[base], least[again])
        return least


def _prefix(values: Times) -> Times:
    start = np.zeros((*values.shape[:-1], 1), dtype=np.int64)
    return np.concatenate([start, np.cumsum(values, axis=-1, dtype=np.int64)], axis=-1)


def reach_in_time(floors: PassFloors) -> Callable[[Variables], Posted]:
    """(106) Return the family's generator for these floors."""

    def post(v: Variables) -> Posted:
        most = v.thresholds.get(v.tables.instance.goals[0])
        for k in range(v.slots) if most is not None else ():
            known = list(floors.of_slot(k))
            for c in range(len(v.tables.kinds)):
                ends = np.min([one.furthest(c, most or 0) for one in known], axis=0)
                for i in range(v.layers):
                    if ends[i] < min(int(ends[i + 1]), v.layers):
                        stop = v.starts_by(k - 1, max(0, int(ends[i])))
                        yield (k, c, i), v.model.add_bool_or([~v.starts[k][i], ~v.kind[k][c], stop])

    return post


LARGEST_AREA = 1 << 60
"""Prices times a time: sums of two of them fit CP-SAT, which keeps a bit in reserve."""


@dataclass(frozen=True, slots=True)
class Floors:
    """Lower limits: ``sums[s][k, i]`` is a prefix sum (length N + 1) that no stage of kind k can undercut.

    ``area[i]`` is the prefix sum of the least price-weighted time of each layer, in units of ``unit_ns`` and
    rounded down; ``offer[p]`` the price of the first p devices of the line. The unit is 1 ns unless prices times
    the longest time could leave 64 bits.
    """

    sums: tuple[Times, ...]
    area: Times
    offer: Times
    unit_ns: int
    memory: MemoryFloors | None


@dataclass(frozen=True, slots=True)
class MemoryFloors:
    """Prefix sums, by kind, of the least bytes that layers hold in any possible form, without working sets."""

    tables: MemoryTables
    once: Times
    by_version: Times
    by_micro_batch: Times

    def furthest(self, kind: int, slot: int) -> Times:
        """Return for every first layer the last layer index at which a stage of this slot may stop."""
        keeps = self.tables.keeps(slot)
        held = (
            self.once[kind] + keeps.versions * self.by_version[kind] + keeps.in_flight * self.by_micro_batch[kind]
        )
        return np.searchsorted(held, held + self.tables.capacity[kind], side="right") - 1


def floors(tables: Tables) -> Floors:
    """Add up what every layer takes at least on every kind, whatever its form."""
    least = np.where(tables.inside.min(axis=2) >= FORBIDDEN, 0, tables.inside.min(axis=2))
    follows = np.array([layer.split is Split.FOLLOW for layer in tables.instance.layers])
    least[:, follows] = 0
    parts = (tables.compute, least)
    if tables.instance.cost.stage_time is StageTime.ADD:
        parts = (tables.compute + least,)
    prices = device_prices(tables)
    per_kind = np.array([kind.devices * min(prices[one] for one in kind.classes) for kind in tables.kinds])
    position = [prices[tables.instance.class_index(server)] for server in line(tables.instance)]
    offer = np.concatenate([[0], np.cumsum(np.array(position, dtype=np.int64))])
    unit_ns = -(-ceiling(tables, Goal.BOTTLENECK) * int(offer[-1]) // LARGEST_AREA) or 1
    return Floors(
        sums=tuple(_prefix(part) for part in parts),
        area=_prefix((parts[0] // unit_ns * per_kind[:, None]).min(axis=0)),
        offer=offer,
        unit_ns=unit_ns,
        memory=_memory_floors(tables) if tables.instance.constraints.memory else None,
    )


def _memory_floors(tables: Tables) -> MemoryFloors:
    held = MemoryTables.of(tables)
    least = (_prefix(held.least(part)) for part in (held.once, held.by_version, held.by_micro_batch))
    return MemoryFloors(held, *least)


def furthest(limits: Floors, kind: int, slot: int, threshold_ns: int) -> Times:
    """Return ``E(kind, i)`` for every first layer i: the last layer index at which such a stage may stop.

    It depends on the slot only where memory is limited (copies of weights and micro-batches in flight).
    """
    ends = [np.searchsorted(prefix[kind], prefix[kind] + threshold_ns, side="right") - 1 for prefix in limits.sums]
    if limits.memory is not None:
        ends.append(limits.memory.furthest(kind, slot))
    return np.min(np.stack(ends), axis=0)


def staircase(limits: Floors) -> Callable[[Variables], Posted]:
    """(101) Return the family's generator for these lower limits."""

    def post(v: Variables) -> Posted:
        for c in range(len(v.tables.kinds)):
            for k in range(v.slots):
                ends = furthest(limits, c, k, v.threshold_ns)
                for i in range(v.layers):
                    if ends[i] < min(int(ends[i + 1]), v.layers):
                        stop = v.starts_by(k - 1, int(ends[i]))
                        yield (k, c, i), v.model.add_bool_or([~v.starts[k][i], ~v.kind[k][c], stop])

    return post


def redundant_families(tables: Tables) -> tuple[Family, ...]:
    """Return the redundant families for an instance; its lower limits are computed once."""
    limits = floors(tables)
    found = (
        Family(101, "staircase", staircase(limits)),
        Family(102, "area", area(limits.area, limits.offer, limits.unit_ns)),
        Family(103, "alike", post_alike),
    )
    if not tables.instance.goals[0].executed:
        return found
    return (*found, Family(106, "reach_in_time", reach_in_time(PassFloors(tables))))


def thresholds_of(tables: Tables, threshold: int | None) -> dict[Goal, int]:
    """Return what plans may have at most of every goal: the user's limits, and ``threshold`` of the first goal.

    A limit that no plan can reach is lowered to what plans can have: the model counts in 64 bits.
    """
    instance = tables.instance
    limits = {one.goal: min(one.at_most, ceiling(tables, one.goal)) for one in instance.constraints.at_most}
    if threshold is not None:
        first = instance.goals[0]
        limits[first] = min(threshold, limits.get(first, threshold))
    return limits


def stage_threshold_ns(tables: Tables, limits: Mapping[Goal, int]) -> int:
    """Return what every stage and boundary takes at most: an iteration has a place for M of the slowest."""
    found = [ceiling(tables, Goal.BOTTLENECK)]
    if Goal.BOTTLENECK in limits:
        found.append(limits[Goal.BOTTLENECK])
    if Goal.ITERATION_TIME in limits:
        found.append(limits[Goal.ITERATION_TIME] // tables.instance.training.micro_batches)
    return min(found)


def lower_bound(tables: Tables, limits: Floors) -> int:
    """Return a value that no objective can undercut: the solver-free one, or more where the tables know more."""
    return max(formulation_costs_bounds.lower_bound(tables.instance), _by_tables(tables, limits))


def _by_tables(tables: Tables, limits: Floors) -> int:
    """Return a lower limit of times from areas and single layers with their communication; 0 for other goals."""
    goal, training = tables.instance.goals[0], tables.instance.training
    if goal is Goal.BOTTLENECK:
        return lower_bound_ns(tables, limits)
    if goal is not Goal.ITERATION_TIME:
        return 0
    pace, latency = lower_bound_ns(tables, limits), _latency_floor_ns(limits)
    if training.schedule is Schedule.NAIVE:
        return training.micro_batches * latency
    if not training.schedule.flushes:
        return training.micro_batches * pace
    return max(latency, pace) + (training.micro_batches - 1) * pace


def lower_bound_ns(tables: Tables, limits: Floors) -> int:
    """Return a time that no bottleneck can undercut."""
    if tables.instance.cost.combine is Combine.SUM:
        return _latency_floor_ns(limits)
    alone = max(int(np.diff(prefix).min(axis=0).max()) for prefix in limits.sums)
    return max(alone, -(-limits.unit_ns * int(limits.area[-1]) // int(limits.offer[-1])))


def _latency_floor_ns(limits: Floors) -> int:
    """Return what all layers one after another take at least."""
    return int(max(np.diff(prefix).min(axis=0).sum() for prefix in limits.sums))


def _posted_families() -> Iterator[Family]:
    """Yield the family of every constraint: whatever lies in the folders below the room of constraints."""
    for folder in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
        if folder.ispkg:
            for one in pkgutil.iter_modules(importlib.import_module(folder.name).__path__, f"{folder.name}."):
                yield importlib.import_module(one.name).FAMILY


FAMILIES: tuple[Family, ...] = tuple(
    sorted((*PLAN_FAMILIES, *TIME_FAMILIES, EXECUTED, *_posted_families()), key=lambda family: family.number)
)
"""The families that define a plan and its objective; redundant ones are in ``solvers.cpsat.model``."""


def build_model(
    tables: Tables,
    threshold: int | None,
    families: Sequence[Family],
    *,
    names: bool = False,
) -> Variables:
    """Post the families to a new model that asks for a plan whose first goal is at most ``threshold`` (None: any).

    With ``names`` every constraint is called ``family[index]``, for reading an exported model; naming takes
    longer than building. Raises StoppedError after the deadline of the tables.
    Cost: O(slots x layers x kinds) clauses.
    """
    instance = tables.instance
    slots = min(len(instance.layers), instance.devices)
    limits = thresholds_of(tables, threshold)
    v = make_variables(tables, limits, stage_threshold_ns(tables, limits), slots)
    for family in families:
        for index, constraint in in_time(family.post(v), tables.deadline):
            if names:
                constraint.with_name(f"{family.name}[{','.join(map(str, index))}]")
    return v
