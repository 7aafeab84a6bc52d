"""Forms of one stage under two limits at once: at most so much time and at most so much memory.

The forms with the least time may copy weights that only fit when they are sharded. So this keeps, by the forms of
the layers still looked at, every combination of communication and memory that no other beats in everything: a
label-setting dynamic programme with dominance (as for shortest paths with a resource). Exact for any layer graph.

All labels of a layer are one array, a row each, so that thousands of them are grown and compared at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.groups import forms_on
from pipecut.formulation.problem.layers import EVERY_FORM, Split
from pipecut.formulation.problem.options import StageTime
from pipecut.formulation.problem.plan import Span
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.solvers.reference.algorithm_1 import edges_into

Rows = NDArray[np.int64]
COLUMNS = 20
"""After how many layers that are looked at their codes are numbered anew, so that they stay within 64 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    """What the layers so far cost, a row for each label.

    ``time`` is communication in ns, ``held`` what is held from pass to pass and ``working`` the largest working
    set, in bytes; ``key[row, at]`` the form of each layer still looked at. ``before`` is the row of the layer
    before from which a label comes, ``form`` the form of the newest layer.
    """

    time: Rows
    held: Rows
    working: Rows
    key: Rows
    before: Rows
    form: Rows

    def of(self, rows: NDArray[np.intp] | NDArray[np.bool_], columns: list[int]) -> _Labels:
        """Return some labels, by the forms of some of the layers."""
        key = self.key[rows][:, columns]
        return _Labels(
            self.time[rows], self.held[rows], self.working[rows], key, self.before[rows], self.form[rows]
        )


class Thrift:
    """Searches forms for the stages of one instance."""

    def __init__(self, tables: Tables, held: MemoryTables) -> None:
        self._tables, self._held = tables, held
        self._behind: dict[tuple[int, Keeps], tuple[Times, Times]] = {}
        self._kept: dict[tuple[int, Keeps], Times] = {}
        self._into = edges_into(tables.instance)
        self._last = list(range(len(tables.instance.layers)))
        for edge in tables.instance.form_edges:
            self._last[edge.source] = max(self._last[edge.source], edge.consumer)
        for layer, source in enumerate(tables.instance.sources):
            if source is not None:
                self._last[source] = max(self._last[source], layer)

    def forms(self, slot: int, kind: int, span: Span, threshold_ns: int) -> tuple[int, ...] | None:
        """Return the fastest forms within the threshold and the capacity; None if there are none.

        Cost: O(layers x forms x labels log labels) in numpy; few labels survive in practice, as those go that
        cannot end within both limits even if every later layer took its least of each.
        Raises StoppedError after the deadline of the tables.
        """
        compute = int(self._tables.compute[kind, span.first : span.stop].sum())
        overlap = self._tables.instance.cost.stage_time is StageTime.OVERLAP
        time_left = threshold_ns if overlap else threshold_ns - compute
        if compute > threshold_ns:
            return None
        room = self._held.room(slot, kind, span.first)
        nothing = np.zeros(1, dtype=np.int64)
        labels = _Labels(nothing, nothing, nothing, np.zeros((1, 0), dtype=np.int64), nothing, nothing)
        live: list[int] = []
        way: list[tuple[Rows, Rows]] = []
        held = self._held.in_stage(slot, kind, span.first, self._lasting(slot, kind))
        more_time, more_held = self._least_behind(slot, kind)
        for layer in in_time(span.layers, self._tables.deadline):
            later_time = int(more_time[layer + 1] - more_time[span.stop])
            later_held = int(more_held[layer + 1] - more_held[span.stop])
            grown = self._grown(held, kind, span, layer, live, labels)
            kept = [*live, layer] if self._tables.instance.layers[layer].split is not Split.FOLLOW else live
            still = [at for at, one in enumerate(kept) if self._last[one] > layer]
            fits = (grown.time + later_time <= time_left) & (grown.held + later_held + grown.working <= room)
            labels = _unbeaten(grown.of(fits, still))
            way.append((labels.before, labels.form))
            live = [kept[at] for at in still]
            if not len(labels.time):
                return None
        return _forms_of(way, int(labels.time.argmin()))

    def _least_behind(self, slot: int, kind: int) -> tuple[Times, Times]:
        """Return by layer what it and all layers behind it communicate and hold at least, to the model's end.

        Copies of weights are left out.
        """
        rule = (kind, self._held.keeps(slot))
        if rule not in self._behind:
            own = self._tables.inside[kind].min(axis=1)
            possible, most = self._held.possible[kind], np.iinfo(np.int64).max
            least = self._lasting(slot, kind).min(axis=1, where=possible, initial=most)
            rows = (np.append(part[::-1].cumsum()[::-1], 0) for part in (own, least))
            self._behind[rule] = (next(rows), next(rows))
        return self._behind[rule]

    def _lasting(self, slot: int, kind: int) -> Times:
        """Return by layer and form what a layer holds from pass to pass."""
        rule = (kind, self._held.keeps(slot))
        if rule not in self._kept:
            self._kept[rule] = self._held.lasting(slot, kind)
        return self._kept[rule]

    def _grown(
        self, held: tuple[Times, Times], kind: int, span: Span, layer: int, live: list[int], labels: _Labels
    ) -> _Labels:
        """Return every label with the next layer in every form that it may have.

        ``held`` are what layers keep between passes and their working sets.
        """
        row, count = self._tables.instance.layers[layer], len(labels.time)
        before = np.arange(count)
        if row.split is Split.FOLLOW:
            source = self._tables.instance.sources[layer]
            lies = labels.key[:, live.index(source)] if source in live else np.zeros(count, dtype=np.int64)
            form, key, change = np.zeros(count, dtype=np.int64), labels.key, np.int64(0)
        else:
            forms = forms_on(row, self._tables.kinds[kind])
            before = np.tile(before, len(forms))
            form = lies = np.repeat(np.array(forms, dtype=np.int64), count)
            key = np.column_stack([labels.key[before], form])
            change = np.zeros(len(before), dtype=np.int64)
            for index, edge in self._into.get(layer, []):
                if edge.source in span:
                    change += self._tables.between[kind, index][key[:, live.index(edge.source)], form]
        return _Labels(
            time=labels.time[before] + change + self._tables.own(kind, layer, span.first)[lies],
            held=labels.held[before] + held[0][layer][lies],
            working=np.maximum(labels.working[before], held[1][layer][lies]),
            key=key,
            before=before,
            form=form,
        )


