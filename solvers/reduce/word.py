"""A model as a word: its atoms by class, and a short model in which every class stands with its neighbours.

A transformer of eighty blocks is a word ``E B B ... B N H`` over a few classes of atoms. Two atoms are of one
class where all that a user wrote of their layers is the same but the names, and so are the edges that reach into
them and out of them, counted from where they lie. What an atom costs depends on nothing else, so it is priced in
the *short* model: the same word with repetitions cut down to as many as edges reach over. Nothing is assumed about
which atoms are alike: it is compared. A model that does not repeat itself is its own short model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from pipecut.formulation.constraints.layers.forms import FormLimit
from pipecut.formulation.costs.once import once
from pipecut.formulation.problem.constraints import Constraints
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import ALL_BUT_NAME, Instance
from pipecut.formulation.problem.layers import LayerGraph
from pipecut.solvers.atoms.programs import copied_from

PERIODS = 32
"""The longest run of atoms that is looked for again right behind itself."""


@dataclass(frozen=True, slots=True)
class Word:
    """The atoms of a model: ``of_atom[a]`` is the atom of the short model that atom ``a`` is like.

    ``whole`` is the instance that was read, ``short`` that of the short model, with all else as it was. ``apart``:
    devices hold several stages, so that atoms which follow each other here need not do so there.
    """

    whole: Instance
    space: CutSpace
    short: Instance
    of_atom: tuple[int, ...]
    apart: bool = False

    @property
    def blocks(self) -> list[int]:
        """Return the atoms of the short model between its ends that compute half as much as any there, or more."""
        inner = list(self.short_space.atoms())[1:-1]
        macs = [sum(self.short.layers[at].macs for at in range(*ends)) for ends in inner]
        return [at for at, many in enumerate(macs, 1) if 2 * many >= max(macs)]

    @property
    def short_space(self) -> CutSpace:
        """The places where the short model may be cut."""
        return CutSpace.of(self.short)

    @staticmethod
    @once()
    def of(instance: Instance) -> Word:
        """Read an instance as a word. Cost: linear in layers and edges, times PERIODS.

        The instance may pin no layer, keep none apart, and ask for nothing else that names layers but places to
        cut, forms, and layers that are computed again.
        """
        space = CutSpace.of(instance)
        classes, reach = _classes(instance, space)
        kept, of_atom = _shortened(classes, reach)
        if len(kept) < len(classes):
            short = _short(instance, space, kept)
            there = [[row for _, row in rows] for rows in copying(short)]
            # Layers with the same weights that stand apart may copy them from others there.
            if [[row for _, row in rows] for rows in copying(instance)] == [there[at] for at in of_atom]:
                return Word(instance, space, short, of_atom)
        return Word(instance, space, instance, tuple(range(len(classes))))


@once()
def copying(instance: Instance) -> list[list[tuple[int, list[int]]]]:
    """Return of every atom which of its layers copy weights in stages from which atom on, ascending."""
    space = CutSpace.of(instance)
    rows = ((first, copied_from(instance, space, first, stop)) for first, stop in space.atoms())
    return [[(start, [at - first for at in layers]) for start, layers in found] for first, found in rows]


def _classes(instance: Instance, space: CutSpace) -> tuple[list[int], int]:
    """Return the class of every atom, and over how many atoms edges reach at most."""
    atom_of = [at for at, (first, stop) in enumerate(space.atoms()) for _ in range(first, stop)]
    into, out = defaultdict[int, list[Hashable]](list), defaultdict[int, list[Hashable]](list)
    reach = 1
    for edge in instance.edges:
        apart, made = edge.consumer - edge.producer, instance.output_bytes[edge.producer]
        into[edge.consumer].append((apart, edge.size_bytes, made))
        out[edge.producer].append((apart, edge.size_bytes))
        reach = max(reach, atom_of[edge.consumer] - atom_of[edge.producer])
    tied = {layer: at for at, tie in enumerate(instance.model.ties) for layer in tie.layers}
    again, known = set(instance.demands.recompute_layers), dict[Hashable, int]()
    classes: list[int] = []
    for first, stop in space.atoms():
        rows = tuple(
            (
                ALL_BUT_NAME(instance.layers[at]),
                tuple(into[at]),
                tuple(out[at]),
                tied.get(at),
                at in again,
                instance.lent_bytes[at],
            )
            for at in range(first, stop)
        )
        classes.append(known.setdefault(rows, len(known)))
    return classes, reach


def _shortened(classes: Sequence[int], reach: int) -> tuple[list[int], tuple[int, ...]]:
    """Return the atoms that stay, and for every atom which of these it is like.

    Of a run that follows itself several times as many stay as edges reach over, and one more on each side.
    """
    kept: list[int] = []
    of_atom: list[int] = []
    at = 0
    while at < len(classes):
        period, times = _repeated(classes, at)
        most = 2 + -(-reach // period)
        stays = min(times, most) * period
        first = len(kept)
        kept += range(at, at + stays)
        # Behind what stays every atom is like the one of the last run that stays, in its place of the run.
        of_atom += range(first, first + stays)
        of_atom += (first + stays - period + one % period for one in range(times * period - stays))
        at += times * period
    return kept, tuple(of_atom)


def _repeated(classes: Sequence[int], at: int) -> tuple[int, int]:
    """Return the length of the run from here on that repeats itself furthest, and how often it stands."""
    best = 1, 1
    for period in range(1, min(PERIODS, (len(classes) - at) // 2) + 1):
        times = 1
        while classes[at + times * period : at + (times + 1) * period] == classes[at : at + period]:
            times += 1
        if times > 1 and times * period > best[0] * best[1]:
            best = period, times
    return best


def _short(instance: Instance, space: CutSpace, kept: Sequence[int]) -> Instance:
    """Return the instance of the model that has these atoms alone."""
    ends = list(space.atoms())
    layers = [at for atom in kept for at in range(*ends[atom])]
    place = {layer: at for at, layer in enumerate(layers)}
    model = instance.model
    edges = tuple((one, place[two], size) for one, two, size in _edges(model, kept, ends, place))
    names = [model.layers[at].name for at in layers]
    again = set(instance.demands.recompute_layers)
    limited = {at for matching, _ in instance.demands.forms for at in matching}
    starts = {ends[atom][0] for atom in kept}
    short = LayerGraph(
        model.name,
        tuple(replace(instance.layers[at], name=name) for at, name in zip(layers, names, strict=True)),
        edges,
        model.element_bytes,
        tuple(place[at] for at in layers if at in starts and place[at]),
        # The first of its layers is there, and one of every class.
        ties=tuple(
            replace(tie, layers=tuple(place[at] for at in tie.layers if at in place)) for tie in model.ties
        ),
    )
    asked: Constraints = replace(
        instance.constraints,
        no_cut=(),
        together=(),
        # Splits that are asked for would offer others again.
        forms=tuple(
            FormLimit(model.layers[at].name, instance.layers[at].allowed_forms) for at in layers if at in limited
        ),
        recompute_layers=tuple(model.layers[at].name for at in layers if at in again),
    )
    return replace(instance, model=short, constraints=asked)


def _edges(
    model: LayerGraph, kept: Sequence[int], ends: Sequence[tuple[int, int]], place: dict[int, int]
) -> Iterator[tuple[int, int, int]]:
    """Yield the edges of the short model: of each layer as far before it as in the whole one."""
    into = defaultdict[int, list[tuple[int, int]]](list)
    for producer, consumer, size in model.edges:
        into[consumer].append((producer, size))
    for atom in kept:
        for consumer in range(*ends[atom]):
            for producer, size in into[consumer]:
                yield place[consumer] - (consumer - producer), consumer, size
