"""What every layer adds to the communication of its stage, as linear expressions over states and edges."""

from __future__ import annotations

from ortools.sat.python import cp_model

from formulation.problem.layers import Split
from solvers.cpsat.base.conditional import Conditional
from solvers.cpsat.base.variables import Expression, Variables

__all__: list[str] = []


def own_communication(v: Variables) -> tuple[list[Expression], list[cp_model.Constraint]]:
    """Return for each layer its communication in ns, and the constraints that hold these expressions up.

    A layer with a form of its own pays the time inside it; each form edge into it pays a variable that is at
    least the time of the layout change between the two forms chosen, unless a stage starts in between; a
    FOLLOW layer with weights pays for the form of the layer whose layout it has.
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
                if c == d:
                    price.at_least(int(tables.between[c, index, s, t]), [one, other, same])
        own[edge.consumer] += price.variable()
        constraints += price.constraints
    for layer, row in enumerate(instance.layers):
        if row.split is Split.FOLLOW and instance.gradient_bytes[layer]:
            price = _follower(v, layer)
            own[layer] += price.variable()
            constraints += price.constraints
    return own, constraints


def _follower(v: Variables, layer: int) -> Conditional:
    """Price the weights of a layer that copies its layout; after a boundary they are summed as in form 0."""
    price = Conditional(v, f"weights[{layer}]", v.threshold_ns)
    source = v.tables.instance.sources[layer]
    alone: list[cp_model.LiteralT] = []
    if source is not None:
        same = v.together(source, layer)
        alone = [~same]
        for (c, t), literal in v.state[source].items():
            price.at_least(int(v.tables.inside[c, layer, t]), [literal, same])
    for c, literal in enumerate(v.layer_kind[layer]):
        price.at_least(int(v.tables.inside[c, layer, 0]), [literal, *alone])
    return price