def _unbeaten(labels: _Labels) -> _Labels:
    """Keep, of the labels with the same key, those that no other undercuts in time, bytes held and working set.

    By ascending time, and for each size of the working set: a label goes if one before it in its key with no
    larger working set holds no more. Bytes held are compared by their rank, less as many for each key before: so
    the least rank so far is that of the key itself, and one pass does for all keys.
    """
    if len(labels.time) <= 1:
        return labels
    code = _code(labels.key)
    order = np.lexsort((labels.working, labels.held, labels.time, code))
    group = np.cumsum(np.diff(code[order], prepend=code[order[0]]) != 0)
    _, rank = np.unique(labels.held[order], return_inverse=True)
    height, working = rank - group * len(order), labels.working[order]
    kept = np.zeros(len(order), dtype=np.bool_)
    for size in np.unique(working):
        rows = np.flatnonzero(working <= size)
        least = np.minimum.accumulate(height[rows])
        best = np.ones(len(rows), dtype=np.bool_)
        best[1:] = least[1:] < least[:-1]
        kept[rows] |= best & (working[rows] == size)
    return labels.of(order[kept], list(range(labels.key.shape[1])))


def _code(key: Rows) -> Rows:
    """Return a number for each row, the same for equal rows alone."""
    code = np.zeros(len(key), dtype=np.int64)
    for at, column in enumerate(key.T):
        if at % COLUMNS == COLUMNS - 1:
            code = np.unique(code, return_inverse=True)[1]
        code = len(EVERY_FORM) * code + column
    return code


def _forms_of(way: list[tuple[Rows, Rows]], row: int) -> tuple[int, ...]:
    forms: list[int] = []
    for before, form in reversed(way):
        forms.append(int(form[row]))
        row = int(before[row])
    return tuple(reversed(forms))
