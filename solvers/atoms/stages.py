"""How far stages may reach in a cut space, by time and memory; and the forms of the stages of a plan.

Least times are exact whatever the forms, and what single layers hold at least limits a stage by memory. Where a
stage is proposed that both allow and whose forms cannot keep both limits at once, its exact row of least times is
remembered (``solvers.atoms.chains``): so no model that is asked again proposes it before there is time enough.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from formulation.costs.memory import Keeps
from formulation.costs.memory_tables import MemoryTables, memory_tables
from formulation.costs.tables import Tables, Times
from formulation.limits.deadline import in_time
from formulation.problem.cuts import CutSpace
from formulation.problem.plan import Plan, Stage
from solvers.atoms.chains import Chains, ExactRow
from solvers.atoms.times import least_times

__all__: list[str] = []

UNLIMITED_BYTES = 1 << 62


class AtomStages:
    """The stages of an instance in places of its cut space; rows grow as stages are refused.

    ``tables`` are those of the layers.
    """

    def __init__(self, tables: Tables, space: CutSpace) -> None:
        self.tables, self.space = tables, space
        held = memory_tables(tables) if tables.instance.constraints.memory else None
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
        """Return by place 0 .. P where a stage from there on stops at the latest; the place itself if none fits.

        What is known of a slot holds for those before it in the pipeline too, whose stages keep no less.
        """
        stops = self.space.stops
        ends = np.append(np.arange(stops) + (self._time[kind] <= threshold_ns).sum(axis=1), stops)
        if self._held is not None:
            ends = np.minimum(ends, self._in_memory(self._held, slot, kind))
        for (first_slot, of_kind, start), row in self._rows.items():
            if of_kind == kind and first_slot <= slot:
                ends[start] = min(int(ends[start]), row.end(start, threshold_ns))
        return ends

    def with_forms(self, plan: Plan, threshold_ns: int) -> Plan | None:
        """Return a plan of places as one of layers, each stage with its fastest forms; None if one has none.

        The rows of stages without forms within the threshold and their memory are remembered.
        Raises StoppedError after the deadline of the tables.
        """
        kind_of = dict(zip(self.tables.groups, self.tables.kind_of, strict=True))
        filled: list[Stage] = []
        for index, stage in enumerate(plan.stages):
            # Where memory is not limited all slots are one, and share what is found out.
            slot = 0 if self._held is None else len(plan) - 1 - index
            kind, start = kind_of[stage.group], stage.span.first
            forms = self._chains.forms(slot, kind, stage.span, threshold_ns)
            if forms is None:
                first_slot = self.rules(slot + 1)[slot]
                self._rows[first_slot, kind, start] = self._chains.row(slot, kind, start, threshold_ns)
            else:
                filled.append(replace(stage, span=self.space.layers(stage.span), forms=forms))
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
