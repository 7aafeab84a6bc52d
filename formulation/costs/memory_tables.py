"""What every layer holds on a device, for every kind of group and every form: memory for solvers, in bulk.

The specification is ``formulation.costs.memory``; a test compares the two cell by cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from formulation.costs.forms import forms_on
from formulation.costs.memory import Keeps, keeps_in_slot
from formulation.costs.tables import Tables, Times
from formulation.costs.times import cut_bytes
from formulation.limits.deadline import in_time
from formulation.problem.instance import Instance
from formulation.problem.layers import FORMS, Split
from formulation.problem.magnitude import most_bytes

__all__ = ["MemoryTables", "memory_tables"]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTables:
    """Bytes by ``[kind, layer, form of the layer that decides the layout]``, and capacity by kind.

    Parts are put together by how often a stage keeps them: ``once`` (gradients, optimiser state, and the stash of
    kinds that recompute), ``by_version`` (weights), ``by_micro_batch`` (the stash of other kinds). A stage in slot
    k (counted from the last) of any plan holds :meth:`lasting` of every layer, ``received[kind, cut]`` of every
    micro-batch in flight, and the largest ``working_set``. ``possible`` tells, in the same places, which forms a
    layer's layout can have at all. Capacities are no more than any stage can need.
    """

    instance: Instance
    once: Times
    by_version: Times
    by_micro_batch: Times
    working_set: Times
    received: Times
    capacity: tuple[int, ...]
    possible: NDArray[np.bool_]

    def least(self, part: Times, kind: int | slice = slice(None)) -> Times:
        """Return the least of a part, of one kind or of all, over the forms that are possible there."""
        most = np.iinfo(np.int64).max
        return part[kind].min(axis=-1, where=self.possible[kind], initial=most)

    def keeps(self, slot: int) -> Keeps:
        """Return how often a stage in this slot keeps its weights and micro-batches."""
        return keeps_in_slot(self.instance.training, slot)

    def lasting(self, slot: int, kind: int) -> Times:
        """Return by layer and form what a stage of this kind holds of a layer from pass to pass."""
        keeps = self.keeps(slot)
        weights, stash = keeps.versions * self.by_version[kind], keeps.in_flight * self.by_micro_batch[kind]
        return self.once[kind] + weights + stash

    def room(self, slot: int, kind: int, cut: int) -> int:
        """Return what is left of a device for a stage that begins at this cut, after what it received."""
        return self.capacity[kind] - self.keeps(slot).in_flight * int(self.received[kind, cut])


def memory_tables(tables: Tables) -> MemoryTables:
    """Divide every layer among the devices of every kind. Cost: O(kinds x layers).

    Raises StoppedError after the deadline of the tables.
    """
    instance = tables.instance
    taken = [2 * size for size in instance.input_bytes]
    made = [2 * size for size in instance.output_bytes]
    weights = _divided(tables, instance.parameter_bytes, WHOLE_WEIGHTS, weights=True)
    gradients = _divided(tables, instance.gradient_bytes, WHOLE_WEIGHTS, weights=True)
    optimizer = _divided(tables, instance.optimizer_bytes, WHOLE_WEIGHTS, weights=True)
    stash = _divided(tables, instance.stash_bytes, WHOLE_INPUT)
    again = np.array([kind.mode.recompute for kind in tables.kinds])[:, None, None]
    rooms, most = [one.memory_bytes for one in instance.device_classes], most_bytes(instance)
    return MemoryTables(
        instance=instance,
        once=gradients + optimizer + np.where(again, stash, 0),
        by_version=weights,
        by_micro_batch=np.where(again, 0, stash),
        working_set=_divided(tables, taken, WHOLE_INPUT) + _divided(tables, made, WHOLE_OUTPUT),
        received=_received(tables),
        capacity=tuple(min(most, *(rooms[one] for one in kind.classes)) for kind in tables.kinds),
        possible=np.array([_possible(instance, kind.tensor_parallel_degree) for kind in tables.kinds]),
    )


def _possible(instance: Instance, degree: int) -> list[list[bool]]:
    """Return by layer and form whether the layer can lie so in some stage on replicas of this degree.

    A FOLLOW layer lies as its source does, and by rows (form 0) where the source is in another stage.
    """
    rows: list[list[bool]] = []
    for layer, source in zip(instance.layers, instance.sources, strict=True):
        follows = layer.split is Split.FOLLOW
        forms = () if source is None else forms_on(instance.layers[source].allowed_forms, degree)
        rows.append([form in forms or (follows and form == 0) for form in FORMS])
    return rows


def _received(tables: Tables) -> Times:
    sizes = [cut_bytes(tables.instance, cut) for cut in range(len(tables.instance.layers) + 1)]
    shares = [kind.shares.device for kind in tables.kinds]
    return _times(tables, sizes, shares)


WHOLE_WEIGHTS = {True: (True, False, False), False: (True, True, False)}
"""For matrix products (True) and other layers, by form: whether every device holds all weights."""
WHOLE_INPUT = {True: (False, False, True), False: (False, True, False)}
WHOLE_OUTPUT = {True: (False, True, False), False: (False, True, False)}
"""Likewise: whether every device holds the whole input, the whole output."""


def _divided(
    tables: Tables, sizes: Sequence[int], whole: dict[bool, tuple[bool, bool, bool]], *, weights: bool = False
) -> Times:
    """Divide every size among the devices that share it, rounding up.

    What is whole lies on every device: weights in full, activations with the samples of one replica. Of what is
    split, each device has a part: weights one of its replica, activations one of the group.
    """
    matrix = np.array([layer.split is Split.MATRIX for layer in tables.instance.layers])
    every = np.where(matrix[:, None], whole[True], whole[False])
    full = _times(tables, sizes, [Fraction(1) if weights else kind.shares.replica for kind in tables.kinds])
    part = _times(tables, sizes, [kind.shares.shard if weights else kind.shares.device for kind in tables.kinds])
    return np.where(every[None, :, :], full[:, :, None], part[:, :, None])


def _times(tables: Tables, sizes: Sequence[int], shares: Sequence[Fraction]) -> Times:
    """Return every size times every share, rounded up; by (share, size)."""
    rows = [[-(-size * n.numerator // n.denominator) for size in sizes] for n in in_time(shares, tables.deadline)]
    return np.array(rows, dtype=np.int64)
