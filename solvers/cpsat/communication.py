"""What every layer adds to the communication of its stage, as linear expressions over states and edges."""

from __future__ import annotations

from ortools.sat.python import cp_model

from formulation.layers import Split
from solvers.cpsat.variables import Expression, Literal, Variables


def own_communication(v: Variables) -> tuple[list[Expression], list[cp_model.Constraint]]:
    """Return for each layer its communication in ns, and the constraints that hold these expressions up.

    A layer with a form of its own pays the time inside it; each form edge into it pays a variable that is at
    least the time of the layout change between the two forms chosen, unless a stage starts in between; a
    FOLLOW layer with weights pays for the form of the layer whose layout it has.
    """
    tables, instance = v.tables, v.tables.instance
    together = _Together(v)
    constraints: list[cp_model.Constraint] = []
    own: list[Expression] = [
        sum(int(tables.inside[c, layer, t]) * literal for (c, t), literal in v.state[layer].items())
        for layer in range(v.layers)
    ]
    for index, edge in enumerate(instance.form_edges):
        same = together.literal(edge.source, edge.consumer)
        price = _Price(v, f"edge[{index}]")
        for (c, s), one in v.state[edge.source].items():
            for (d, t), other in v.state[edge.consumer].items():
                if c == d:
                    price.at_least(int(tables.between[c, index, s, t]), [one, other, same])
        own[edge.consumer] += price.variable()
        constraints += price.constraints
    for layer, row in enumerate(instance.layers):
        if row.split is Split.FOLLOW and instance.parameter_bytes[layer]:
            price = _follower(v, together, layer)
            own[layer] += price.variable()
            constraints += price.constraints
    return own, constraints + together.constraints


def _follower(v: Variables, together: _Together, layer: int) -> _Price:
    """Price the weights of a layer that copies its layout; after a boundary they are summed as in form 0."""
    price = _Price(v, f"weights[{layer}]")
    source = v.tables.instance.sources[layer]
    alone: list[cp_model.LiteralT] = []
    if source is not None:
        same = together.literal(source, layer)
        alone = [~same]
        for (c, t), literal in v.state[source].items():
            price.at_least(int(v.tables.inside[c, layer, t]), [literal, same])
    for c, literal in enumerate(v.layer_kind[layer]):
        price.at_least(int(v.tables.inside[c, layer, 0]), [literal, *alone])
    return price


class _Price:
    """A variable that is at least each of several times under conditions; times above the threshold cannot be."""

    def __init__(self, v: Variables, name: str) -> None:
        self._v, self._name = v, name
        self._floors: list[tuple[int, list[cp_model.LiteralT]]] = []
        self.constraints: list[cp_model.Constraint] = []

    def at_least(self, time_ns: int, conditions: list[cp_model.LiteralT]) -> None:
        """Require ``time_ns`` when all conditions hold."""
        if time_ns > self._v.threshold_ns:
            self.constraints.append(self._v.model.add_bool_or([~condition for condition in conditions]))
        elif time_ns > 0:
            self._floors.append((time_ns, conditions))

    def variable(self) -> Expression:
        """Return the variable, or 0 if nothing is ever required."""
        if not self._floors:
            return 0
        paid = self._v.model.new_int_var(0, max(time for time, _ in self._floors), self._name)
        for time, conditions in self._floors:
            floor = self._v.model.add(paid >= time)
            floor.only_enforce_if(conditions)
            self.constraints.append(floor)
        return paid


class _Together:
    """Literals 'these two layers lie in one stage', made once for each pair that needs one."""

    def __init__(self, v: Variables) -> None:
        self._v = v
        self._known: dict[tuple[int, int], cp_model.LiteralT] = {}
        self.constraints: list[cp_model.Constraint] = []

    def literal(self, first: int, last: int) -> cp_model.LiteralT:
        """Return a literal that is true exactly if no stage starts after ``first`` up to ``last``."""
        if (first, last) not in self._known:
            self._known[first, last] = self._make(first, last)
        return self._known[first, last]

    def _make(self, first: int, last: int) -> cp_model.LiteralT:
        cuts: list[Literal] = [self._v.cut[i] for i in range(first + 1, last + 1)]
        if len(cuts) == 1:
            return ~cuts[0]
        model = self._v.model
        same = model.new_bool_var(f"together[{first},{last}]")
        self.constraints.append(model.add_bool_or([*cuts, same]))
        self.constraints += [model.add_implication(same, ~cut) for cut in cuts]
        return same
