"""Where a model may be cut into stages.

Today a model is a chain of layers in one order, so a *place* to cut is the number of the first layer after it, and
a stage holds the layers between two places. What programmes, tables and models need of it is said here, so that
they count places, not layers: between two neighbouring places lies an *atom*, which no stage separates.

A graph with branches has other orders, and a cut that is good in one may not exist in another. Atoms stay
together, so what can be ordered anew is atoms: every order of them with producers before consumers is one of
the layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.problem.constraints import Recompute
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.plan import Span


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

    def blocks(self, layers: Span) -> tuple[Span, ...]:
        """Return the layers of every atom that lies among these."""
        atoms = (Span(*ends) for ends in self.atoms())
        return tuple(one for one in atoms if layers.first <= one.first and one.stop <= layers.stop)

    def again(self, instance: Instance) -> tuple[tuple[bool, ...], ...]:
        """Return by atom whether it may be computed again by itself: no, no or yes, or yes as it has to be.

        Of an instance that names layers, only if all of its layers are named.
        """
        asked, named = instance.constraints.recompute, {*instance.demands.recompute_layers}
        ways = {Recompute.BLOCKS: (False, True), Recompute.EVERY_BLOCK: (True,)}.get(asked, (False,))
        return tuple(ways if not named or named.issuperset(range(*ends)) else (False,) for ends in self.atoms())

    def layers(self, atoms: Span) -> Span:
        """Return the layers of a run of atoms."""
        return Span(self.places[atoms.first], self.places[atoms.stop])

    def run(self, layers: Span) -> Span:
        """Return the run of atoms that holds these layers. Raises ValueError where they are cut at no place."""
        return Span(self.places.index(layers.first), self.places.index(layers.stop))

    @staticmethod
    def of(instance: Instance) -> CutSpace:
        """Return every place that the model, ``no_cut`` and ``together`` leave."""
        closed = set(instance.demands.no_cut)
        for layers in instance.demands.together:
            closed.update(range(layers[0] + 1, layers[-1] + 1))
        total = len(instance.layers)
        return CutSpace((0, *(cut for cut in range(1, total) if cut not in closed), total))


def single_blocks(instance: Instance, layers: Span, mode: Mode) -> tuple[Span, ...]:
    """Return the blocks that a stage in a mode may compute again by themselves, or has to."""
    if mode.recompute or not instance.constraints.recompute.by_blocks:
        return ()
    space = CutSpace.of(instance)
    ways = dict(zip(space.places, space.again(instance), strict=False))
    return tuple(one for one in space.blocks(layers) if True in ways[one.first])


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

    def atom_of(self) -> list[int]:
        """Return the atom of every layer."""
        return [at for at, (start, stop) in enumerate(itertools.pairwise(self.starts)) for _ in range(start, stop)]

    def keeps(self, order: Sequence[int]) -> bool:
        """Tell whether an order has every atom once, and none before one that it takes from."""
        place = {atom: at for at, atom in enumerate(order)}
        if len(order) != len(self) or set(place) != set(range(len(self))):
            return False
        return all(place[one] < place[atom] for atom in range(len(self)) for one in self.before[atom])

    def layers(self, order: Sequence[int]) -> tuple[int, ...]:
        """Return an order of atoms as one of layers."""
        return tuple(layer for atom in order for layer in range(self.starts[atom], self.starts[atom + 1]))

    def downsets(self, most: int) -> list[int]:
        """Return every set that holds with an atom all that it takes from, as bit masks, small sets first.

        Raises TooLargeError for more than ``most`` of them. Cost: sets x atoms.
        """
        needed = [sum(1 << one for one in row) for row in self.before]
        found, grown = [0], {0}
        while grown := {
            mine | 1 << atom
            for mine in grown
            for atom, others in enumerate(needed)
            if not mine >> atom & 1 and not others & ~mine
        }:
            found += sorted(grown)
            if len(found) > most:
                raise TooLargeError(f"a cut may leave more than {most} sets of layers behind it")
        return found

    @staticmethod
    def of(instance: Instance) -> AtomGraph:
        """Return the atoms of an instance. Cost: linear in layers and edges."""
        starts = CutSpace.of(instance).places
        alone = AtomGraph(starts, ((),) * (len(starts) - 1))
        atom_of = alone.atom_of()
        before: list[set[int]] = [set() for _ in alone.before]
        for edge in instance.edges:
            one, other = atom_of[edge.producer], atom_of[edge.consumer]
            if one != other:
                before[other].add(one)
        return AtomGraph(starts, tuple(tuple(sorted(row)) for row in before))


def chooses_order(instance: Instance) -> bool:
    """Tell whether the order of the layers is chosen: they are free to run in another one than the traced."""
    return instance.model.free_order and not AtomGraph.of(instance).in_one_order_only
