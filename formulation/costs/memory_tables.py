"""What every layer holds on a device, for every kind of group and every form: memory for solvers, in bulk.

The specification is ``formulation.costs.memory``; a test compares the two cell by cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.bulk.alike import lies, number_of_forms, sorted_out
from pipecut.formulation.costs.bulk.crossing import crossing_bytes
from pipecut.formulation.costs.bulk.divided import (
    WHOLE_INPUT,
    WHOLE_INPUT_AT_WORK,
    WHOLE_OUTPUT,
    WHOLE_OUTPUT_AT_WORK,
    WeightTables,
    divided,
    shared_out,
    weights_of,
)
from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.costs.times import waits
from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.constraints import NAMED
from pipecut.formulation.problem.groups import layouts_on
from pipecut.formulation.problem.instance import Instance, most_bytes
from pipecut.formulation.problem.precision import NOTHING_COPIED
from pipecut.formulation.schedules.keeps import Keeps


@dataclass(frozen=True, slots=True, eq=False)
class CopyTables:
    """Bytes by ``[kind, form]`` of weights that a layer copies, in the parts of :class:`MemoryTables`."""

    once: Times
    by_version: Times
    working_set: Times

    def lasting(self, keeps: Keeps, kind: int) -> Times:
        """Return by form what a stage of this kind keeps of them between passes."""
        return self.once[kind] + keeps.versions * self.by_version[kind]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTables:
    """Bytes by ``[kind, layer, form of the layer that decides the layout]``, and capacity by kind.

    Parts are put together by how often a stage keeps them: ``once`` (gradients, optimiser state, and the stash of
    layers that are computed again), ``by_version`` (weights), ``by_micro_batch`` (the stash of others). Backward
    passes in halves, under which there is one version, have weights in ``once``, and in ``by_version`` what waits
    between the halves: gradients of outputs, and the stash of layers that are computed again. A stage in
    slot k (counted from the last) of any plan holds :meth:`lasting` of every layer, ``received[kind, cut]`` of
    every micro-batch in flight, and the largest ``working_set``. ``possible`` tells, in the same places, which
    forms a layer's layout can have at all. Capacities are no more than any stage can need. ``copies[e, l]`` is
    what layer l holds beside all this in a stage that starts behind layer e, of whose weights it has a copy.
    ``recomputing`` are kinds whose stages may compute single blocks again, and the kinds of such blocks.
    """

    instance: Instance
    once: Times
    by_version: Times
    by_micro_batch: Times
    working_set: Times
    received: Times
    capacity: tuple[int, ...]
    possible: NDArray[np.bool_]
    copies: Mapping[tuple[int, int], CopyTables] = field(default_factory=dict)
    recomputing: Mapping[int, int] = field(default_factory=dict)

    def least(self, part: Times, kind: int | slice = slice(None)) -> Times:
        """Return the least of a part, of one kind or of all, over the forms and the choices possible there."""
        most, rows = np.iinfo(np.int64).max, [np.arange(len(part))[kind]]
        if self.recomputing:
            rows.append(np.array([self.recomputing.get(one, one) for one in range(len(part))])[kind])
        least = [part[row].min(axis=-1, where=self.possible[row], initial=most) for row in rows]
        return np.minimum.reduce(least)

    def keeps(self, slot: int) -> Keeps:
        """Return how often a stage in this slot keeps what is ``by_version``, and its micro-batches."""
        demands, training = self.instance.demands, self.instance.training
        known = demands.stages_at_most if demands.stages_at_least == demands.stages_at_most else None
        keeps = Keeps.in_slot(training, slot, known)
        return Keeps(keeps.again if training.schedule.in_halves else keeps.versions, keeps.in_flight)

    def lasting(self, slot: int, kind: int) -> Times:
        """Return by layer and form what a stage of this kind keeps of a layer between passes, without copies."""
        keeps = self.keeps(slot)
        weights, stash = keeps.versions * self.by_version[kind], keeps.in_flight * self.by_micro_batch[kind]
        return self.once[kind] + weights + stash

    def in_stage(self, slot: int, kind: int, first: int, lasting: Times) -> tuple[Times, Times]:
        """Return :meth:`lasting` and the working set by layer and form, of a stage that starts at layer ``first``.

        With what its layers copy; of other layers than its own they may be anything.
        """
        working, keeps = self.working_set[kind], self.keeps(slot)
        copied = [(ends[1], copy) for ends, copy in self.copies.items() if ends[0] < first <= ends[1]]
        if copied:
            lasting, working = lasting.copy(), working.copy()
        for layer, copy in copied:
            lasting[layer] += copy.lasting(keeps, kind)
            working[layer] += copy.working_set[kind]
        return lasting, working

    def room(self, slot: int, kind: int, cut: int) -> int:
        """Return what is left of a device for a stage that begins at this cut, after what it received."""
        return self.capacity[kind] - self.keeps(slot).in_flight * int(self.received[kind, cut])

    @staticmethod
    def outputs(tables: Tables, sizes: Sequence[int]) -> Times:
        """Return what a device has of outputs of these sizes, as they lie, by kind, layer and form."""
        return divided(tables, sizes, WHOLE_OUTPUT)

    @staticmethod
    def of(tables: Tables) -> MemoryTables:
        """Divide every layer among the devices of every kind. Cost: O(kinds x layers).

        Raises StoppedError after the deadline of the tables.
        """
        instance = tables.instance
        taken = [2 * size for size in instance.input_bytes]
        made = [2 * size for size in instance.output_bytes]
        sizes = (instance.parameter_bytes, instance.gradient_bytes, instance.optimizer_bytes)
        alone = weights, gradients, optimizer = _all_weights(tables, sizes)
        stash = divided(tables, instance.stash_bytes, WHOLE_INPUT)
        named = np.zeros(len(instance.layers), dtype=np.bool_)
        named[list(instance.demands.recompute_layers)] = True
        modes = [kind.mode.recompute for kind in tables.kinds]
        again = np.array([named if mode == NAMED else np.full_like(named, mode) for mode in modes])[:, :, None]
        lent = divided(tables, instance.lent_bytes, WHOLE_OUTPUT)
        lent[[mode != NAMED for mode in modes]] = 0
        rooms, most = [one.memory_bytes for one in instance.device_classes], most_bytes(instance)
        once, by_version, rerun = gradients.kept + optimizer.kept, weights.kept, np.where(again, stash, 0)
        if instance.training.schedule.in_halves:
            waiting = [size * waits(instance, layer) for layer, size in enumerate(instance.output_bytes)]
            once, by_version = once + by_version, rerun + divided(tables, waiting, WHOLE_OUTPUT_AT_WORK)
        else:
            once = once + rerun
        return MemoryTables(
            instance=instance,
            once=once,
            by_version=by_version,
            by_micro_batch=np.where(again, 0, stash) + lent,
            working_set=divided(tables, taken, WHOLE_INPUT_AT_WORK)
            + divided(tables, made, WHOLE_OUTPUT_AT_WORK)
            + weights.gathered
            + gradients.gathered,
            received=_received(tables),
            capacity=tuple(min(most, *(rooms[one] for one in kind.classes)) for kind in tables.kinds),
            possible=_all_possible(tables),
            copies=_copies(tables, alone),
            recomputing=tables.recomputing(),
        )


def _copies(
    tables: Tables, alone: tuple[WeightTables, WeightTables, WeightTables]
) -> Mapping[tuple[int, int], CopyTables]:
    """Return what copies hold: what layers hold with them, less what they hold ``alone``."""
    instance = tables.instance
    rows = [(at, copy) for at, copy in enumerate(instance.copies) if copy is not None]
    if not rows:
        return {}
    copies = [copy or NOTHING_COPIED for copy in instance.copies]
    weights = [one + copy.parameter_bytes for one, copy in zip(instance.parameter_bytes, copies, strict=True)]
    gradients = [one + copy.gradient_bytes for one, copy in zip(instance.gradient_bytes, copies, strict=True)]
    optimizer = [one + copy.optimizer_bytes for one, copy in zip(instance.optimizer_bytes, copies, strict=True)]
    whole = _all_weights(tables, (weights, gradients, optimizer))
    kept = [one.kept - other.kept for one, other in zip(whole, alone, strict=True)]
    lent = whole[0].gathered - alone[0].gathered + whole[1].gathered - alone[1].gathered
    if instance.training.schedule.in_halves:
        kept = [np.zeros_like(kept[0]), sum(kept[:2]), kept[2]]
    return {
        (copy.earlier, at): CopyTables(kept[1][:, at] + kept[2][:, at], kept[0][:, at], lent[:, at])
        for at, copy in rows
    }


def _all_weights(
    tables: Tables, sizes: tuple[Sequence[int], Sequence[int], Sequence[int]]
) -> tuple[WeightTables, WeightTables, WeightTables]:
    """Divide weights, gradients and optimiser state; none of this is on devices where the host has it."""
    kept = [kind.mode.sharded for kind in tables.kinds]
    on_device = np.array([not kind.mode.optimizer_on_host for kind in tables.kinds])[:, None, None]
    optimizer = weights_of(tables, sizes[2], [one.divides_optimizer for one in kept])
    return (
        weights_of(tables, sizes[0], [one.divides_weights for one in kept]),
        weights_of(tables, sizes[1], [one.divides_gradients for one in kept]),
        WeightTables(np.where(on_device, optimizer.kept, 0), optimizer.gathered),
    )


def _all_possible(tables: Tables) -> NDArray[np.bool_]:
    """Return by kind, layer and form whether the layer can lie so in some stage on devices of the kind."""
    instance, kinds = tables.instance, tables.kinds
    firsts, alike = sorted_out(lies(instance, at) for at in range(len(instance.layers)))
    ones, of_one = sorted_out((kind.devices, kind.grid) for kind in kinds)
    every = range(number_of_forms(instance.layers))
    rows = [
        [[form in forms for form in every] for forms in (layouts_on(instance, at, kinds[one]) for at in firsts)]
        for one in in_time(ones, tables.deadline)
    ]
    return np.array(rows)[of_one][:, alike]


def _received(tables: Tables) -> Times:
    sizes = crossing_bytes(tables.instance)
    shares = [kind.shares.rows.device for kind in tables.kinds]
    return shared_out(tables, sizes, shares)
