"""Stages as they are: the least time, and the forms, that keep a stage within its memory."""

from __future__ import annotations

from dataclasses import replace

from formulation.costs.memory_tables import MemoryTables
from formulation.costs.tables import FORBIDDEN
from formulation.problem.layers import Split
from formulation.problem.plan import Plan, Span, Stage
from solvers.dynamic.step_time.blocks import StageSpans
from solvers.dynamic.tables.forms_under_memory import Thrift
from solvers.dynamic.tables.stage_table import stage_time_ns
from solvers.dynamic.tables.stage_times import best_forms

__all__: list[str] = []

Forms = tuple[int, ...]


class TrueStages:
    """Least times and forms of stages under memory, remembered by rank, kind and span."""

    def __init__(self, spans: StageSpans) -> None:
        self._spans = spans
        self._tables = spans.limits.times.tables
        self._held = spans.limits.held
        self._thrift = None if self._held is None else Thrift(self._tables, self._held)
        self._known: dict[tuple[int, int, Span], tuple[int, Forms] | None] = {}

    def least(self, slot: int, kind: int, span: Span) -> tuple[int, Forms] | None:
        """Return the least time in ns of a stage that keeps its memory, and its forms; None if it never does.

        Cost: that of ``best_forms``; where those forms do not fit, that of ``Thrift.forms``.
        """
        key = (self._spans.rank(slot), kind, span)
        if key not in self._known:
            self._known[key] = self._find(slot, kind, span)
        return self._known[key]

    def filled(self, plan: Plan) -> Plan | None:
        """Give every stage its fastest forms that fit; None if a stage has none."""
        kind_of = dict(zip(self._tables.groups, self._tables.kind_of, strict=True))
        stages: list[Stage] = []
        for index, stage in enumerate(plan.stages):
            found = self.least(len(plan) - 1 - index, kind_of[stage.group], stage.span)
            if found is None:
                return None
            stages.append(replace(stage, forms=found[1]))
        return Plan(tuple(stages))

    def _find(self, slot: int, kind: int, span: Span) -> tuple[int, Forms] | None:
        forms = best_forms(self._tables, kind, span)
        if self._held is not None and not _fits(self._held, slot, kind, span, forms):
            found = None if self._thrift is None else self._thrift.forms(slot, kind, span, FORBIDDEN)
            if found is None:
                return None
            forms = found
        return stage_time_ns(self._tables, kind, span, forms), forms


def _fits(held: MemoryTables, slot: int, kind: int, span: Span, forms: Forms) -> bool:
    """Tell whether a stage with these forms keeps its memory (``formulation.costs.memory``, by tables)."""
    lasting, needed, working = held.lasting(slot, kind), 0, 0
    for layer, form in zip(span.layers, forms, strict=True):
        if held.instance.layers[layer].split is Split.FOLLOW:
            source = held.instance.sources[layer]
            form = forms[source - span.first] if source is not None and source in span else 0
        needed += int(lasting[layer, form])
        working = max(working, int(held.working_set[kind, layer, form]))
    return needed + working <= held.room(slot, kind, span.first)
