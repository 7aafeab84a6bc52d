"""What layers take in each pass of a step, by kind and form: arrays for the declarative model.

The specification is ``formulation.costs.passes``, whose functions fill the cells. Where the passes of a stage add
up there are three *columns*: forward, backward with what is computed again, synchronisation. With
``StageTime.OVERLAP`` a pass takes the larger of what it computes and what it sends, so each of these is a column.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from formulation.costs.passes import change_parts, layer_parts
from formulation.costs.tables import Tables, Times
from formulation.limits.deadline import in_time
from formulation.problem.groups import GroupKind, layouts_on
from formulation.problem.instance import FORBIDDEN, Instance
from formulation.problem.options import StageTime
from formulation.problem.precision import Copy

PARTS = 7
"""Of a layer: computing forward, backward and again; sending forward, backward and again; synchronisation."""
ADDED = {"forward": ((0, 3),), "backward": ((1, 2, 4, 5),), "sync": ((6,),)}
OVERLAPPED = {"forward": ((0,), (3,)), "backward": ((1,), (4,)), "again": ((2,), (5,)), "sync": ((6,),)}
"""Which parts make up a pass: each entry is a sum, and the pass takes the largest of them."""


@dataclass(frozen=True, slots=True, eq=False)
class PassPrices:
    """Times in ns. ``passes`` says by name which columns a pass takes the largest of.

    ``layers[column, kind, layer, form]``, where the form is that of the layer that decides the layout, FORBIDDEN
    where the layer cannot lie so. ``changes[column, kind, edge, form, form]``. By ``[column, kind, form]``
    ``copies[e, l]`` is what layer l takes beside that in a stage that starts behind layer e, of whose weights it
    has a copy.
    ``least[column, kind, layer]`` is what a layer takes at least, computed again or not where stages choose.
    """

    passes: Mapping[str, tuple[int, ...]]
    layers: Times
    changes: Times
    copies: Mapping[tuple[int, int], Times]
    least: Times


@lru_cache(maxsize=1)
def pass_prices(tables: Tables) -> PassPrices:
    """Price every layer and form edge on every kind, once for all questions of a search.

    Cost: O(kinds x (layers x forms + edges x forms**2)). Raises StoppedError after the deadline of the tables.
    """
    added = tables.instance.cost.stage_time is StageTime.ADD
    sums = [parts for row in (ADDED if added else OVERLAPPED).values() for parts in row]
    passes: dict[str, tuple[int, ...]] = {}
    for name, row in (ADDED if added else OVERLAPPED).items():
        passes[name] = tuple(sums.index(parts) for parts in row)
    layers = _summed(_layers(tables), sums)
    own = {ends: _summed(copy, sums) for ends, copy in _copies(tables).items()}
    alone = {ends: layers[:, :, ends[1]] for ends in own}
    copies = {ends: np.where(alone[ends] < FORBIDDEN, own[ends] - alone[ends], 0) for ends in own}
    least = layers.min(axis=-1)
    for base, again in tables.recomputing().items():
        least[:, base] = least[:, again] = np.minimum(least[:, base], least[:, again])
    return PassPrices(passes, layers, _summed(_changes(tables), sums), copies, least)


def _summed(parts: Times, sums: list[tuple[int, ...]]) -> Times:
    """Add up parts (the first axis) to columns."""
    return np.stack([np.minimum(parts[list(row)].sum(axis=0), FORBIDDEN) for row in sums])


def _layers(tables: Tables) -> Times:
    instance = tables.instance
    found = np.full((PARTS, *tables.inside.shape), FORBIDDEN, dtype=np.int64)
    for at, kind in enumerate(in_time(tables.kinds, tables.deadline)):
        for layer in range(len(instance.layers)):
            _fill(found[:, at, layer], instance, layer, kind)
    return found


def _copies(tables: Tables) -> dict[tuple[int, int], Times]:
    """Return the parts of layers with their copies."""
    found: dict[tuple[int, int], Times] = {}
    kinds, _, forms = tables.inside.shape
    for layer, copy in enumerate(tables.instance.copies):
        if copy is not None:
            rows = np.full((PARTS, kinds, forms), FORBIDDEN, dtype=np.int64)
            for at, kind in enumerate(in_time(tables.kinds, tables.deadline)):
                _fill(rows[:, at], tables.instance, layer, kind, copy)
            found[copy.earlier, layer] = rows
    return found


def _fill(into: Times, instance: Instance, layer: int, kind: GroupKind, copy: Copy | None = None) -> None:
    for form in layouts_on(instance, layer, kind):
        into[:, form] = layer_parts(instance, layer, form, kind, copy)[:PARTS]


def _changes(tables: Tables) -> Times:
    """Return what changes of layout send; edges that are alike are asked once."""
    instance, forms = tables.instance, range(tables.inside.shape[2])
    found = np.zeros((PARTS, len(tables.kinds), len(instance.form_edges), len(forms), len(forms)), dtype=np.int64)
    for at, kind in enumerate(in_time(tables.kinds, tables.deadline)):
        known: dict[Hashable, Times] = {}
        for index, edge in enumerate(instance.form_edges if kind.inner is not None else ()):
            named = edge.consumer in instance.demands.recompute_layers
            key = (edge.size_bytes, instance.layers[edge.consumer].split, named)
            if key not in known:
                cells = [[change_parts(instance, edge, s, t, kind) for t in forms] for s in forms]
                known[key] = np.moveaxis(np.array(cells, dtype=np.int64), -1, 0)
            found[3:6, at, index] = known[key]
    return found
