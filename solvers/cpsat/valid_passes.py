"""Redundant families for executed times: how far a slot can reach, from the least that its passes take.

What follows from the order of passes is a sum over the layers of one slot and a sum over all others, so with the
threshold fixed "kind c in slot k can hold layers i to j" is a yes/no table, monotone in i and j, as for
``staircase`` (``solvers.cpsat.valid``).

(106) ``reach_in_time``: a slot of kind c that starts at layer i or earlier ends at ``E(k, c, i)`` at the latest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from formulation.costs.tables import Tables, Times
from formulation.problem.constraints import Goal
from formulation.problem.instance import FORBIDDEN
from formulation.problem.options import Synchronisation
from formulation.problem.training import Schedule
from solvers.cpsat.base.families import Posted
from solvers.cpsat.base.pass_prices import pass_prices
from solvers.cpsat.base.variables import Variables

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
