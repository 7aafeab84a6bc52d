"""Labels of stages, layer by layer: in every form that the next one may have, and of these the unbeaten ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.problem.groups import forms_on
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.solvers.atoms.programs import OUTSIDE, LayerStep
from pipecut.solvers.step_time.bounds.columns import BACKWARD, FORWARD, SYNC
from pipecut.solvers.step_time.bounds.pass_tables import HELD, WORKING, StageParts
from pipecut.solvers.step_time.further import Further, Put
from pipecut.solvers.step_time.unbeaten import Rows, numbered, unbeaten

MOST_WAYS = 1 << 23
"""Labels with one layer more; each takes up to 512 bytes: its columns, what they are compared by, and forms."""


class OutgrownError(Exception):
    """Labels of one stage are more than memory is for. Bounds and plans that are known hold all the same."""


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """Labels after some layers: a row each, with the forms of the live layers, where it comes from, its form."""

    labels: Rows
    key: NDArray[np.int64]
    before: NDArray[np.intp]
    form: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StageRule:
    """What labels of stages depend on beside their programs; ``room`` is None where memory cannot run out.

    With a ``goal`` they are those of stages from one place on that stop there, or behind them all if these are not
    all that are asked for: (start, stops, whether they are all).
    """

    kind: int
    keeps: Keeps | None
    room: int | None
    goal: tuple[int, tuple[int, ...], bool] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Growing:
    """Puts layers behind labels of stages made ``of`` these parts; of each group about ``width`` stay (0: all)."""

    of: StageParts
    width: int

    def put(self, rule: StageRule, step: LayerStep, keys: NDArray[np.int64]) -> Put:
        """Return one layer more for these forms of the live layers, in every form that it may have."""
        layer, copied = self.of.programs.layers[step.cost]
        cell, row = (rule.kind, layer), self.of.tables.instance.layers[layer]
        allowed = forms_on(row, self.of.tables.kinds[rule.kind]) if step.forms else (0,)
        forms = np.array(allowed, dtype=np.int64)
        before, form = np.tile(np.arange(len(keys)), len(forms)), np.repeat(forms, len(keys))
        key = keys[before]
        lies = form
        if not step.forms and step.source is not None:
            lies = np.where(key[:, step.source] == OUTSIDE, 0, key[:, step.source])
        added = np.zeros((len(before), self.of.passes.columns.width + 1), dtype=np.int64)
        added[:, :-1] = self.of.passes.layers[cell][lies]
        ends = self._copied(layer) if copied else None
        if ends is not None:
            added[:, :-1] += self.of.passes.copies[ends][rule.kind, lies]
        for at, edge in step.edges:
            change = self.of.passes.changes[rule.kind, self.of.programs.edges[edge]]
            inside = key[:, at] != OUTSIDE
            added[inside, :-1] += change[key[inside, at], form[inside]]
        working = np.zeros(len(before), dtype=np.int64)
        held, keeps = self.of.held, rule.keeps
        if rule.room is not None and keeps is not None and held is not None:
            lasting = held.once[cell] + keeps.versions * held.by_version[cell]
            added[:, -1] = (lasting + keeps.in_flight * held.by_micro_batch[cell])[lies]
            working = held.working_set[cell][lies]
            if ends is not None and held.copies:
                added[:, -1] += held.copies[ends].lasting(keeps, rule.kind)[lies]
                working += held.copies[ends].working_set[rule.kind, lies]
        around = np.column_stack([key, form]) if step.forms else key
        return Put(before, form, added, working, around[:, list(step.kept)])

    def _copied(self, layer: int) -> tuple[int, int] | None:
        """Return the last user before it of weights that a layer shares, and the layer."""
        copy = self.of.tables.instance.copies[layer]
        return None if copy is None else (copy.earlier, layer)

    def step(
        self, rule: StageRule, step: LayerStep, so_far: Grown, most_ns: int, layer: int, further: Further | None
    ) -> Grown:
        """Return the unbeaten labels with one more layer, in all its forms, with which a step keeps to a limit.

        Then there are so many layers; ``further`` looks ahead from there. Raises StoppedError after the deadline,
        OutgrownError before it takes too much memory.
        """
        ways = len(so_far.labels) * max(1, len(step.forms))
        if ways > MOST_WAYS:
            raise OutgrownError(
                f"{ways} ways to split the first {layer} layers matter, {MOST_WAYS} of one stage at most can be"
                " looked at; narrow constraints.forms, or merge layers"
            )
        put = self.put(rule, step, so_far.key)
        labels = so_far.labels[put.before]
        labels[:, :WORKING] += put.added
        np.maximum(labels[:, WORKING], put.working, out=labels[:, WORKING])
        passes = self.of.passes.columns.passes(labels[:, :HELD])
        fits = self.of.passes.alone(passes) <= most_ns
        if rule.room is not None:
            fits &= labels[:, HELD] + labels[:, WORKING] <= rule.room
        kept = np.flatnonzero(fits)
        if further is not None and len(kept):
            rows = labels[kept, :WORKING]
            rows[:, -1] += labels[kept, WORKING]
            kept = kept[further.kept(layer, put.live[kept], rows)]
        live = put.live[kept]
        group = numbered(live)
        best = self._unbeaten(labels[kept], group, memory=rule.room is not None)
        if self.width and len(best) > self.width:
            best = best[self._few(labels[kept[best]], group[best])]
        rows = kept[best]
        return Grown(labels[rows], live[best], put.before[rows], put.form[rows])

    def _unbeaten(self, labels: Rows, group: NDArray[np.int64], *, memory: bool) -> NDArray[np.intp]:
        rows = self.of.passes.columns.compared(labels[:, :HELD])
        rows = np.concatenate([rows, labels[:, HELD:]], axis=1) if memory else rows
        return unbeaten(rows, group, self.of.tables.deadline)

    def _few(self, labels: Rows, group: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return about ``width`` labels of every group: the best by passes, and with synchronisation."""
        found, passes = list[NDArray[np.intp]](), self.of.passes.columns.passes(labels[:, :HELD])
        for often in (1, self.of.passes.often):
            score = often * (passes[:, FORWARD] + passes[:, BACKWARD]) + passes[:, SYNC]
            order = np.lexsort((score, group))
            first = np.flatnonzero(np.diff(group[order], prepend=-1))
            rank = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
            found.append(order[rank < self.width])
        return np.unique(np.concatenate(found))
