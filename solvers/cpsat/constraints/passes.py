"""The passes of every slot in ns: what executed times are made of (``formulation.costs.passes``).

What layers take at least on the kind of a slot is a sum over its layers, linear in its two ends. What they take
beyond that, for their forms, changes of layout, copies of weights and blocks that are computed again, runs along
the layers as a clock does (``solvers.cpsat.constraints.clocks``), and counts for the slot that ends where it is
read. Slots that are not used have passes of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from formulation.costs.tables import Times
from formulation.problem.instance import FORBIDDEN
from formulation.problem.layers import Split
from formulation.problem.options import BoundaryCharge
from solvers.cpsat.base.by_form import price_by_form
from solvers.cpsat.base.conditional import Conditional
from solvers.cpsat.base.pass_prices import PassPrices, pass_prices
from solvers.cpsat.base.variables import Expression, Variables

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
            more.append(_change(v, prices.changes[column, :, index], index, most))
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


def _change(v: Variables, amounts: Times, index: int, most: int) -> Conditional:
    """Return the price of a change of layout in one column."""
    edge = v.tables.instance.form_edges[index]
    same, price = v.together(edge.source, edge.consumer), Conditional(v, f"change[{index}]", most)
    for (c, s), one in v.state[edge.source].items():
        for (d, t), other in v.state[edge.consumer].items():
            if d in v.priced(c):
                price.at_least(int(amounts[d, s, t]), [one, other, same])
    return price


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
