"""A constraint: what a user may ask of plans, with its rule on an instance and how it is loosened."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from formulation.problem.constraints import Constraints, Demands, Requirement, kinds

if TYPE_CHECKING:
    from formulation.constraints.loosening import Limit
    from formulation.constraints.violation import Violation
    from formulation.problem.groups import Group
    from formulation.problem.instance import Instance
    from formulation.problem.plan import Plan


class Constraint(Requirement):
    """A requirement that can be held against plans of an instance. Each is one file of a folder beside this."""

    __slots__ = ()

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """Yield what a plan breaks: the rule. ``self`` is resolved on the instance."""
        yield from ()

    def check_stage(self, instance: Instance, index: int, group: Group) -> Iterator[Violation]:
        """Yield what the devices of one stage break, as a part of rule 2 (``devices``)."""
        yield from ()

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield its limits one by one, with how each can be loosened."""
        yield from ()

    def without(self, gone: Collection[tuple[str, int | str]], instance: Instance) -> Mapping[str, Any]:
        """Return the fields that change where limits, each (field, entry), are left out.

        By default a tuple keeps its other entries, and anything else asks for nothing.
        """
        new: dict[str, Any] = {}
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            if isinstance(value, tuple):
                new[one.name] = tuple(entry for at, entry in enumerate(value) if (one.name, at) not in gone)
            elif (one.name, 0) in gone:
                new[one.name] = one.default
        return new


def of_plans(stated: Constraints | Demands) -> tuple[Constraint, ...]:
    """Return the value of every constraint there is."""
    return tuple(one for one in stated.values if isinstance(one, Constraint))


def every_constraint() -> tuple[type[Constraint], ...]:
    """Return every constraint there is, by number and rule."""
    return tuple(kind for kind in kinds() if issubclass(kind, Constraint))
