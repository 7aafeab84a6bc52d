"""Whether forms exist that keep a stage within a time and a memory at once; from the formulas alone.

For checking certificates, written apart from ``solvers.dynamic.tables.forms_under_memory``: layer by layer it
keeps, by the forms of the layers that later ones still look at, every triple (communication, bytes kept, largest
working set) that no other undercuts in all three. Exact for any layer graph.
"""

from __future__ import annotations

from functools import cache

from formulation.costs.least import StagePrices
from formulation.costs.memory import MemoryParts, received_bytes
from formulation.problem.groups import GroupKind, forms_on, layouts_on
from formulation.problem.instance import Instance
from formulation.problem.layers import Split
from formulation.schedules.keeps import Keeps

Triple = tuple[int, int, int]
"""Communication in ns, bytes kept, largest working set in bytes."""
Forms = tuple[int, ...]


class FormSearch:
    """Searches the forms of stages of one instance; single layers are priced once and remembered."""

    def __init__(self, instance: Instance, prices: StagePrices) -> None:
        self._instance, self._prices = instance, prices
        self._held = cache(lambda kind, *layer: MemoryParts.of_layer(instance, kind, *layer))
        self._received = cache(lambda kind, cut: received_bytes(instance, kind, cut))

    def least_held(self, kind: GroupKind, rule: Keeps, layer: int) -> int:
        """Return the bytes that a layer keeps on a device at least, whatever its form."""
        forms = layouts_on(self._instance, layer, kind)
        return min(self._shares(kind, layer, form, 0).times(rule, kind.mode).lasting for form in forms)

    def exist(self, kind: GroupKind, rule: Keeps, layers: tuple[int, int], time_ns: int, room: int) -> bool:
        """Tell whether some forms communicate at most ``time_ns`` and need at most ``room`` bytes.

        ``layers`` are the first layer and the one after the last. Cost: O(layers x 3**live x triples**2) steps.
        """
        room -= rule.in_flight * self._received(kind, layers[0])
        live: list[int] = []
        states: dict[Forms, list[Triple]] = {(): [(0, 0, 0)]}
        for layer in range(*layers):
            follows = self._instance.layers[layer].split is Split.FOLLOW
            around = live if follows else [*live, layer]
            kept = [at for at, one in enumerate(around) if self._prices.last_use[one] > layer]
            grown: dict[Forms, list[Triple]] = {}
            for forms, triples in states.items():
                for chosen, time, share in self._choices(kind, (layers[0], layer), live, forms):
                    held = share.times(rule, kind.mode).lasting
                    key = tuple(chosen[at] for at in kept)
                    for triple in triples:
                        new = (triple[0] + time, triple[1] + held, max(triple[2], share.working_set))
                        if new[0] <= time_ns and new[1] + new[2] <= room:
                            _keep(grown.setdefault(key, []), new)
            states, live = grown, [around[at] for at in kept]
        return bool(states)

    def _choices(
        self, kind: GroupKind, at: tuple[int, int], live: list[int], forms: Forms
    ) -> list[tuple[Forms, int, MemoryParts]]:
        """Return the forms around a layer with each of its own, what that communicates, and what it holds.

        ``at`` are the first layer of the stage, and this one.
        """
        first, layer = at
        row, prices = self._instance.layers[layer], self._prices
        if row.split is Split.FOLLOW:
            source = self._instance.sources[layer]
            form = forms[live.index(source)] if source in live else None
            time = prices.inside(kind, layer, form or 0, first)
            return [(forms, time, self._shares(kind, layer, form, first))]
        edges = [
            (forms[live.index(edge.source)], edge) for edge in prices.into.get(layer, []) if edge.source in live
        ]
        return [
            (
                (*forms, form),
                prices.inside(kind, layer, form, first)
                + sum(prices.between(kind, edge, at, form) for at, edge in edges),
                self._shares(kind, layer, form, first),
            )
            for form in forms_on(row, kind)
        ]

    def _shares(self, kind: GroupKind, layer: int, form: int | None, first: int) -> MemoryParts:
        """Return what a device holds of a layer laid out as ``form`` says (None: that is decided elsewhere)."""
        return self._held(kind, layer, form or 0, self._instance.copied(layer, first))


def _keep(known: list[Triple], new: Triple) -> None:
    """Add a triple unless another undercuts it in everything; drop those that it undercuts."""
    for one in known:
        if one[0] <= new[0] and one[1] <= new[1] and one[2] <= new[2]:
            return
    known[:] = [one for one in known if not (new[0] <= one[0] and new[1] <= one[1] and new[2] <= one[2])]
    known.append(new)
