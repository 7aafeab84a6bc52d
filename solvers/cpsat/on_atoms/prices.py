"""What the layers before and behind every place must pay for their devices, at prices by device class.

Let a device of a class cost a price of 0 or more, whatever it is used for, and let ``reach[k][c, i]`` be how far a
stage of slot k and kind c may go from place i. Then at most n stages, those of slots n - 1 to 0, can hold the
layers from place i on for ``behind[n][i]`` and for no less, and stages of slots n and further in front those
before place j for ``before[n][j]``:

    behind[n + 1][i] = min(behind[n][i],  min over kinds c of  price(c) + behind[n][reach[n][c, i]])
    before[n][j]     = min over kinds c of  price(c) + before[n + 1][least i with reach[n][c, i] >= j]

These are cheapest ways through places. *Why they never exceed what a plan pays:* no stage of a plan within the
threshold stops behind its reach, so a plan is such a way, but for stages that stop before their reach. These make
no way cheaper: reach never falls from place to place, so what holds the layers from a place on can be cut short to
hold those from a later place on, and costs no more. The price of a kind is that of its cheapest group. A way may
use a device twice, which no plan does; so devices are compared by what all of them cost together.

Every price vector gives true rows. The one at which the cheapest way costs most, against all devices, gives the
tightest (the dual of forgetting that each device is there once). It is sought in steps: what is used too often
becomes dearer. Areas of layers are the special case in which a stage pays for its layers one by one. No devices
that are taken are a state here, as they are in the programmes over devices, with which this shares no code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import in_time
from pipecut.solvers.cpsat.variables import Expression, Posted, Variables

ALL_DEVICES = 1_000_000
"""About what all devices cost, where their classes differ: prices are whole numbers."""
STEPS = 60
"""How often prices are moved for a threshold."""


@dataclass(frozen=True, slots=True)
class CheapestWays:
    """Prices, and what cheapest ways cost at them; what costs more than all devices costs ``total + 1``.

    ``used`` counts the devices of each class on the cheapest way of all layers.
    """

    total: int
    of_group: Times
    of_kind: Times
    behind: list[Times]
    used: Times

    @property
    def share(self) -> float:
        """What all layers cost, as a share of what all devices do; above 1 there is no plan."""
        return int(self.behind[-1][0]) / self.total

    def before(self, reach: Sequence[Times]) -> list[Times]:
        """Return what the layers before every place cost, by the last slot that may hold some."""
        none = np.full(len(self.behind[0]), self.total + 1)
        none[0] = 0
        found, places = [none], np.arange(len(none))
        for ends in reversed(reach):
            cheapest = none.copy()
            for kind, price in enumerate(self.of_kind):
                starts = np.searchsorted(ends[kind], places)
                paid = np.where(starts < places, found[-1][np.minimum(starts, places)] + price, self.total + 1)
                cheapest = np.minimum(cheapest, paid)
            # A way may be cut short at its end as well, whatever slots its stages have then.
            found.append(np.minimum.accumulate(cheapest[::-1])[::-1])
        return found[::-1]

    def around(self, reach: Sequence[Times], before: Sequence[Times]) -> list[Times]:
        """Return by slot what a stage of each kind from each place on costs with the cheapest ways around it.

        ``before`` are :meth:`before` of this reach.
        """
        price = self.of_kind[:, None]
        return [before[k + 1] + price + self.behind[k][ends] for k, ends in enumerate(reach)]


class DevicePrices:
    """Prices of devices by class, which move on from threshold to threshold."""

    def __init__(self, tables: Tables) -> None:
        """Begin with equal prices."""
        instance, self._deadline = tables.instance, tables.deadline
        self._kind_of, self._kinds = np.array(tables.kind_of), len(tables.kinds)
        self._counts = np.zeros((len(tables.groups), len(instance.device_classes)), dtype=np.int64)
        for at, group in enumerate(tables.groups):
            for server, count in group.counts:
                self._counts[at, instance.class_index(server)] += count
        self._owned = np.zeros(len(instance.device_classes), dtype=np.int64)
        for server, row in enumerate(instance.servers):
            self._owned[instance.class_index(server)] += row.devices
        self._weights = np.ones(len(self._owned))

    def dearest(self, reach: Sequence[Times]) -> CheapestWays:
        """Move prices until no plan can pay them, or the steps are used up; return the ways that cost most.

        ``reach`` is that of every slot. Raises StoppedError after the deadline.
        Cost: O(slots x kinds x places) in numpy for each step; no step where there is one class.
        """
        weights, best = self._weights, self._at(self._weights, reach)
        last = best
        for step in in_time(range(STEPS if len(weights) > 1 else 0), self._deadline):
            if best.share > 1:
                break
            overuse = (last.used - self._owned) / self._owned.max()
            weights = weights * np.exp(overuse / (2 * (1 + step) ** 0.5))
            last = self._at(weights, reach)
            if last.share > best.share:
                best, self._weights = last, weights
        return best

    def _at(self, weights: np.ndarray[tuple[int], np.dtype[np.float64]], reach: Sequence[Times]) -> CheapestWays:
        scale = ALL_DEVICES / float(weights @ self._owned) if len(weights) > 1 else 1.0
        prices = np.maximum(np.rint(weights * scale), 1).astype(np.int64)
        total, of_group = int(prices @ self._owned), self._counts @ prices
        of_kind = np.full(self._kinds, total + 1)
        np.minimum.at(of_kind, self._kind_of, of_group)
        places = reach[0].shape[1]
        behind = [np.where(np.arange(places) < places - 1, total + 1, 0)]
        for ends in reach:
            longer = (of_kind[:, None] + behind[-1][ends]).min(axis=0)
            behind.append(np.minimum(behind[-1], longer))
        return CheapestWays(total, of_group, of_kind, behind, self._used(of_group, of_kind, behind, reach))

    def _used(self, of_group: Times, of_kind: Times, behind: list[Times], reach: Sequence[Times]) -> Times:
        """Walk the cheapest way of all layers."""
        used, place, end = np.zeros_like(self._owned), 0, len(behind[0]) - 1
        for slot in reversed(range(len(reach))):
            if place < end and behind[slot + 1][place] < behind[slot][place]:
                paid = of_kind + behind[slot][reach[slot][:, place]]
                kind = int(paid.argmin())
                used += self._counts[np.flatnonzero((self._kind_of == kind) & (of_group == of_kind[kind]))[0]]
                place = int(reach[slot][kind, place])
        return used


def rows_of(
    v: Variables, ways: CheapestWays, before: Sequence[Times], dear: Sequence[NDArray[np.bool_]]
) -> Posted:
    """(105) A slot and those behind it pay for the layers from its start on, those before it for the others.

    In sums for each slot, with what the layers ``before`` a place cost (:meth:`CheapestWays.before`); and no stage
    starts where it is ``dear`` (by slot, kind and place), or ends where it and the cheapest ways around it cost
    too much.
    """
    taken = 0
    for k in range(v.slots):
        taken += sum(int(price) * literal for price, literal in zip(ways.of_group, v.runs[k], strict=True))
        paid = v.model.new_int_var(0, ways.total, f"paid[{k}]")
        yield (k, 0), v.model.add(paid == taken)
        yield (k, 1), v.model.add(paid >= _at_start(v, k, ways.behind[k + 1]))
        yield (k, 2), v.model.add(paid + _at_start(v, k, before[k + 1]) <= ways.total)
        for c, price in enumerate(ways.of_kind):
            yield from _starts(v, k, c, np.flatnonzero(dear[k][c, : v.layers]))
            yield from _ends(v, k, c, before[k + 1] + price, ways)


def _at_start(v: Variables, slot: int, values: Times) -> Expression:
    """Return the value at the place where a slot starts."""
    steps = values[: v.layers - 1] - values[1 : v.layers]
    falls = sum(int(step) * literal for step, literal in zip(steps, v.starts[slot], strict=False) if step)
    return int(values[v.layers - 1]) + falls


def _starts(v: Variables, slot: int, kind: int, dear: Times) -> Posted:
    """Forbid a slot of this kind to start in each run of places that are too dear."""
    for run in np.split(dear, np.flatnonzero(np.diff(dear) > 1) + 1):
        if len(run):
            first, last = int(run[0]), int(run[-1])
            earlier = [v.starts[slot][first - 1]] if first else []
            yield (slot, kind, first), v.model.add_bool_or([~v.kind[slot][kind], ~v.starts[slot][last], *earlier])


def _ends(v: Variables, slot: int, kind: int, paid: Times, ways: CheapestWays) -> Posted:
    """Let a slot of this kind that starts at place i or later end where what is behind it can still be paid."""
    least = np.searchsorted(-ways.behind[slot], paid - ways.total)
    for i in range(v.layers):
        if i + 1 < least[i] > (least[i - 1] if i else 0) and paid[i] <= ways.total:
            clause = [~v.kind[slot][kind], ~v.starts_by(slot - 1, int(least[i]) - 1)]
            yield (slot, kind, i), v.model.add_bool_or([*clause, v.starts[slot][i - 1]] if i else clause)
