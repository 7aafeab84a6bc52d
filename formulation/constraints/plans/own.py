"""(14) ``own``: constraints of a user's own, stated in Python; docs/constraints.md has a complete example."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit

if TYPE_CHECKING:
    from pipecut.formulation.constraints.constraint import Violation
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan


@dataclass(frozen=True, slots=True)
class Own:
    """A constraint of the user's own, in its two halves; docs/constraints.md has a complete example.

    ``check`` is the rule: it yields the violations of any plan, without a solver. ``post`` is the family: it gets
    the variables of the declarative model (``solvers.cpsat.variables.Variables``), adds its constraints to
    ``v.model`` and yields each with an index. Both must say the same: a plan that only one of them accepts
    ends a search with FalseClaimError, or is missed. Raises ValueError for a name that is no identifier.
    """

    name: str
    check: Callable[[Instance, Plan], Iterator[Violation]]
    post: Callable[[Any], Iterator[tuple[tuple[int, ...], Any]]]

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"own constraint {self.name!r}: expected a name of letters, digits and underscores")


@dataclass(frozen=True, slots=True)
class Owns(Constraint):
    """All of them, each with a name of its own."""

    number, rule, rank, demand = 14, "own", 160, False

    own: tuple[Own, ...] = ()

    def __post_init__(self) -> None:
        if len({own.name for own in self.own}) < len(self.own):
            raise ValueError("two own constraints have the same name")

    @property
    def rules(self) -> tuple[str, ...]:
        """Each is filed under its name."""
        return tuple(f"own:{one.name}" for one in self.own)

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """(14) What the user's rules find, each filed under its name."""
        for own, rule in zip(self.own, self.rules, strict=True):
            for violation in own.check(instance, plan):
                yield replace(violation, rule=rule)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield each."""
        for at, own in enumerate(self.own):
            yield Limit(f"constraints.own[{at}]", f"the user's own constraint {own.name}", "own", at)

    def tells_apart(self, one: int, other: int) -> bool:
        """Nobody knows which servers it names: no two count as alike."""
        return bool(self.own)
