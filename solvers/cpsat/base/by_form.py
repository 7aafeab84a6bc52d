"""What a layer costs by the kind of its group and the form that its layout has: ns or bytes."""

from __future__ import annotations

from ortools.sat.python import cp_model

from formulation.costs.tables import Times
from solvers.cpsat.base.conditional import Conditional
from solvers.cpsat.base.variables import Variables


def price_by_form(
    v: Variables, name: str, layer: int, part: Times, limit: int, *only: cp_model.LiteralT
) -> Conditional:
    """Return at least ``part[kind, form]`` of a layer where all literals ``only`` hold, and 0 elsewhere.

    A layer without a form of its own lies as its source does; where a stage starts between them, or it has no
    source, it lies as in form 0. Amounts above ``limit`` cannot be.
    """
    price = Conditional(v, f"{name}[{layer}]", limit)
    add_by_form(v, price, layer, part, *only)
    return price


def add_by_form(v: Variables, price: Conditional, layer: int, part: Times, *only: cp_model.LiteralT) -> None:
    """Let a price be at least what :func:`price_by_form` says."""
    source, alone = v.tables.instance.sources[layer], list(only)
    if source is not None:
        with_source = list(only)
        if source != layer:
            same = v.together(source, layer)
            with_source.append(same)
            alone.append(~same)
        for (c, t), literal in v.state[source].items():
            for own in v.priced(c):
                mine = [v.layer_kind[layer][own]] if v.again and source != layer else []
                if own == c or mine:
                    price.at_least(int(part[own, t]), [literal, *mine, *with_source])
    if source != layer:
        for c, literal in enumerate(v.layer_kind[layer]):
            price.at_least(int(part[c, 0]), [literal, *alone])
