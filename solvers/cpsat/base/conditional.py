"""Variables that are at least this much under these conditions: what forms cost, in ns or in bytes."""

from __future__ import annotations

from ortools.sat.python import cp_model

from solvers.cpsat.base.variables import Expression, Variables


class Conditional:
    """A variable that is at least each of several amounts under conditions; amounts above ``limit`` cannot be."""

    def __init__(self, v: Variables, name: str, limit: int) -> None:
        self._v, self._name, self._limit = v, name, limit
        self._floors: list[tuple[int, list[cp_model.LiteralT]]] = []
        self.constraints: list[cp_model.Constraint] = []

    def at_least(self, amount: int, conditions: list[cp_model.LiteralT]) -> None:
        """Require ``amount`` when all conditions hold."""
        if amount > self._limit:
            self.constraints.append(self._v.model.add_bool_or([~condition for condition in conditions]))
        elif amount > 0:
            self._floors.append((amount, conditions))

    def variable(self) -> Expression:
        """Return the variable, or 0 if nothing is ever required."""
        if not self._floors:
            return 0
        paid = self._v.model.new_int_var(0, max(amount for amount, _ in self._floors), self._name)
        for amount, conditions in self._floors:
            floor = self._v.model.add(paid >= amount)
            floor.only_enforce_if(conditions)
            self.constraints.append(floor)
        return paid
