"""(10) ``together``: one stage holds all of the layers, and so all layers between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit, Violation, named
from pipecut.formulation.problem.constraints import Key, Listed, Written

if TYPE_CHECKING:
    from pipecut.formulation.problem.constraints import Lookup
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan


@dataclass(frozen=True, slots=True)
class Together(Constraint):
    """Each entry is a set of globs whose layers share one stage."""

    number, rule, rank = 10, "together", 130
    key = Key("together", Listed(Listed(Written.GLOB, 1)), "each entry: globs whose layers share one stage")

    together: tuple[tuple[str, ...], ...] = ()

    def resolve(self, look: Lookup) -> Mapping[str, Any]:
        """Return the layers of each entry."""
        return {"together": tuple(look.layers(f"together[{at}]", *row) for at, row in enumerate(self.together))}

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """(10) Layers that belong together share a stage."""
        for at, layers in enumerate(instance.demands.together):
            holders = [
                index for index, stage in enumerate(plan.stages) if any(one in stage.span for one in layers)
            ]
            if len(holders) > 1:
                listed = ", ".join(map(str, holders))
                message = (
                    f"constraints.together[{at}]: its layers lie in {len(holders)} stages ({listed}), expected 1"
                )
                yield Violation("together", f"stage {holders[1]}", len(holders), 1, "stages", message)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield each entry."""
        for at, (globs, layers) in enumerate(zip(self.together, instance.demands.together, strict=True)):
            words = f"{named(instance, globs, layers)} in one stage"
            yield Limit(f"constraints.together[{at}]", words, "together", at)
