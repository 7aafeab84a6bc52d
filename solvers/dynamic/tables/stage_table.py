"""How far stages reach, mended by what is found out about their forms; and the forms of the stages of a plan.

The tables (``solvers.dynamic.tables.stage_limits``) are exact by time and a lower limit by memory. Where they
allow a stage whose forms cannot keep both limits at once, the exact least times of all stages that begin like it
take their place (``solvers.atoms.chains``), so it is not proposed again before there is time enough. Where every
proposal is checked and every such row remembered, the answer is exact.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.atoms.chains import Chains, Chosen, ExactRow
from pipecut.solvers.dynamic.tables.stage_limits import StageLimits
from pipecut.solvers.reference.algorithm_1 import best_forms
from pipecut.solvers.reference.line import AtomTables
from pipecut.solvers.search.stoppable import distinct


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

    @property
    def instance(self) -> Instance:
        """The instance on which plans are priced."""
        return self.tables.instance

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
            slot, kind = len(plan) - 1 - index, kind_of[GroupKind.of(self.instance, stage.group)]
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
