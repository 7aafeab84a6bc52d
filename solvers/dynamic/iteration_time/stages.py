"""Stages as they are: the least time, and the forms, that keep a stage within its memory."""

from __future__ import annotations

from dataclasses import replace

from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.atoms.chains import Chains, Chosen
from pipecut.solvers.dynamic.iteration_time.blocks import StageSpans
from pipecut.solvers.dynamic.tables.stage_table import stage_time_ns
from pipecut.solvers.reference.algorithm_1 import best_forms


class TrueStages:
    """Least times and forms of stages under memory, remembered by rank, kind and span. Spans count atoms."""

    def __init__(self, spans: StageSpans) -> None:
        self._spans, self._atoms = spans, spans.atoms
        atoms = spans.atoms
        self._chains = None if atoms.held is None else Chains(atoms.fine, atoms.held, atoms.space)
        self._known: dict[tuple[int, int, Span], tuple[int, Chosen] | None] = {}

    def least(self, slot: int, kind: int, span: Span) -> tuple[int, Chosen] | None:
        """Return the least time in ns of a stage that keeps its memory, and its choice; None if it never does.

        Cost: that of ``best_forms``; where memory is limited, that of ``Chains.forms``.
        """
        key = (self._spans.rank(slot), kind, span)
        if key not in self._known:
            self._known[key] = self._find(slot, kind, span)
        return self._known[key]

    def filled(self, plan: Plan) -> Plan | None:
        """Return a plan of atoms as one of layers with its fastest forms that fit; None if a stage has none."""
        fine = self._atoms.fine
        kind_of = dict(zip(fine.groups, fine.kind_of, strict=True))
        stages: list[Stage] = []
        for index, stage in enumerate(plan.stages):
            found = self.least(len(plan) - 1 - index, kind_of[stage.group], stage.span)
            if found is None:
                return None
            forms, again = found[1]
            stages.append(replace(stage, span=self._atoms.space.layers(stage.span), forms=forms, again=again))
        return Plan(tuple(stages))

    def _find(self, slot: int, kind: int, span: Span) -> tuple[int, Chosen] | None:
        fine, layers = self._atoms.fine, self._atoms.space.layers(span)
        if self._chains is None:
            found = best_forms(fine, kind, layers), ()
        else:
            found = self._chains.fastest(slot, kind, span, int(self._spans.time[kind, span.first, span.stop]))
            if found is None:
                return None
        return stage_time_ns(fine, kind, layers, *found), found
