"""Forms of one stage under two limits at once: at most so much time and at most so much memory.

The forms with the least time may copy weights that only fit when they are sharded. So this keeps, by the forms of
the layers still looked at, every combination of communication and memory that no other beats in everything: a
label-setting dynamic programme with dominance (as for shortest paths with a resource). Exact for any layer graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from formulation.costs.forms import forms_on
from formulation.costs.memory import Keeps
from formulation.costs.memory_tables import MemoryTables
from formulation.costs.tables import Tables, Times
from formulation.limits.deadline import in_time
from formulation.problem.layers import Split
from formulation.problem.options import StageTime
from formulation.problem.plan import Span
from solvers.dynamic.tables.best_forms import edges_into


@dataclass(frozen=True, slots=True)
class _Label:
    """What the layers so far cost: communication in ns, bytes held, largest working set; the last form taken."""

    time: int
    held: int
    working: int
    form: int
    before: _Label | None

    def beats(self, other: _Label) -> bool:
        return self.time <= other.time and self.held <= other.held and self.working <= other.working


_States = dict[tuple[int, ...], list[_Label]]
"""By the forms of the layers still looked at: the labels that no other beats."""


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

        Cost: O(layers x 3**live x labels**2) steps in Python; few labels survive in practice, as those go that
        cannot end within both limits even if every later layer took its least of each.
        Raises StoppedError after the deadline of the tables.
        """
        compute = int(self._tables.compute[kind, span.first : span.stop].sum())
        overlap = self._tables.instance.cost.stage_time is StageTime.OVERLAP
        time_left = threshold_ns if overlap else threshold_ns - compute
        if compute > threshold_ns:
            return None
        room = self._held.room(slot, kind, span.first)
        states: _States = {(): [_Label(0, 0, 0, 0, None)]}
        live: list[int] = []
        lasting, (more_time, more_held) = self._lasting(slot, kind), self._least_behind(slot, kind)
        for layer in in_time(span.layers, self._tables.deadline):
            later_time = int(more_time[layer + 1] - more_time[span.stop])
            later_held = int(more_held[layer + 1] - more_held[span.stop])
            kept = [*live, layer] if self._tables.instance.layers[layer].split is not Split.FOLLOW else live
            still = [at for at, one in enumerate(kept) if self._last[one] > layer]
            grown: _States = {}
            for key, label in self._grown(lasting, kind, span, layer, live, states):
                late = label.time + later_time > time_left
                if not late and label.held + later_held + label.working <= room:
                    _keep(grown.setdefault(tuple(key[at] for at in still), []), label)
            states, live = grown, [kept[at] for at in still]
        found = [label for labels in states.values() for label in labels]
        return _forms_of(min(found, key=lambda label: label.time)) if found else None

    def _least_behind(self, slot: int, kind: int) -> tuple[Times, Times]:
        """Return by layer what it and all layers behind it communicate and hold at least, to the model's end."""
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
        self, lasting: Times, kind: int, span: Span, layer: int, live: list[int], states: _States
    ) -> Iterator[tuple[tuple[int, ...], _Label]]:
        """Yield every label with the next layer in every form, by the forms of the live layers and its own."""
        row = self._tables.instance.layers[layer]
        if row.split is Split.FOLLOW:
            source = self._tables.instance.sources[layer]
            at = live.index(source) if source in live else None
            for key, labels in states.items():
                for label in labels:
                    yield key, self._with(label, lasting, (kind, layer, 0 if at is None else key[at]), 0, 0)
            return
        edges = [
            (live.index(edge.source), index) for index, edge in self._into.get(layer, []) if edge.source in span
        ]
        for form in forms_on(row.allowed_forms, self._tables.kinds[kind].tensor_parallel_degree):
            for key, labels in states.items():
                change = sum(int(self._tables.between[kind, index, key[at], form]) for at, index in edges)
                for label in labels:
                    yield (*key, form), self._with(label, lasting, (kind, layer, form), change, form)

    def _with(self, label: _Label, lasting: Times, cell: tuple[int, int, int], change: int, form: int) -> _Label:
        return _Label(
            time=label.time + change + int(self._tables.inside[cell]),
            held=label.held + int(lasting[cell[1:]]),
            working=max(label.working, int(self._held.working_set[cell])),
            form=form,
            before=label,
        )


def _keep(labels: list[_Label], new: _Label) -> None:
    """Add a label unless another beats it; drop those that it beats."""
    if any(label.beats(new) for label in labels):
        return
    labels[:] = [label for label in labels if not new.beats(label)]
    labels.append(new)


def _forms_of(label: _Label) -> tuple[int, ...]:
    forms: list[int] = []
    while label.before is not None:
        forms.append(label.form)
        label = label.before
    return tuple(reversed(forms))
