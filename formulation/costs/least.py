"""The least communication of a stage over all parallel forms, straight from the formulas (``costs.times``).

For checking certificates: written apart from the solvers' dynamic programme, without tables, over the forms of
those layers that later layers still look at. Exact for any layer graph; slow where many forms matter at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from pipecut.formulation.costs import times
from pipecut.formulation.problem.groups import GroupKind, forms_on, layouts_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FormEdge, Split
from pipecut.formulation.problem.options import Compute
from pipecut.formulation.problem.precision import Copy

States = dict[tuple[int, ...], int]
"""By the forms of the layers still looked at: the least communication in ns so far."""


@dataclass(slots=True)
class _Front:
    """A stage that grows: its first layer, the next, layers still looked at, the least of each length in ns."""

    first: int
    layer: int
    live: list[int] = field(default_factory=list)
    states: States = field(default_factory=lambda: {(): 0})
    least: list[int] = field(default_factory=lambda: [0])


def form_uses(instance: Instance) -> tuple[dict[int, list[FormEdge]], list[int]]:
    """Return the form edges by their consumer, and for every layer the last one that looks at its form."""
    into: dict[int, list[FormEdge]] = {}
    last_use = list(range(len(instance.layers)))
    for edge in instance.form_edges:
        into.setdefault(edge.consumer, []).append(edge)
        last_use[edge.source] = max(last_use[edge.source], edge.consumer)
    for layer, source in enumerate(instance.sources):
        if source is not None:
            last_use[source] = max(last_use[source], layer)
    return into, last_use


class StagePrices:
    """Least stage times of an instance; layers, edges and stages are priced once and remembered.

    ``into``: form edges by consumer; ``last_use``: for every layer the last one that looks at its form;
    ``inside(kind, layer, form, first)``, in a stage that starts at layer ``first``, and
    ``between(kind, edge, source, form)``: the formulas of ``formulation.costs.times``. What a form computes more
    than the least of a layer counts as communication inside it; where the two overlap, all forms compute the same.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.into, self.last_use = form_uses(instance)
        self.least_compute = cache(lambda kind, layer: times.least_compute_ns(instance, layer, kind))
        self._inside = cache(self._inside_ns)
        self.between = cache(lambda kind, edge, source, form: times.between_ns(instance, edge, source, form, kind))
        self.floors = cache(self._floors)
        self._fronts: dict[tuple[GroupKind, int], _Front] = {}

    def inside(self, kind: GroupKind, layer: int, form: int, first: int) -> int:
        """Return the communication inside a layer of a stage that starts at layer ``first``, in ns."""
        return self._inside(kind, layer, form, self.instance.copied(layer, first))

    def _inside_ns(self, kind: GroupKind, layer: int, form: int, copy: Copy | None) -> int:
        more = times.compute_ns(self.instance, layer, form, kind) - self.least_compute(kind, layer)
        return times.inside_ns(self.instance, layer, form, kind, copy) + more

    def communication_ns(self, kind: GroupKind, start: int, stop: int) -> int:
        """Return the least communication of a stage, layer by layer, by the forms still looked at."""
        copies = any(self.instance.copied(layer, start) for layer in range(start, stop))
        updates = kind.mode.optimizer_on_host or self.instance.cost.compute is Compute.ROOFLINE
        if kind.link is None and not updates and not copies:
            return 0
        front = self._fronts.setdefault((kind, start), _Front(start, start))
        while front.layer < stop:
            self._grow(kind, front)
        return front.least[stop - start]

    def _grow(self, kind: GroupKind, front: _Front) -> None:
        layer = front.layer
        if self.instance.layers[layer].split is Split.FOLLOW:
            front.states = self._follow(kind, front, front.states)
        else:
            front.states = self._choose(kind, front, front.states)
            front.live.append(layer)
        kept = [at for at, one in enumerate(front.live) if self.last_use[one] > layer]
        if len(kept) < len(front.live):
            front.states, front.live = _least_by(front.states, kept), [front.live[at] for at in kept]
        front.least.append(min(front.states.values()))
        front.layer += 1

    def _follow(self, kind: GroupKind, front: _Front, states: States) -> States:
        layer, live, first = front.layer, front.live, front.first
        source = self.instance.sources[layer]
        at = live.index(source) if source in live else None
        own = ((forms, 0 if at is None else forms[at], time) for forms, time in states.items())
        return {forms: time + self.inside(kind, layer, form, first) for forms, form, time in own}

    def _choose(self, kind: GroupKind, front: _Front, states: States) -> States:
        layer, live = front.layer, front.live
        edges = [(live.index(edge.source), edge) for edge in self.into.get(layer, []) if edge.source in live]
        grown: States = {}
        for form in forms_on(self.instance.layers[layer], kind):
            own = self.inside(kind, layer, form, front.first)
            for forms, time in states.items():
                changes = sum(self.between(kind, edge, forms[at], form) for at, edge in edges)
                grown[(*forms, form)] = time + own + changes
        return grown

    def _floors(self, kind: GroupKind) -> tuple[list[int], list[int]]:
        """Return prefix sums of computation and of the least communication inside each layer, without copies."""
        compute, communication = [0], [0]
        for layer in range(len(self.instance.layers)):
            compute.append(compute[-1] + self.least_compute(kind, layer))
            forms = layouts_on(self.instance, layer, kind)
            communication.append(communication[-1] + min(self.inside(kind, layer, form, 0) for form in forms))
        return compute, communication


def _least_by(states: States, kept: list[int]) -> States:
    """Keep the least time for each choice of the forms at the kept places."""
    least: States = {}
    for forms, time in states.items():
        key = tuple(forms[at] for at in kept)
        least[key] = min(time, least.get(key, time))
    return least
