"""Redundant families: implied by the others, they make infeasibility visible early.

They need lower limits of stage times, not exact ones: sums of what each layer takes at least. So this proof leans
on no dynamic programme.

(101) ``staircase``: a slot of kind c that starts at layer i or earlier ends at ``E(c, i)`` at the latest. With the
    threshold fixed, "kind c can hold layers i to j" is a yes/no table, monotone in i and j, hence one clause of
    three literals for each step of the stairs (design note: monotone tables on order-encoded cut points).
(102) ``area`` and (103) ``alike``: see ``solvers.cpsat.constraints.placing``.
(106) ``reach_in_time``, for executed times: see ``solvers.cpsat.valid_passes``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from formulation.costs.ceiling import ceiling
from formulation.costs.memory_tables import MemoryTables
from formulation.costs.tables import Tables, Times
from formulation.problem.constraints import Goal
from formulation.problem.groups import line
from formulation.problem.instance import FORBIDDEN
from formulation.problem.layers import Split
from formulation.problem.options import StageTime
from solvers.cpsat.base.families import Family, Posted
from solvers.cpsat.base.variables import Variables
from solvers.cpsat.constraints.placing import area, device_prices, post_alike
from solvers.cpsat.valid_passes import PassFloors, reach_in_time

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


def _prefix(values: Times) -> Times:
    start = np.zeros((*values.shape[:-1], 1), dtype=np.int64)
    return np.concatenate([start, np.cumsum(values, axis=-1, dtype=np.int64)], axis=-1)


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
