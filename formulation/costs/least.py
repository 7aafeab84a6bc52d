"""The least communication of a stage over all parallel forms, straight from the formulas (``costs.times``).

For checking certificates: written apart from the solvers' dynamic programme, without tables, over the forms of
those layers that later layers still look at. Exact for any layer graph; slow where many forms matter at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from formulation.costs import times
from formulation.costs.forms import forms_on
from formulation.problem.groups import GroupKind
from formulation.problem.instance import FormEdge, Instance
from formulation.problem.layers import FORMS, Split
from formulation.problem.options import StageTime

__all__ = ["StagePrices"]

States = dict[tuple[int, ...], int]
"""By the forms of the layers still looked at: the least communication in ns so far."""


@dataclass(slots=True)
class _Front:
    """A stage that grows: the next layer, layers still looked at, and the least communication of each length."""

    layer: int
    live: list[int] = field(default_factory=list)
    states: States = field(default_factory=lambda: {(): 0})
    least: list[int] = field(default_factory=lambda: [0])


class StagePrices:
    """Least stage times of an instance; layers, edges and stages are priced once and remembered.

    ``into``: form edges by consumer; ``last_use``: for every layer the last one that looks at its form;
    ``inside(kind, layer, form)`` and ``between(kind, edge, source, form)``: the formulas of
    ``formulation.costs.times``.
    """

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
        self.inside = cache(lambda kind, layer, form: times.inside_ns(instance, layer, form, kind))
        self.between = cache(lambda kind, edge, source, form: times.between_ns(instance, edge, source, form, kind))
        self.floors = cache(self._floors)
        self._fronts: dict[tuple[GroupKind, int], _Front] = {}

    def exceeds(self, kind: GroupKind, start: int, stop: int, threshold_ns: int) -> bool:
        """Tell whether the stage of layers start .. stop - 1 takes more than the threshold in every form."""
        compute, _ = self.floors(kind)
        computing, communicating = compute[stop] - compute[start], self.communication_ns(kind, start, stop)
        overlap = self.instance.cost.stage_time is StageTime.OVERLAP
        return (max(computing, communicating) if overlap else computing + communicating) > threshold_ns

    def communication_ns(self, kind: GroupKind, start: int, stop: int) -> int:
        """Return the least communication of a stage, layer by layer, by the forms still looked at."""
        if kind.link is None:
            return 0
        front = self._fronts.setdefault((kind, start), _Front(start))
        while front.layer < stop:
            self._grow(kind, front)
        return front.least[stop - start]

    def _grow(self, kind: GroupKind, front: _Front) -> None:
        layer = front.layer
        if self.instance.layers[layer].split is Split.FOLLOW:
            front.states = self._follow(kind, layer, front.live, front.states)
        else:
            front.states = self._choose(kind, layer, front.live, front.states)
            front.live.append(layer)
        kept = [at for at, one in enumerate(front.live) if self.last_use[one] > layer]
        if len(kept) < len(front.live):
            front.states = _least_by(front.states, kept)
            front.live = [front.live[at] for at in kept]
        front.least.append(min(front.states.values()))
        front.layer += 1

    def _follow(self, kind: GroupKind, layer: int, live: list[int], states: States) -> States:
        source = self.instance.sources[layer]
        if source not in live:
            return {forms: time + self.inside(kind, layer, 0) for forms, time in states.items()}
        at = live.index(source)
        return {forms: time + self.inside(kind, layer, forms[at]) for forms, time in states.items()}

    def _choose(self, kind: GroupKind, layer: int, live: list[int], states: States) -> States:
        edges = [(live.index(edge.source), edge) for edge in self.into.get(layer, []) if edge.source in live]
        grown: States = {}
        for form in forms_on(self.instance.layers[layer].allowed_forms, kind.tensor_parallel_degree):
            own = self.inside(kind, layer, form)
            for forms, time in states.items():
                changes = sum(self.between(kind, edge, forms[at], form) for at, edge in edges)
                grown[(*forms, form)] = time + own + changes
        return grown

    def _floors(self, kind: GroupKind) -> tuple[list[int], list[int]]:
        """Return prefix sums of the computation and of the least communication inside each layer."""
        compute, communication, degree = [0], [0], kind.tensor_parallel_degree
        for layer, row in enumerate(self.instance.layers):
            compute.append(compute[-1] + times.compute_ns(self.instance, layer, kind))
            forms = FORMS if row.split is Split.FOLLOW else forms_on(row.allowed_forms, degree)
            communication.append(communication[-1] + min(self.inside(kind, layer, form) for form in forms))
        return compute, communication


def _least_by(states: States, kept: list[int]) -> States:
    """Keep the least time for each choice of the forms at the kept places."""
    least: States = {}
    for forms, time in states.items():
        key = tuple(forms[at] for at in kept)
        if key not in least or time < least[key]:
            least[key] = time
    return least
