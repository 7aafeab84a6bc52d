"""The passes of every slot in ns: what executed times are made of (``formulation.costs.passes``).

What layers take at least on the kind of a slot is a sum over its layers, linear in its two ends. What they take
beyond that, for their forms, changes of layout, copies of weights and blocks that are computed again, runs along
the layers as a clock does (``solvers.cpsat.constraints.clocks``), and counts for the slot that ends where it is
read. Slots that are not used have passes of 0.

What layers take in each pass of a step, by kind and form: arrays for the declarative model.

The specification is ``formulation.costs.passes``, whose functions fill the cells. Where the passes of a stage add
up there are three *columns*: forward, backward with what is computed again, synchronisation. With
``StageTime.OVERLAP`` a pass takes the larger of what it computes and what it sends, so each of these is a column.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from ortools.sat.python import cp_model

from pipecut.formulation.costs.passes import change_parts, layer_parts
from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.groups import GroupKind, layouts_on
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.options import BoundaryCharge, StageTime
from pipecut.formulation.problem.precision import Copy
from pipecut.solvers.cpsat.variables import Conditional, Expression, Variables, price_by_form, price_of_change

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


Constraints = list[cp_model.Constraint]
BACKWARD = ("backward", "again")
"""Passes that one after the other make the backward pass of a stage."""


@dataclass(frozen=True, slots=True)
class SlotPasses:
    """Expressions in ns by slot: forward, backward with what is computed again, synchronisation of a step.

    ``activation`` and ``gradient`` are the transfers over the boundary before each slot, which are 0 where devices
    stand still while they fetch: then they are a part of the passes.
    """

    forward: Sequence[Expression]
    backward: Sequence[Expression]
    sync: Sequence[Expression]
    activation: Sequence[Expression]
    gradient: Sequence[Expression]


def slot_passes(v: Variables, most: int) -> tuple[SlotPasses, Constraints]:
    """Return the passes of all slots, none above ``most``, and the constraints that hold them up.

    Cost: O(slots x (kinds + links) x layers) terms.
    """
    prices, constraints = pass_prices(v.tables), Constraints()
    own = {name: _times(v, prices, name, most, constraints) for name in prices.passes}
    backward = [sum(row) for row in zip(*(own[name] for name in own if name in BACKWARD), strict=True)]
    sent = [_sent(v, k, most, constraints) for k in range(v.slots)]
    activation, gradient = [one for one, _ in sent], [one for _, one in sent]
    forward, nothing = own["forward"], [0] * v.slots
    if v.tables.instance.cost.boundary_charge is BoundaryCharge.LINK:
        return SlotPasses(forward, backward, own["sync"], activation, gradient), constraints
    forward = [one + fetched for one, fetched in zip(forward, activation, strict=True)]
    backward = [one + fetched for one, fetched in zip(backward, [0, *gradient], strict=False)]
    return SlotPasses(forward, backward, own["sync"], nothing, nothing), constraints


def _times(v: Variables, prices: PassPrices, name: str, most: int, constraints: Constraints) -> list[Expression]:
    """Return by slot a variable for a pass: at least each of the columns that it takes the largest of."""
    times = [v.model.new_int_var(0, most, f"{name}[{k}]") for k in range(v.slots)]
    for column in prices.passes[name]:
        least, beyond = prices.least[column], _beyond(v, prices, column, most, constraints)
        for k in range(v.slots):
            more = _at_end(v, beyond, k, most, constraints)
            constraints.append(v.model.add(times[k] >= _held(v, k, least.min(axis=0)) + more))
            for c, literal in enumerate(v.kind[k]):
                alone = v.model.add(times[k] >= _held(v, k, least[c]) + more)
                alone.only_enforce_if(literal)
                constraints.append(alone)
    return list(times)


def _held(v: Variables, k: int, amounts: Times) -> Expression:
    """Return the sum of amounts over the layers of a slot."""
    whole: Expression = 0
    for layer, amount in enumerate(amounts.tolist()):
        if amount:
            whole += amount * v.starts[k][layer]
            if k:
                whole -= amount * v.starts[k - 1][layer]
    return whole


def _beyond(
    v: Variables, prices: PassPrices, column: int, most: int, constraints: Constraints
) -> list[Expression]:
    """Return by layer what its stage takes up to it beyond the least; nothing where that is 0 everywhere."""
    own = [_own(v, prices, column, layer, most, constraints) for layer in range(v.layers)]
    if all(isinstance(one, int) and one == 0 for one in own):
        return []
    readings: list[Expression] = []
    for layer, more in enumerate(own):
        reading = v.model.new_int_var(0, most, f"beyond[{column},{layer}]")
        constraints.append(v.model.add(reading >= more))
        if readings:
            goes_on = v.model.add(reading >= readings[-1] + more)
            goes_on.only_enforce_if(~v.cut[layer])
            constraints.append(goes_on)
        readings.append(reading)
    return readings


def _own(
    v: Variables, prices: PassPrices, column: int, layer: int, most: int, constraints: Constraints
) -> Expression:
    """Return what one layer takes beyond its least: in its form, for changes of layout, and for its copies."""
    instance, part = v.tables.instance, prices.layers[column, :, layer]
    least, found, more = prices.least[column, :, layer], 0, list[Conditional]()
    beyond = _over_least(part, least)
    if instance.layers[layer].split is Split.FOLLOW:
        if beyond.any():
            more.append(price_by_form(v, f"form {column}", layer, beyond, most))
    else:
        terms = {literal: int(beyond[state]) for state, literal in v.state[layer].items() if beyond[state]}
        if terms:
            found = sum(amount * literal for literal, amount in terms.items())
    for index, edge in enumerate(instance.form_edges):
        if edge.consumer == layer and prices.changes[column, :, index].any():
            more.append(price_of_change(v, f"change[{index}]", index, prices.changes[column, :, index], most))
    for (user, own), copy in prices.copies.items():
        if own == layer and copy[column].any():
            more.append(price_by_form(v, f"copy {column}", layer, copy[column], most, ~v.together(user, layer)))
    for price in more:
        found += price.variable()
        constraints += price.constraints
    return found


def _over_least(part: Times, least: Times) -> Times:
    """Return what each form takes beyond the least, 0 for forms that there are not."""
    beyond = part - least[:, None]
    beyond[part >= FORBIDDEN] = 0
    return beyond


def _at_end(v: Variables, beyond: list[Expression], k: int, most: int, constraints: Constraints) -> Expression:
    """Return what is read of a clock where a slot ends."""
    if not beyond:
        return 0
    if k == 0:
        return beyond[-1]
    found = v.model.new_int_var(0, most, "")
    for layer in range(v.layers - 1):
        read = v.model.add(found >= beyond[layer])
        read.only_enforce_if([v.starts[k - 1][layer + 1], ~v.starts[k - 1][layer]])
        constraints.append(read)
    return found


def _sent(v: Variables, k: int, most: int, constraints: Constraints) -> tuple[Expression, Expression]:
    """Return the two transfers over the boundary before a slot: activations into it, gradients out of it."""
    if k + 1 >= v.slots:
        return 0, 0
    prices = Conditional(v, f"activation[{k}]", most), Conditional(v, f"gradient[{k}]", most)
    for x, joined in enumerate(v.join[k]):
        for layer in range(1, v.layers):
            begins: list[cp_model.LiteralT] = [v.starts[k][layer], ~v.starts[k][layer - 1], joined]
            for price, table in zip(prices, (v.tables.activation, v.tables.gradient), strict=True):
                price.at_least(int(table[x, layer]), begins)
    for price in prices:
        constraints += price.constraints
    return prices[0].variable(), prices[1].variable()
