"""Stage tables where stages may be cut at some places only (``solvers.dynamic.tables.coarse``).

Slots, states and reachability are those of the smaller problem. A stage that is proposed there is expanded to its
layers, which get their forms; what is refused is refused to its runs of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from formulation.costs.memory_tables import memory_tables
from formulation.problem.plan import Plan, Span
from solvers.dynamic.tables.coarse import Coarse
from solvers.dynamic.tables.forms_under_memory import Thrift
from solvers.dynamic.tables.stage_table import StageTable, stage_time_ns
from solvers.dynamic.tables.stage_times import best_forms


class CoarseTable(StageTable):
    """Stage limits of runs of layers, and the stages that were refused so far."""

    def __init__(self, coarse: Coarse) -> None:
        self.coarse = coarse
        super().__init__(coarse.times, coarse.held)

    def _searched(self) -> Thrift | None:
        return None if self.coarse.held is None else Thrift(self.coarse.fine, memory_tables(self.coarse.fine))

    def with_forms(self, plan: Plan, threshold_ns: int) -> Plan | None:
        """Give the layers of every stage their best forms within its limits; refuse stages that have none."""
        filled = super().with_forms(plan, threshold_ns)
        if filled is None:
            return None
        return Plan(tuple(replace(stage, span=self._fine(stage.span)) for stage in filled.stages))

    def _forms(self, slot: int, kind: int, span: Span, threshold_ns: int) -> tuple[int, ...] | None:
        if self._thrift is None:
            return best_forms(self.coarse.fine, kind, self._fine(span))
        return self._thrift.forms(slot, kind, self._fine(span), threshold_ns)

    def _time_ns(self, kind: int, span: Span, forms: Sequence[int]) -> int:
        return stage_time_ns(self.coarse.fine, kind, self._fine(span), forms)

    def _fine(self, span: Span) -> Span:
        return Span(self.coarse.cuts[span.first], self.coarse.cuts[span.stop])
