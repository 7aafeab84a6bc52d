"""Where a model may be cut into stages.

Today a model is a chain of layers in one order, so a *place* to cut is the number of the first layer after it, and
a stage holds the layers between two places. What programmes, tables and models need of it is said here, so that
they count places, not layers: between two neighbouring places lies an *atom*, which no stage separates.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from formulation.problem.instance import Instance
from formulation.problem.plan import Span

__all__ = ["CutSpace", "cut_space", "every_cut"]


@dataclass(frozen=True, slots=True)
class CutSpace:
    """The places where stages may begin and end, ascending: 0 first, the number of layers last.

    Raises ValueError for places that are not in this order.
    """

    places: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.places) < 2 or self.places[0] != 0 or any(a >= b for a, b in itertools.pairwise(self.places)):
            raise ValueError(f"places {self.places}, expected 0 and then rising numbers of layers")

    @property
    def stops(self) -> int:
        """The last place: the number of atoms."""
        return len(self.places) - 1

    def atoms(self) -> Iterator[tuple[int, int]]:
        """Yield the first layer of every atom and the one after its last."""
        return itertools.pairwise(self.places)

    def layers(self, atoms: Span) -> Span:
        """Return the layers of a run of atoms."""
        return Span(self.places[atoms.first], self.places[atoms.stop])


def cut_space(instance: Instance) -> CutSpace:
    """Return every place that the model, ``no_cut`` and ``together`` leave."""
    closed = set(instance.demands.no_cut)
    for layers in instance.demands.together:
        closed.update(range(layers[0] + 1, layers[-1] + 1))
    total = len(instance.layers)
    return CutSpace((0, *(cut for cut in range(1, total) if cut not in closed), total))


def every_cut(instance: Instance) -> CutSpace:
    """Return the space of a model that may be cut before every layer."""
    return CutSpace(tuple(range(len(instance.layers) + 1)))
