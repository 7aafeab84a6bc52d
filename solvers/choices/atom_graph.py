"""What moves when layers are put into another order: runs of layers that no stage may separate.

A stage is a run of one order of the layers. A graph with branches has many orders, and a cut that is good in one
may not exist in another. Layers between two neighbouring places to cut stay together, so what is ordered is these
*atoms*, and every order of them in which producers come before consumers is an order of the layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from formulation.problem.cuts import cut_space
from formulation.problem.instance import Instance

__all__ = ["AtomGraph", "atom_graph"]


@dataclass(frozen=True, slots=True)
class AtomGraph:
    """Runs of layers in the order of an instance, and the atoms that each takes tensors from.

    ``starts`` are the first layers of the atoms and the number of layers; ``before[u]`` are the atoms whose
    tensors atom ``u`` reads, in ascending order.
    """

    starts: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        """Return the number of atoms."""
        return len(self.before)

    @property
    def in_one_order_only(self) -> bool:
        """Tell whether every atom waits for the one before it, so that there is nothing to choose."""
        return all(atom - 1 in self.before[atom] for atom in range(1, len(self)))

    def keeps(self, order: Sequence[int]) -> bool:
        """Tell whether an order has every atom once, and none before one that it takes from."""
        place = {atom: at for at, atom in enumerate(order)}
        if len(order) != len(self) or set(place) != set(range(len(self))):
            return False
        return all(place[one] < place[atom] for atom in range(len(self)) for one in self.before[atom])

    def layers(self, order: Sequence[int]) -> tuple[int, ...]:
        """Return an order of atoms as one of layers."""
        return tuple(layer for atom in order for layer in range(self.starts[atom], self.starts[atom + 1]))


def atom_graph(instance: Instance) -> AtomGraph:
    """Return the atoms of an instance. Cost: linear in layers and edges."""
    starts = cut_space(instance).places
    atom_of = [at for at, (start, stop) in enumerate(itertools.pairwise(starts)) for _ in range(start, stop)]
    before: list[set[int]] = [set() for _ in starts[1:]]
    for edge in instance.edges:
        one, other = atom_of[edge.producer], atom_of[edge.consumer]
        if one != other:
            before[other].add(one)
    return AtomGraph(starts, tuple(tuple(sorted(row)) for row in before))
