"""``recompute``: whether stages drop activations and compute them again. A part of rule 2 (``devices``)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from formulation.constraints.keys import Key
from formulation.constraints.loosening import Limit
from formulation.constraints.violation import Violation
from formulation.problem.constraints import Constraint, Goal, Recompute

if TYPE_CHECKING:
    from formulation.problem.groups import Group
    from formulation.problem.instance import Instance
    from formulation.problem.plan import Plan

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class Recomputation(Constraint):
    """Whether stages may, must or must not recompute their activations."""

    rule, rank, asked = "devices", 30, True
    key = Key(
        "recompute", Recompute, "whether stages may drop activations and compute them again", Recompute.NEVER
    )

    recompute: Recompute = Recompute.NEVER

    @property
    def limits(self) -> bool:
        """Never is what solvers that do not know of it do."""
        return self.recompute is Recompute.ALWAYS

    def check_stage(self, instance: Instance, index: int, group: Group) -> Iterator[Violation]:
        """Yield a stage that does what is not allowed, or not what is asked for."""
        if self.recompute is (Recompute.NEVER if group.recompute else Recompute.ALWAYS):
            does = "recomputes" if group.recompute else "keeps all activations"
            message = f"stage {index} {does}, constraints.recompute is '{self.recompute}'"
            yield Violation(
                "devices", f"stage {index}", int(group.recompute), int(not group.recompute), "", message
            )

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield it where another choice could help."""
        if self._binds(instance):
            never = self.recompute is Recompute.NEVER
            words = (
                f"stages {'keep all activations for the backward pass' if never else 'recompute all activations'}"
            )
            yield Limit("constraints.recompute", words, "recompute", remedy=self._allow)

    def _binds(self, instance: Instance) -> bool:
        """Recomputing takes less memory, keeping activations less time."""
        judged = {limit.goal for limit in instance.constraints.at_most}
        if self.recompute is Recompute.NEVER:
            return instance.constraints.memory or Goal.MEMORY in judged
        return self.limits and bool(judged & {Goal.BOTTLENECK, Goal.ITERATION_TIME})

    def _allow(self, plan: Plan) -> str:
        never = self.recompute is Recompute.NEVER
        gained = "drop activations and compute them again" if never else "keep their activations"
        return f"set constraints.recompute to allowed: stages may then {gained}"

    def without(self, gone: Collection[tuple[str, int | str]], instance: Instance) -> Mapping[str, Any]:
        """Return that stages may choose."""
        return {"recompute": Recompute.ALLOWED} if ("recompute", 0) in gone else {}
