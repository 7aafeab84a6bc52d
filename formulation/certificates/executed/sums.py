"""The least sums of passes over all forms of a stage, each pass counted so often: for every stage at once.

Layer by layer, for all places where stages begin together: by the forms of the layers that later ones still look
at, the least of every sum. A layer in front of a stage has no form there. What a stage holds at least is a sum
too. Exact for any layer graph, one sum at a time: what is least in one of them need not be in another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.least import form_uses
from pipecut.formulation.costs.memory import MemoryParts, received_bytes
from pipecut.formulation.costs.passes import change_passes, layer_passes
from pipecut.formulation.limits import NEVER, Deadline
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import GroupKind, forms_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FormEdge, Split
from pipecut.formulation.problem.precision import Copy
from pipecut.formulation.schedules.keeps import Keeps

NEVER_NS = 1 << 60
"""The sum of no stage."""
OUTSIDE = -1
"""The form of a layer that is in front of the stage."""
Sums = NDArray[np.int64]
Cell = Callable[[int, int, Copy | None], Sums]
"""What a layer in a form, with what it copies, adds to the sums."""
Change = Callable[[FormEdge, int, int], Sums]
"""What a change of layout at an edge adds."""
Forms = tuple[int, ...]


class LeastSums:
    """The least sums of the stages of an instance; layers are priced once and remembered."""

    def __init__(self, instance: Instance, kinds: tuple[GroupKind, ...], deadline: Deadline = NEVER) -> None:
        self._instance, self._kinds, self._deadline = instance, kinds, deadline
        self.places = CutSpace.of(instance).places
        self._into, self._last_use = form_uses(instance)
        self._passes = cache(self._of_layer)
        self._changes = cache(self._of_change)

    def of_passes(self, kind: int, often: Sums) -> Sums:
        """Return ``[row, first, stop]``: the least of ``often[row] @ (forward, backward, synchronisation)``.

        By the numbers of places; NEVER_NS where a stage does not stop behind its begin. Raises StoppedError after
        the deadline. Cost: for each layer, the forms of those still looked at times rows times places.
        """
        # What takes longer counts as that, so that no sum leaves 64 bits; least sums can only be less for it.
        longest = NEVER_NS // (4 * max(1, int(often.max())))

        def cell(layer: int, form: int, copy: Copy | None) -> Sums:
            return np.asarray(often @ np.minimum(self._passes(kind, layer, form, copy), longest))

        def change(edge: FormEdge, source: int, form: int) -> Sums:
            return np.asarray(often[:, :2] @ np.minimum(self._changes(kind, edge, source, form), longest))

        return self._least(self._kinds[kind], len(often), cell, change)

    def roomy(self, kind: int, rules: tuple[Keeps, ...]) -> NDArray[np.bool_]:
        """Return ``[rule, first, stop]``: whether what layers hold at least fits into the devices of a stage."""
        own, nothing = self._kinds[kind], np.zeros(len(rules), dtype=np.int64)

        def cell(layer: int, form: int, copy: Copy | None) -> Sums:
            parts = MemoryParts.of_layer(self._instance, own, layer, form, copy)
            return np.array([parts.times(rule, own.mode).lasting for rule in rules], dtype=np.int64)

        held = self._least(own, len(rules), cell, lambda *_: nothing)
        capacity = min(self._instance.device_classes[one].memory_bytes for one in own.classes)
        received = np.array([received_bytes(self._instance, own, place) for place in self.places[:-1]] + [0])
        room = capacity - np.array([[rule.in_flight] for rule in rules]) * received
        return np.asarray(held <= room[:, :, None])

    def _least(self, kind: GroupKind, rows: int, cell: Cell, change: Change) -> Sums:
        places = np.array(self.places)
        found = np.full((rows, len(places), len(places)), NEVER_NS, dtype=np.int64)
        live: list[int] = []
        keys, sums = list[Forms](), np.zeros((0, rows, 0), dtype=np.int64)
        for layer in range(len(self._instance.layers)):
            self._deadline.check()
            begins = int(np.searchsorted(places, layer))
            if places[begins] == layer:
                keys, sums = _with_fresh(keys, sums, (OUTSIDE,) * len(live), begins)
            follows = self._instance.layers[layer].split is Split.FOLLOW
            around = live if follows else [*live, layer]
            kept = [at for at, one in enumerate(around) if self._last_use[one] > layer]
            if follows:
                chosen, added = keys, self._following(layer, live, keys, cell)[:, None]
            else:
                chosen, added = self._choices(kind, layer, (live, keys), cell, change)
            grown = [tuple(one[at] for at in kept) for one in chosen]
            # Of stages that begin behind the layer nothing is known yet.
            more = (sums[:, None] + added[..., : sums.shape[2]]).reshape(-1, rows, sums.shape[2])
            keys = list(dict.fromkeys(grown))
            if len(keys) < len(grown):
                numbers = {key: at for at, key in enumerate(keys)}
                of = np.array([numbers[key] for key in grown])
                begins = np.searchsorted(np.sort(of), np.arange(len(keys)))
                more = np.minimum.reduceat(more[np.argsort(of, kind="stable")], begins, axis=0)
            sums, live = np.minimum(more, NEVER_NS), [around[at] for at in kept]
            stop = int(np.searchsorted(places, layer + 1))
            if places[stop] == layer + 1:
                found[:, : sums.shape[2], stop] = sums.min(axis=0)
        return found

    def _following(self, layer: int, live: list[int], keys: list[Forms], cell: Cell) -> Sums:
        """Return what a layer adds that lies as another one does, by the forms that are looked at."""
        source = self._instance.sources[layer]
        at = live.index(source) if source in live else None
        added = cache(lambda form: self._with_copies(layer, form, cell))
        return np.stack([added(0 if at is None else max(key[at], 0)) for key in keys])

    def _choices(
        self, kind: GroupKind, layer: int, before: tuple[list[int], list[Forms]], cell: Cell, change: Change
    ) -> tuple[list[Forms], Sums]:
        """Return the forms that are looked at with each of a layer's own, and what that adds to each of them."""
        (live, keys), own = before, forms_on(self._instance.layers[layer], kind)
        added = np.stack([self._with_copies(layer, form, cell) for form in own])[None]
        for edge in self._into.get(layer, ()):
            if edge.source in live:
                at = live.index(edge.source)
                sources = {key[at] for key in keys}
                changed = {one: [change(edge, max(one, 0), form) for form in own] for one in sources}
                if OUTSIDE in changed:
                    changed[OUTSIDE] = [np.zeros_like(one) for one in changed[OUTSIDE]]
                added = added + np.array([changed[key[at]] for key in keys])[..., None]
        return [(*key, form) for key in keys for form in own], added

    def _with_copies(self, layer: int, form: int, cell: Cell) -> Sums:
        """Return what a layer adds by row and, where stages copy weights for it, by their begin."""
        if self._instance.copies[layer] is None:
            return cell(layer, form, None)[:, None]
        copies = [self._instance.copied(layer, place) for place in self.places if place <= layer]
        found = np.zeros((len(cell(layer, form, None)), len(self.places)), dtype=np.int64)
        for at, copy in enumerate(copies):
            found[:, at] = cell(layer, form, copy)
        return found

    def _of_layer(self, kind: int, layer: int, form: int, copy: Copy | None) -> Sums:
        passes = layer_passes(self._instance, layer, form, self._kinds[kind], copy)[:3]
        return np.array(passes, dtype=np.int64)

    def _of_change(self, kind: int, edge: FormEdge, source: int, form: int) -> Sums:
        return np.array(change_passes(self._instance, edge, source, form, self._kinds[kind]), dtype=np.int64)


def _with_fresh(keys: list[Forms], sums: Sums, outside: Forms, begins: int) -> tuple[list[Forms], Sums]:
    """Return states with those of stages that begin here, of which no layer has a form yet."""
    every = keys if outside in keys else [*keys, outside]
    found: Sums = np.full((len(every), sums.shape[1], begins + 1), NEVER_NS, dtype=np.int64)
    found[: len(keys), :, : sums.shape[2]] = sums
    found[every.index(outside), :, begins] = 0
    return every, found
