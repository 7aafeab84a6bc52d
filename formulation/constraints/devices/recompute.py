"""``recompute``: whether stages drop activations and compute them again. A part of rule 2 (``devices``).

Where a scenario lists layers, a stage may keep everything, compute these layers again, or all. With ``blocks``
it may also do so for some of its blocks, each by itself: what lies between two neighbouring places to cut. With
``every_block`` it has to for each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit, Violation
from pipecut.formulation.problem.constraints import NAMED, Goal, Key, Listed, Recompute, Written

if TYPE_CHECKING:
    from pipecut.formulation.problem.constraints import Lookup
    from pipecut.formulation.problem.groups import Group
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan


@dataclass(frozen=True, slots=True)
class Recomputation(Constraint):
    """Whether stages may, must or must not recompute their activations; ``recompute_layers`` may also do so alone.

    Where blocks do so by themselves, those whose layers are all named do, and no whole stage. Raises ValueError
    where layers are named and stages may not choose.
    """

    rule, rank, asked = "devices", 30, True
    key = Key(
        "recompute",
        (Recompute, Listed(Written.GLOB, 1)),
        "whether stages may drop activations and compute them again; blocks: also those of single blocks; a list"
        " of layers: all, none, or these; every_block: each of them, by itself",
        Recompute.NEVER,
    )

    recompute: Recompute = Recompute.NEVER
    recompute_layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.recompute_layers and self.recompute in (Recompute.NEVER, Recompute.ALWAYS):
            raise ValueError(
                f"recompute_layers names layers and recompute is '{self.recompute}', expected 'allowed': a stage"
                " may then compute these layers again, all, or none"
            )

    @classmethod
    def read(cls, found: Any, names: object) -> Mapping[str, Any]:  # noqa: ANN401
        """Return what is allowed, and the layers where some are listed."""
        listed = isinstance(found, list)
        layers = {"recompute_layers": tuple(found)} if listed else {}
        return {"recompute": Recompute.ALLOWED if listed else found, **layers}

    def resolve(self, look: Lookup) -> Mapping[str, Any]:
        """Return the indices of the layers."""
        named = look.layers("recompute", *self.recompute_layers)
        return {"recompute_layers": frozenset(named)} if named else {}

    @property
    def limits(self) -> bool:
        """Never is what solvers that do not know of it do."""
        return self.recompute in (Recompute.ALWAYS, Recompute.EVERY_BLOCK)

    def check_stage(self, instance: Instance, index: int, group: Group) -> Iterator[Violation]:
        """Yield a stage that does what is not allowed, or not what is asked for."""
        again = group.mode.recompute
        if again in self.recompute.of_stages(named=bool(self.recompute_layers)):
            return
        does = {NAMED: "recomputes named layers", True: "recomputes", False: "keeps all activations"}[again]
        message = f"stage {index} {does}, constraints.recompute is '{self.recompute}'"
        message += " and names none: list them there" * (again == NAMED)
        yield Violation("devices", f"stage {index}", int(bool(again)), int(not again), "", message)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield it where another choice could help."""
        if self._binds(instance):
            does = "recompute all activations" if self.limits else "keep all activations for the backward pass"
            yield Limit("constraints.recompute", f"stages {does}", "recompute", remedy=self._allow)

    def _binds(self, instance: Instance) -> bool:
        """Recomputing takes less memory, keeping activations less time."""
        judged = {limit.goal for limit in instance.constraints.at_most}
        if self.recompute is Recompute.NEVER:
            return instance.constraints.memory or Goal.MEMORY in judged
        return self.limits and bool(judged & {Goal.BOTTLENECK, Goal.ITERATION_TIME})

    def _allow(self, plan: Plan) -> str:
        gained = "keep their activations" if self.limits else "drop activations and compute them again"
        return f"set constraints.recompute to allowed: stages may then {gained}"

    def without(self, gone: Collection[tuple[str, int | str]], instance: Instance) -> Mapping[str, Any]:
        """Return that stages may choose."""
        return {"recompute": Recompute.ALLOWED} if ("recompute", 0) in gone else {}
