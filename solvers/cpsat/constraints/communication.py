"""What every layer adds to the communication of its stage, as linear expressions over states and edges."""

from __future__ import annotations

from ortools.sat.python import cp_model

from formulation.problem.layers import Split
from solvers.cpsat.base.by_form import price_by_form
from solvers.cpsat.base.conditional import Conditional
from solvers.cpsat.base.variables import Expression, Variables


def own_communication(v: Variables) -> tuple[list[Expression], list[cp_model.Constraint]]:
    """Return for each layer its communication in ns, and the constraints that hold these expressions up.

    A layer with a form of its own pays the time inside it; each form edge into it pays a variable that is at
    least the time of the layout change between the two forms chosen, unless a stage starts in between; a
    FOLLOW layer pays for the form of the layer whose layout it has, by its weights or by what it computes so.
    Copied weights cost where a stage starts behind the layer that has the same ones.
    """
    tables, instance = v.tables, v.tables.instance
    constraints: list[cp_model.Constraint] = []
    own: list[Expression] = [
        sum(int(tables.inside[c, layer, t]) * literal for (c, t), literal in v.state[layer].items())
        for layer in range(v.layers)
    ]
    for index, edge in enumerate(instance.form_edges):
        same = v.together(edge.source, edge.consumer)
        price = Conditional(v, f"edge[{index}]", v.threshold_ns)
        for (c, s), one in v.state[edge.source].items():
            for (d, t), other in v.state[edge.consumer].items():
                if d in v.priced(c):
                    price.at_least(int(tables.between[d, index, s, t]), [one, other, same])
        own[edge.consumer] += price.variable()
        constraints += price.constraints
    for layer, row in enumerate(instance.layers):
        if row.split is Split.FOLLOW and tables.moves(layer):
            price = price_by_form(v, "weights", layer, tables.inside[:, layer], v.threshold_ns)
            own[layer] += price.variable()
            constraints += price.constraints
    for (user, layer), copy in tables.copies.items():
        price = price_by_form(v, "copy", layer, copy, v.threshold_ns, ~v.together(user, layer))
        own[layer] += price.variable()
        constraints += price.constraints
    return own, constraints
