"""How far stages may reach in a cut space, by time and memory; and the forms of the stages of a plan.

Least times are exact whatever the forms, and what single layers hold at least limits a stage by memory. Where a
stage is proposed that both allow and whose forms cannot keep both limits at once, its exact row of least times is
remembered (``solvers.atoms.chains``): so no model that is asked again proposes it before there is time enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.plan import Plan, Stage
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.solvers.atoms.chains import Chains, ExactRow
from pipecut.solvers.atoms.times import least_times

UNLIMITED_BYTES = 1 << 62


class AtomStages:
    """The stages of an instance in places of its cut space; rows grow as stages are refused.

    ``tables`` are those of the layers.
    """

    def __init__(self, tables: Tables, space: CutSpace) -> None:
        self.tables, self.space = tables, space
        held = MemoryTables.of(tables) if tables.instance.constraints.memory else None
        self._chains = Chains(tables, held or _unlimited(tables), space)
        self._held = held
        self._time = least_times(tables, space, self._chains.fronts.programs)
        self._rows: dict[tuple[int, int, int], ExactRow] = {}
        self._roomy: dict[tuple[int, Keeps], Times] = {}

    def rules(self, slots: int) -> list[int]:
        """Return, for each slot, the first slot whose stages keep as much: they reach equally far."""
        if self._held is None:
            return [0] * slots
        keeps = [self._held.keeps(slot) for slot in range(slots)]
        return [keeps.index(one) for one in keeps]

    def ends(self, slot: int, kind: int, threshold_ns: int) -> Times:
        """Return by place 0 .. P where a stage from there on stops at the latest; itself if none fits."""
        return ends_of(self.least(slot, kind) <= threshold_ns)

    def least(self, slot: int, kind: int) -> Times:
        """Return by first and last place what a stage takes at least; FORBIDDEN where it never fits.

        What is known of a slot holds for those too whose stages keep no less, as those before it mostly do.
        """
        time = self._time[kind].copy()
        if self._held is not None:
            ends = self._in_memory(self._held, slot, kind)[:-1]
            time[np.arange(time.shape[1]) > ends[:, None]] = FORBIDDEN
        for (first_slot, of_kind, start), row in self._rows.items():
            if of_kind == kind and self._keeps_no_less(slot, first_slot):
                np.maximum(time[start], row.time, out=time[start])
        return time

    def _keeps_no_less(self, slot: int, other: int) -> bool:
        """Tell whether stages in a slot keep everything at least as often as those in the other."""
        if self._held is None:
            return True
        own, least = self._held.keeps(slot), self._held.keeps(other)
        return own.versions >= least.versions and own.in_flight >= least.in_flight

    def with_forms(self, plan: Plan, limits_ns: Sequence[int]) -> Plan | None:
        """Return a plan of places as one of layers, each stage with its fastest forms; None if one has none.

        ``limits_ns`` is what each stage may take. The rows of stages without forms within it and their memory are
        remembered.
        Raises StoppedError after the deadline of the tables.
        """
        kind_of = dict(zip(self.tables.groups, self.tables.kind_of, strict=True))
        filled: list[Stage] = []
        for index, stage in enumerate(plan.stages):
            # Where memory is not limited all slots are one, and share what is found out.
            slot = 0 if self._held is None else len(plan) - 1 - index
            kind, start = kind_of[stage.group], stage.span.first
            found = self._chains.forms(slot, kind, stage.span, limits_ns[index])
            if found is None:
                first_slot = self.rules(slot + 1)[slot]
                self._rows[first_slot, kind, start] = self._chains.row(slot, kind, start, limits_ns[index])
            else:
                layers = self.space.layers(stage.span)
                filled.append(replace(stage, span=layers, forms=found[0], again=found[1]))
        return Plan(tuple(filled)) if len(filled) == len(plan) else None

    def _in_memory(self, held: MemoryTables, slot: int, kind: int) -> Times:
        """Return the ends by what layers hold at least, each in its best form."""
        keeps = held.keeps(slot)
        if (kind, keeps) not in self._roomy:
            self.tables.deadline.check()
            places = list(self.space.places)
            parts = (held.once, held.by_version, held.by_micro_batch)
            once, weights, stash = (held.least(part, kind) for part in parts)
            lasting = once + keeps.versions * weights + keeps.in_flight * stash
            sums = np.append(0, np.cumsum(lasting))[places]
            room = [held.room(slot, kind, place) for place in places[:-1]]
            # From a place on the largest working set only rises, so what fits is a run of places.
            working = np.maximum.reduceat(held.least(held.working_set, kind), places[:-1])
            ends = [
                start
                + int((sums[start + 1 :] + np.maximum.accumulate(working[start:]) <= sums[start] + most).sum())
                for start, most in enumerate(in_time(room, self.tables.deadline))
            ]
            self._roomy[kind, keeps] = np.append(ends, self.space.stops)
        return self._roomy[kind, keeps]


def ends_of(fits: NDArray[np.bool_]) -> Times:
    """Return by place 0 .. P the last one up to which a stage from there on fits; itself if it fits nowhere."""
    stops, last = fits.shape[0], fits.shape[1] - 1 - fits[:, ::-1].argmax(axis=1)
    return np.append(np.where(fits.any(axis=1), last, np.arange(stops)), stops)


def _unlimited(tables: Tables) -> MemoryTables:
    """Return what layers hold where nobody asks: nothing, on devices without end."""
    nothing = np.zeros_like(tables.inside)
    return MemoryTables(
        instance=tables.instance,
        once=nothing,
        by_version=nothing,
        by_micro_batch=nothing,
        working_set=nothing,
        received=np.zeros((len(tables.kinds), len(tables.instance.layers) + 1), dtype=np.int64),
        capacity=(UNLIMITED_BYTES,) * len(tables.kinds),
        possible=np.ones(nothing.shape, dtype=np.bool_),
    )
