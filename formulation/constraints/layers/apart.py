"""(11) ``apart``: no stage holds layers of two of the globs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit, Violation, layers_of, named
from pipecut.formulation.problem.constraints import Key, Listed, Written

if TYPE_CHECKING:
    from pipecut.formulation.problem.constraints import Lookup
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan


@dataclass(frozen=True, slots=True)
class Apart(Constraint):
    """Each entry is a set of globs of which no two meet in a stage."""

    number, rule, rank = 11, "apart", 140
    key = Key(
        "apart",
        Listed(Listed(Written.GLOB, 2)),
        "each entry: globs of which no two have layers in the same stage",
    )

    apart: tuple[tuple[str, ...], ...] = ()

    def resolve(self, look: Lookup) -> Mapping[str, Any]:
        """Return the layers of each glob of each entry, no layer twice in an entry."""
        return {"apart": tuple(_sets(look, f"apart[{at}]", row) for at, row in enumerate(self.apart))}

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """(11) No stage holds layers of two sets that are to be apart."""
        for at, sets in enumerate(instance.demands.apart):
            for index, stage in enumerate(plan.stages):
                inside = [[layer for layer in layers if layer in stage.span] for layers in sets]
                met = [layers for layers in inside if layers]
                if len(met) > 1:
                    both = " with ".join(layers_of(instance, layers) for layers in met)
                    message = f"constraints.apart[{at}]: stage {index} holds {both}, which are to be apart"
                    yield Violation("apart", f"stage {index}", len(met), 1, "sets of layers", message)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield each entry."""
        for at, (globs, sets) in enumerate(zip(self.apart, instance.demands.apart, strict=True)):
            pairs = zip(globs, sets, strict=True)
            both = " with ".join(named(instance, [glob], layers) for glob, layers in pairs)
            yield Limit(f"constraints.apart[{at}]", f"never in one stage: {both}", "apart", at)


def _sets(look: Lookup, where: str, globs: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    sets = tuple(look.layers(where, glob) for glob in globs)
    seen: dict[int, str] = {}
    for glob, layers in zip(globs, sets, strict=True):
        both = [layer for layer in layers if layer in seen]
        if both:
            name = look.all_layers[both[0]].name
            look.wrong(
                where, f"layer {name} matches '{seen[both[0]]}' and '{glob}', and cannot be apart from itself"
            )
        seen.update((layer, glob) for layer in layers)
    return sets
