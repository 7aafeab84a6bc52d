"""The least time of one stage over all parallel forms, straight from the formulas of ``formulation.times``.

For checking certificates: written apart from the solvers' dynamic programme, without tables, over the forms of
those layers that later layers still look at. Exact for any layer graph; slow where many forms matter at once.
"""

from __future__ import annotations

from functools import cache

from formulation import times
from formulation.forms import forms_on
from formulation.groups import GroupKind
from formulation.instance import FormEdge, Instance
from formulation.layers import FORMS, Split
from formulation.options import StageTime


class StagePrices:
    """Least stage times of an instance; single layers and edges are priced once and remembered."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.into: dict[int, list[FormEdge]] = {}
        self.last_use = list(range(len(instance.layers)))
        for edge in instance.form_edges:
            self.into.setdefault(edge.consumer, []).append(edge)
            self.last_use[edge.source] = max(self.last_use[edge.source], edge.consumer)
        for layer, source in enumerate(instance.sources):
            if source is not None:
                self.last_use[source] = max(self.last_use[source], layer)
        self._inside = cache(self._inside_ns)
        self._between = cache(self._between_ns)
        self._floor = cache(self._floors)

    def exceeds(self, kind: GroupKind, start: int, stop: int, threshold_ns: int) -> bool:
        """Tell whether the stage of layers start .. stop - 1 takes more than the threshold in every form.

        Sums of what each layer takes at least settle most cases; the exact least time settles the others.
        """
        compute, communication = self._floor(kind)
        computing = compute[stop] - compute[start]
        floor = communication[stop] - communication[start]
        if self._combined(computing, floor) > threshold_ns:
            return True
        return self._combined(computing, self.communication_ns(kind, start, stop)) > threshold_ns

    def _combined(self, computing: int, communicating: int) -> int:
        overlap = self.instance.cost.stage_time is StageTime.OVERLAP
        return max(computing, communicating) if overlap else computing + communicating

    def communication_ns(self, kind: GroupKind, start: int, stop: int) -> int:
        """Return the least communication of a stage, layer by layer, by the forms still looked at."""
        if kind.link is None:
            return 0
        live: list[int] = []
        states: dict[tuple[int, ...], int] = {(): 0}
        for layer in range(start, stop):
            if self.instance.layers[layer].split is Split.FOLLOW:
                states = self._follow(kind, layer, live, states)
            else:
                states = self._choose(kind, layer, live, states)
                live.append(layer)
            kept = [at for at, one in enumerate(live) if self.last_use[one] > layer]
            if len(kept) < len(live):
                states = _least_by(states, kept)
                live = [live[at] for at in kept]
        return min(states.values())

    def _follow(
        self, kind: GroupKind, layer: int, live: list[int], states: dict[tuple[int, ...], int]
    ) -> dict[tuple[int, ...], int]:
        source = self.instance.sources[layer]
        if source not in live:
            return {forms: time + self._inside(kind, layer, 0) for forms, time in states.items()}
        at = live.index(source)
        return {forms: time + self._inside(kind, layer, forms[at]) for forms, time in states.items()}

    def _choose(
        self, kind: GroupKind, layer: int, live: list[int], states: dict[tuple[int, ...], int]
    ) -> dict[tuple[int, ...], int]:
        edges = [(live.index(edge.source), edge) for edge in self.into.get(layer, []) if edge.source in live]
        grown: dict[tuple[int, ...], int] = {}
        for form in forms_on(self.instance.layers[layer].allowed_forms, kind.tensor_parallel_degree):
            own = self._inside(kind, layer, form)
            for forms, time in states.items():
                changes = sum(self._between(kind, edge, forms[at], form) for at, edge in edges)
                grown[(*forms, form)] = time + own + changes
        return grown

    def _floors(self, kind: GroupKind) -> tuple[list[int], list[int]]:
        """Return prefix sums of the computation and of the least communication inside each layer."""
        compute, communication, degree = [0], [0], kind.tensor_parallel_degree
        for layer, row in enumerate(self.instance.layers):
            compute.append(compute[-1] + times.compute_ns(self.instance, layer, kind))
            forms = FORMS if row.split is Split.FOLLOW else forms_on(row.allowed_forms, degree)
            communication.append(communication[-1] + min(self._inside(kind, layer, form) for form in forms))
        return compute, communication

    def _inside_ns(self, kind: GroupKind, layer: int, form: int) -> int:
        return times.inside_ns(self.instance, layer, form, kind)

    def _between_ns(self, kind: GroupKind, edge: FormEdge, source: int, form: int) -> int:
        return times.between_ns(self.instance, edge, source, form, kind)


def _least_by(states: dict[tuple[int, ...], int], kept: list[int]) -> dict[tuple[int, ...], int]:
    """Keep the least time for each choice of the forms at the kept places."""
    least: dict[tuple[int, ...], int] = {}
    for forms, time in states.items():
        key = tuple(forms[at] for at in kept)
        if key not in least or time < least[key]:
            least[key] = time
    return least
