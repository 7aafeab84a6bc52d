"""How far stages reach, mended by what is found out about their forms; and the forms of the stages of a plan.

The limits (:class:`StageLimits`) are exact by time and a lower limit by memory. Where they
allow a stage whose forms cannot keep both limits at once, the exact least times of all stages that begin like it
take their place (``solvers.atoms.chains``), so it is not proposed again before there is time enough. Where every
proposal is checked and every such row remembered, the answer is exact.

By time, "a stage of kind c holds layers i to j" is read from the least stage times. By memory it is a lower limit:
the forms that need least time and those that need least memory may differ, so a stage that passes here is checked
with both limits at once when it is found (``solvers.atoms.chains``); on one device there is only one form and the
limit is exact.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.solvers.atoms.chains import Chains, Chosen, ExactRow
from pipecut.solvers.reference.algorithm_1 import StageTimes, best_forms
from pipecut.solvers.reference.line_dp import AtomTables
from pipecut.solvers.search.stoppable import distinct


class StageLimits:
    """Which spans a stage may hold, by slot, kind and threshold. ``held`` is None where memory is not limited.

    It is given where tables have runs of layers for rows, and else made of the tables.

    By time and by memory alike, a stage that fits never stops fitting when its last layer is taken away. So both
    are kept as the furthest end for every first layer, and the nearer of the two counts.
    """

    def __init__(self, times: StageTimes, held: MemoryTables | None = None) -> None:
        self.times = times
        self.total = times.tables.rows
        limited = times.tables.instance.constraints.memory
        self.held: MemoryTables | None = held or (MemoryTables.of(times.tables) if limited else None)
        self._roomy: dict[Keeps, Times] = {}
        self._sums: tuple[Times, Times, Times, Times] | None = None
        self._timely: tuple[int, Times] | None = None

    def slots(self, slots: int) -> list[int]:
        """Return, for each slot, the first slot with the same memory rule: they share their tables."""
        if self.held is None:
            return [0] * slots
        rules = [self.held.keeps(slot) for slot in range(slots)]
        return [rules.index(rule) for rule in rules]

    def ends(self, slot: int, threshold_ns: int) -> Times:
        """Return by kind and i = 0..N the furthest layer where a stage from i on may stop; i if none fits."""
        timely = self._in_time(threshold_ns)
        return timely.copy() if self.held is None else np.minimum(timely, self._in_memory(self.held, slot))

    def _in_time(self, threshold_ns: int) -> Times:
        """Return ends by time for all kinds; of the last threshold they are remembered."""
        if self._timely is None or self._timely[0] != threshold_ns:
            self._timely = (threshold_ns, self.times.ends(threshold_ns))
        return self._timely[1]

    def _in_memory(self, held: MemoryTables, slot: int) -> Times:
        """Return ends by memory for all kinds, by bisection: what is held only grows with the last layer."""
        keeps = held.keeps(slot)
        if keeps not in self._roomy:
            self.times.tables.deadline.check()
            once, weights, stash, largest = self._least_held(held)
            summed = once + keeps.versions * weights + keeps.in_flight * stash
            room = np.array(held.capacity)[:, None] - keeps.in_flight * held.received[:, :-1] + summed[:, :-1]
            kinds, first = np.arange(len(summed))[:, None], np.arange(self.total)
            low, high = np.broadcast_to(first, room.shape).copy(), np.full(room.shape, self.total)
            while (low < high).any():
                middle = (low + high + 1) // 2
                level = np.frexp(np.maximum(middle - first, 1).astype(np.float64))[1] - 1
                working = np.maximum(
                    largest[level, kinds, first], largest[level, kinds, np.maximum(middle - (1 << level), 0)]
                )
                fits = summed[kinds, middle] + working <= room
                low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
            self._roomy[keeps] = np.concatenate([low, np.full((len(low), 1), self.total)], axis=1)
        return self._roomy[keeps]

    def _least_held(self, held: MemoryTables) -> tuple[Times, Times, Times, Times]:
        """Return prefix sums of what layers hold at least, and the largest working set of 1, 2, 4, ... layers."""
        if self._sums is None:
            parts = (held.once, held.by_version, held.by_micro_batch)
            once, weights, stash = (np.pad(held.least(part).cumsum(axis=1), ((0, 0), (1, 0))) for part in parts)
            rows = [held.least(held.working_set)]
            while (half := 1 << (len(rows) - 1)) < self.total:
                further = np.zeros_like(rows[-1])
                further[:, :-half] = rows[-1][:, half:]
                rows.append(np.maximum(rows[-1], further))
            self._sums = once, weights, stash, np.stack(rows)
        return self._sums


class StageTable:
    """Stage limits of an instance, and the exact rows that were found out so far. Spans and ends count atoms.

    ``refused`` counts the stages that the limits allow and that have no forms for both limits.
    """

    def __init__(self, atoms: AtomTables) -> None:
        self.atoms = atoms
        self.limits = StageLimits(atoms.times, atoms.least)
        self.refused = 0
        self._chains = None if atoms.held is None else Chains(atoms.fine, atoms.held, atoms.space)
        self._rows: dict[tuple[int, int, int], ExactRow] = {}

    @property
    def tables(self) -> Tables:
        """The cost tables, with a row for each atom."""
        return self.atoms.times.tables

    def ends(self, slot: int, threshold_ns: int) -> Times:
        """Return the furthest ends by kind and first atom, as ``StageLimits.ends``; nearer where a row is known.

        A row holds for its slot and those before it in the pipeline, which keep no less.
        """
        ends = self.limits.ends(slot, threshold_ns)
        for (first_slot, kind, start), row in self._rows.items():
            if first_slot <= slot:
                ends[kind, start] = min(int(ends[kind, start]), row.end(start, threshold_ns))
        return ends

    def with_forms(self, plan: Plan, threshold_ns: int) -> Plan | None:
        """Return a plan of atoms as one of layers, every stage with its best forms within its limits.

        None where a stage has no such forms; the rows of all such stages are known from then on.
        """
        kind_of = {kind: at for at, kind in enumerate(self.tables.kinds)}
        filled: list[Stage] = []
        for index, stage in enumerate(plan.stages):
            slot, kind = len(plan) - 1 - index, kind_of[GroupKind.of(self.tables.instance, stage.group)]
            found = self._forms(slot, kind, stage.span, threshold_ns)
            if found is None:
                self._refuse(slot, kind, stage.span, threshold_ns)
            else:
                layers = self.atoms.space.layers(stage.span)
                filled.append(replace(stage, span=layers, forms=found[0], again=found[1]))
        return Plan(tuple(filled)) if len(filled) == len(plan) else None

    def candidates(self, low: int, high: int) -> Times:
        """Return, ascending, every value from ``low`` up to below ``high`` at which the answer can change.

        These are stage times and boundary times; rows add their own (:meth:`exact_times`).
        """
        times, crossing = self.atoms.times.values(low, high), self.tables.activation + self.tables.gradient
        crossing = crossing[(crossing >= low) & (crossing < high)]
        return distinct(np.concatenate([times, crossing]), self.tables.deadline)

    def exact_times(self, low: int, high: int) -> Times:
        """Return, ascending, the values in this range at which rows that are known make a difference."""
        found = [np.zeros(0, dtype=np.int64)]
        found += [row.time[(row.time >= low) & (row.time < high)] for row in self._rows.values()]
        return np.unique(np.concatenate(found))

    def _forms(self, slot: int, kind: int, span: Span, threshold_ns: int) -> Chosen | None:
        if self._chains is None:
            return best_forms(self.atoms.fine, kind, self.atoms.space.layers(span)), ()
        return self._chains.forms(slot, kind, span, threshold_ns)

    def _refuse(self, slot: int, kind: int, span: Span, threshold_ns: int) -> None:
        self.refused += 1
        if self._chains is not None:
            first_slot = self.limits.slots(slot + 1)[slot]
            self._rows[first_slot, kind, span.first] = self._chains.row(slot, kind, span.first, threshold_ns)
