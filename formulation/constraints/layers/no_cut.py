"""(12) ``no_cut``: no stage but the first starts at such a layer, or where the model has no place to cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit, Violation, count
from pipecut.formulation.problem.constraints import Key, Listed, Written

if TYPE_CHECKING:
    from pipecut.formulation.problem.constraints import Lookup
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan

PLACES = "model.cuts"
"""Where a scenario says at which layers its model may be cut."""


@dataclass(frozen=True, slots=True)
class NoCut(Constraint):
    """Globs of layers at which no stage starts."""

    number, rule, rank = 12, "no_cut", 120
    key = Key("no_cut", Listed(Written.GLOB), "layers at which no stage may start")

    no_cut: tuple[str, ...] = ()

    def resolve(self, look: Lookup) -> Mapping[str, Any]:
        """Return all these layers, and those that the model closes."""
        found = {one for at, row in enumerate(self.no_cut) for one in look.layers(f"no_cut[{at}]", row)}
        return {"no_cut": tuple(sorted({*found, *look.closed}))}

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """(12) No stage but the first starts at a layer where the user or the model lets nothing be cut."""
        of_model = set(instance.model.closed())
        for index, stage in enumerate(plan.stages):
            first = stage.span.first
            if index > 0 and first in instance.demands.no_cut:
                starts = f"stage {index} starts at layer {instance.layers[first].name}"
                message = (
                    f"model.cuts: {starts}, which is no place to cut; {_places_around(instance, first)}"
                    if first in of_model
                    else f"constraints.no_cut: {starts}, before which no cut is allowed"
                )
                yield Violation("no_cut", f"stage {index}", 1, 0, "cuts", message)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield each entry, and the places of the model, where it may not be cut everywhere."""
        for at, glob in enumerate(self.no_cut):
            words = f"no stage starts at a layer that matches '{glob}'"
            yield Limit(f"constraints.no_cut[{at}]", words, "no_cut", at)
        if instance.model.closed():
            places = count(len(instance.model.cuts or ()), "place")
            words = f"stages start at the {places} to cut of the model only, of {len(instance.layers) - 1} layers"
            yield Limit(PLACES, words, PLACES, remedy=lambda _: f"cut between any two layers: {PLACES}: operators")


def _places_around(instance: Instance, layer: int) -> str:
    """Name the places to cut before and behind a layer."""
    from pipecut.formulation.problem.cuts import CutSpace

    *_, before = (cut for cut in CutSpace.of(instance).places if cut < layer)
    behind = next(cut for cut in CutSpace.of(instance).places if cut > layer)
    names = [instance.layers[cut].name for cut in (before, behind) if 0 < cut < len(instance.layers)]
    return f"the nearest are {' and '.join(names)}" if names else "the model has none"
