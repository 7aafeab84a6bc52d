"""Stages from one place on, with all pairs of pace and synchronisation that their forms may have within memory.

A stage grows layer by layer, and a label is what its layers send so far in each pass, what they synchronise, and
the bytes that they hold; labels that another one undercuts in everything are left out, and those that take longer
than any plan of use may. Exact for any layer graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import forms_on
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.options import StageTime
from pipecut.formulation.problem.plan import Span
from pipecut.solvers.dynamic.period.parts import PassParts
from pipecut.solvers.reference.algorithm_1 import edges_into
from pipecut.solvers.step_time.unbeaten import numbered, unbeaten

Index = NDArray[np.intp]
Forms = tuple[int, ...]
HISTORY_BYTES = 16
"""Of each label: the one that it comes from, and the form of its newest layer."""


@dataclass(frozen=True, slots=True, eq=False)
class StageRoom:
    """The memory of a stage: by layer and form what is kept between passes, and the working set; and how much."""

    lasting: Times
    working: Times
    most: int


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    """Rows: sums by pass, of synchronisation and of bytes kept; the working set; forms of the live layers."""

    sums: Times
    working: Times
    key: Times
    before: Index
    form: Times

    def of(self, rows: Index) -> _Labels:
        return _Labels(self.sums[rows], self.working[rows], self.key[rows], self.before[rows], self.form[rows])


class StageGrowth:
    """Grows the stages of one instance."""

    def __init__(self, parts: PassParts, space: CutSpace, held: MemoryTables | None) -> None:
        self._parts, self._space, self._held = parts, space, held
        self._tables: tuple[Tables, ...] = parts.passes if parts.sync is None else (*parts.passes, parts.sync)
        self._overlap = parts.instance.cost.stage_time is StageTime.OVERLAP
        self._into = edges_into(parts.instance)
        self._last = list(range(len(parts.instance.layers)))
        for edge in parts.instance.form_edges:
            self._last[edge.source] = max(self._last[edge.source], edge.consumer)
        for layer, source in enumerate(parts.instance.sources):
            if source is not None:
                self._last[source] = max(self._last[source], layer)

    def room(self, slot: int, kind: int, first: int) -> StageRoom | None:
        """Return the memory of stages that begin at a layer; None where none of them can run out of it."""
        if self._held is None:
            return None
        lasting, working = self._held.in_stage(slot, kind, first, self._held.lasting(slot, kind))
        room = StageRoom(lasting, working, self._held.room(slot, kind, first))
        whole = int(lasting[first:].max(axis=1).sum()) + int(working[first:].max())
        return room if whole > room.most else None

    def fits(self, slot: int, kind: int, layers: Span, forms: Forms) -> bool:
        """Tell whether a stage with these forms fits into its memory."""
        room = self.room(slot, kind, layers.first)
        if room is None:
            return True
        lies = [self._lies(layer, layers, forms) for layer in layers.layers]
        kept = sum(int(room.lasting[layer, form]) for layer, form in zip(layers.layers, lies, strict=True))
        working = (int(room.working[layer, form]) for layer, form in zip(layers.layers, lies, strict=True))
        return kept + max(working) <= room.most

    def _lies(self, layer: int, layers: Span, forms: Forms) -> int:
        if self._parts.instance.layers[layer].split is not Split.FOLLOW:
            return forms[layer - layers.first]
        source = self._parts.instance.sources[layer]
        return forms[source - layers.first] if source is not None and source in layers else 0

    def pairs(self, slot: int, kind: int, start: int, most_ns: int) -> Times:
        """Return rows (stop, pace, synchronisation) of the stages from a place on that take at most so long.

        By ascending stop; of each stop those that no other undercuts. Raises StoppedError after the deadline of
        the tables, TooLargeError where labels are too many.
        """
        layers = Span(self._space.places[start], len(self._parts.instance.layers))
        stops, found = {place: at for at, place in enumerate(self._space.places)}, [np.zeros((0, 3), np.int64)]
        for layer, labels in enumerate(self._grow(slot, kind, layers, most_ns), layers.first + 1):
            if layer in stops:
                pairs = self._priced(kind, Span(layers.first, layer), labels)
                own = np.zeros(len(pairs), dtype=np.int64)
                pairs = pairs[unbeaten(pairs, own, self._tables[0].deadline)]
                found.append(np.column_stack([own[: len(pairs)] + stops[layer], pairs]))
        return np.concatenate(found)

    def forms(self, slot: int, kind: int, layers: Span, most: tuple[int, int]) -> Forms:
        """Return forms with at most this pace and synchronisation. Raises LookupError if there are none."""
        history: list[_Labels] = []
        for labels in self._grow(slot, kind, layers, most[0]):
            history.append(labels)
            size = sum(len(one.form) for one in history)
            needed = HISTORY_BYTES * size
            TooLargeError.refuse_above("forms of a stage", needed, "narrow them with constraints.forms")
        good: Index = np.zeros(0, dtype=np.intp)
        if len(history) == len(layers):
            good = np.flatnonzero((self._priced(kind, layers, history[-1]) <= np.array(most)).all(axis=1))
        if not len(good):
            raise LookupError(f"kind {kind}, layers {layers.first} to {layers.stop}: no forms take {most}")
        row, found = int(good[0]), list[int]()
        for labels in reversed(history):
            found.append(int(labels.form[row]))
            row = int(labels.before[row])
        return tuple(reversed(found))

    def _priced(self, kind: int, layers: Span, labels: _Labels) -> Times:
        """Return pace and synchronisation of labels."""
        passes = len(self._parts.passes)
        computed = np.array([one.compute[kind, layers.first : layers.stop].sum() for one in self._parts.passes])
        sent = labels.sums[:, :passes]
        pace = (np.maximum(sent, computed) if self._overlap else sent + computed).sum(axis=1)
        nothing = np.zeros_like(pace)
        return np.column_stack([pace, nothing if self._parts.sync is None else labels.sums[:, passes]])

    def _grow(self, slot: int, kind: int, layers: Span, most_ns: int) -> Iterator[_Labels]:
        """Yield the labels after every layer, up to the first without any."""
        room, live = self.room(slot, kind, layers.first), list[int]()
        nothing = np.zeros(1, dtype=np.int64)
        columns = len(self._tables) + (room is not None)
        labels = _Labels(
            np.zeros((1, columns), dtype=np.int64), nothing, np.zeros((1, 0), dtype=np.int64), nothing, nothing
        )
        for layer in layers.layers:
            self._tables[0].deadline.check()
            grown = self._put(kind, layers, layer, live, labels, room)
            bears = self._parts.instance.layers[layer].split is not Split.FOLLOW
            around = [*live, layer] if bears else live
            still = [at for at, one in enumerate(around) if self._last[one] > layer]
            live = [around[at] for at in still]
            fits = self._priced(kind, Span(layers.first, layer + 1), grown)[:, 0] <= most_ns
            if room is not None:
                fits &= grown.sums[:, -1] + grown.working <= room.most
            kept = grown.of(np.flatnonzero(fits))
            kept = _Labels(kept.sums, kept.working, kept.key[:, still], kept.before, kept.form)
            rows = kept.sums if room is None else np.column_stack([kept.sums, kept.working])
            labels = kept.of(unbeaten(rows, numbered(kept.key), self._tables[0].deadline))
            if not len(labels.form):
                return
            yield labels

    def _put(
        self, kind: int, layers: Span, layer: int, live: list[int], labels: _Labels, room: StageRoom | None
    ) -> _Labels:
        """Return every label with the next layer in every form that it may have."""
        row, count = self._parts.instance.layers[layer], len(labels.form)
        if row.split is Split.FOLLOW:
            source = self._parts.instance.sources[layer]
            form = np.zeros(count, dtype=np.int64)
            before, lies, key = np.arange(count), form, labels.key
            if source in live:
                lies = labels.key[:, live.index(source)]
        else:
            forms = np.array(forms_on(row, self._tables[0].kinds[kind]), dtype=np.int64)
            before, form = np.tile(np.arange(count), len(forms)), np.repeat(forms, count)
            lies, key = form, np.column_stack([labels.key[before], form])
        sums, working = labels.sums[before], labels.working[before]
        for at, tables in enumerate(self._tables):
            sums[:, at] += tables.own(kind, layer, layers.first)[lies]
            for index, edge in self._into.get(layer, []) if row.split is not Split.FOLLOW else ():
                if edge.source in layers:
                    sums[:, at] += tables.between[kind, index][key[:, live.index(edge.source)], form]
        if room is not None:
            sums[:, -1] += room.lasting[layer][lies]
            working = np.maximum(working, room.working[layer][lies])
        return _Labels(sums, working, key, before, form)
