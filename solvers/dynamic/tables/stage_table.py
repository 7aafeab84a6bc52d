"""How far stages reach, mended by what is found out about their forms; and the forms of the stages of a plan.

The tables (``solvers.dynamic.tables.stage_limits``) are exact by time and a lower limit by memory. A stage that
they allow and whose forms cannot keep both limits at once is *refused*, with the least time at which it could;
stages that reach further take no less. Where every proposal is checked and every refusal remembered, the answer is
exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from formulation.costs.memory_tables import MemoryTables
from formulation.costs.tables import FORBIDDEN, Tables, Times
from formulation.limits.deadline import in_time
from formulation.problem.instance import Instance
from formulation.problem.layers import Split
from formulation.problem.options import StageTime
from formulation.problem.plan import Plan, Span, Stage
from solvers.dynamic.tables.forms_under_memory import Thrift
from solvers.dynamic.tables.stage_limits import StageLimits
from solvers.dynamic.tables.stage_times import StageTimes, best_forms
from solvers.search.distinct import distinct

NEVER = FORBIDDEN
"""A threshold that no time of an instance reaches."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A stage that the tables allow and no choice of forms makes fit into time and memory at once.

    It holds for thresholds up to ``threshold_ns``, for slots from ``slot`` on (which keep no less), and for every
    stage of this kind with the same first layer that reaches ``stop`` or further.
    """

    slot: int
    kind: int
    start: int
    stop: int
    threshold_ns: int


class StageTable:
    """Stage limits of an instance, and the stages that were refused so far."""

    def __init__(self, times: StageTimes, held: MemoryTables | None = None) -> None:
        self.times = times
        self.limits = StageLimits(times, held)
        self.refused: list[Refusal] = []
        self._thrift = self._searched()

    @property
    def tables(self) -> Tables:
        """The cost tables."""
        return self.times.tables

    @property
    def instance(self) -> Instance:
        """The instance on which plans are priced."""
        return self.tables.instance

    def ends(self, slot: int, kind: int, threshold_ns: int) -> Times:
        """Return the furthest ends by first layer, as ``StageLimits.ends``, without what was refused."""
        ends = self.limits.ends(slot, kind, threshold_ns)
        for one in self.refused:
            if one.kind == kind and one.slot <= slot and threshold_ns <= one.threshold_ns:
                ends[one.start] = min(int(ends[one.start]), one.stop - 1)
        return ends

    def with_forms(self, plan: Plan, threshold_ns: int) -> Plan | None:
        """Give every stage its best forms within the threshold and its memory; refuse stages that have none."""
        kind_of = dict(zip(self.tables.groups, self.tables.kind_of, strict=True))
        filled: list[Stage] = []
        for index, stage in enumerate(plan.stages):
            slot, kind = len(plan) - 1 - index, kind_of[stage.group]
            forms = self._forms(slot, kind, stage.span, threshold_ns)
            if forms is None:
                self.refused.append(self._refusal(slot, kind, stage.span, threshold_ns))
            else:
                filled.append(replace(stage, forms=forms))
        return Plan(tuple(filled)) if len(filled) == len(plan) else None

    def candidates(self, low: int, high: int) -> Times:
        """Return, ascending, every value from ``low`` up to below ``high`` at which the answer can change.

        These are stage times, boundary times, and the times at which refused stages fit again.
        """
        rows = [np.array([one.threshold_ns + 1 for one in self.refused], dtype=np.int64)]
        for part in (self.times.time, self.tables.activation + self.tables.gradient):
            rows += [row[(row >= low) & (row < high)] for row in in_time(part, self.tables.deadline)]
        found = distinct(np.concatenate(rows), self.tables.deadline)
        return found[(found >= low) & (found < high)]

    def _searched(self) -> Thrift | None:
        """Return what searches forms under both limits at once; None where memory is not limited."""
        return None if self.limits.held is None else Thrift(self.tables, self.limits.held)

    def _forms(self, slot: int, kind: int, span: Span, threshold_ns: int) -> tuple[int, ...] | None:
        if self._thrift is None:
            return best_forms(self.tables, kind, span)
        return self._thrift.forms(slot, kind, span, threshold_ns)

    def _refusal(self, slot: int, kind: int, span: Span, threshold_ns: int) -> Refusal:
        """Return the widest refusal: for the first slot that keeps as much, and the shortest such stage."""
        low, high = span.first + 1, span.stop
        while low < high:
            middle = (low + high) // 2
            fits = self._forms(slot, kind, Span(span.first, middle), threshold_ns) is not None
            low, high = (middle + 1, high) if fits else (low, middle)
        forms = self._forms(slot, kind, Span(span.first, high), NEVER)
        again = NEVER if forms is None else self._time_ns(kind, Span(span.first, high), forms)
        return Refusal(self.limits.slots(slot + 1)[slot], kind, span.first, high, again - 1)

    def _time_ns(self, kind: int, span: Span, forms: Sequence[int]) -> int:
        return stage_time_ns(self.tables, kind, span, forms)


def stage_time_ns(tables: Tables, kind: int, span: Span, forms: Sequence[int]) -> int:
    """Return the time of a stage with these forms, from the tables."""
    instance = tables.instance
    moved = 0
    for layer, form in zip(span.layers, forms, strict=True):
        if instance.layers[layer].split is Split.FOLLOW:
            source = instance.sources[layer]
            form = forms[source - span.first] if source is not None and source in span else 0
        moved += int(tables.inside[kind, layer, form])
    for index, edge in enumerate(instance.form_edges):
        if edge.source in span and edge.consumer in span:
            source, consumer = forms[edge.source - span.first], forms[edge.consumer - span.first]
            moved += int(tables.between[kind, index, source, consumer])
    computing = int(tables.compute[kind, span.first : span.stop].sum())
    return max(computing, moved) if instance.cost.stage_time is StageTime.OVERLAP else computing + moved
