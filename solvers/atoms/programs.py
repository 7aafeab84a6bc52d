"""What an atom is, apart from where it lies: atoms with equal programs have the same best splits.

An *atom* is what lies between two neighbouring places to cut. Its program goes through its layers and names every
other layer by its position among the *live* ones: those whose form some later layer still looks at. That is the
consumer at the end of a form edge, or a FOLLOW layer, which lies as its source does; also one without weights, as
what it holds depends on how it lies. Layers that cost the same on every kind of group have one number, and so have
edges. So the blocks of a deep network have one program, and all that is found out about one holds for all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import EVERY_FORM, FormEdge, Split

Thing = TypeVar("Thing")
OUTSIDE = len(EVERY_FORM)
"""The layout of a live layer of an earlier stage: none of the forms, as a boundary delivers what is asked for."""
Key = tuple[int, ...]
"""The forms of the live layers, in their order; OUTSIDE for those of earlier stages."""


@dataclass(frozen=True, slots=True)
class LayerStep:
    """One layer of a program: ``cost`` is the number of its costs, ``forms`` are those that it may take.

    No forms: it lies as the live layer at ``source`` does (None: as one outside). ``edges`` are pairs (position of
    a live layer, number of the edge's costs); ``kept`` the positions, the layer's own last, still live after it.
    """

    cost: int
    forms: tuple[int, ...]
    source: int | None
    edges: tuple[tuple[int, int], ...]
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AtomProgram:
    """The layers of an atom, of which so many are live at its left end."""

    width: int
    steps: tuple[LayerStep, ...]


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of all atoms: ``of_atom[a]`` is the number of atom a's in ``all``.

    ``copying[a]`` are those of an atom that copies weights which stages from some atom on do not have: (that atom,
    number), ascending, each for the stages from there up to the next. ``layers[c]``: a layer of these costs, and
    whether it copies; ``edges[c]``: a form edge of these costs.
    """

    all: tuple[AtomProgram, ...]
    of_atom: tuple[int, ...]
    copying: Mapping[int, tuple[tuple[int, int], ...]]
    layers: tuple[tuple[int, bool], ...]
    edges: tuple[int, ...]

    def of(self, atom: int, start: int) -> int:
        """Return the number of an atom's program in a stage that starts at atom ``start``."""
        return self.behind(atom, sum(first <= start for first, _ in self.copying.get(atom, ())))

    def behind(self, atom: int, many: int) -> int:
        """Return that in a stage that starts behind so many of the places from which it copies weights."""
        return self.copying[atom][many - 1][1] if many else self.of_atom[atom]


def programs(tables: Tables, held: MemoryTables | None, space: CutSpace) -> Programs:
    """Write the program of every atom of a cut space. Cost: linear in the cells of the tables."""
    layers, edges = _Numbers[tuple[int, bool]](), _Numbers[int]()
    total = len(tables.instance.layers)
    of_layer = [layers.number(_layer_costs(tables, held, at), (at, False)) for at in range(total)]
    of_edge = [
        edges.number(np.ascontiguousarray(tables.between[:, at]).tobytes(), at)
        for at in range(len(tables.instance.form_edges))
    ]
    known: dict[AtomProgram, int] = {}
    steps, widths = [], [0]
    for step, width in _steps(tables, of_layer, of_edge):
        steps.append(step)
        widths.append(width)

    def number(first: int, rows: Sequence[LayerStep]) -> int:
        return known.setdefault(AtomProgram(widths[first], tuple(rows)), len(known))

    of_atom = tuple(number(first, steps[first:stop]) for first, stop in space.atoms())
    copying: dict[int, tuple[tuple[int, int], ...]] = {}
    for atom, (first, stop) in enumerate(space.atoms()):
        rows, found = steps[first:stop], list[tuple[int, int]]()
        for start, copied in copied_from(tables.instance, space, first, stop):
            for at in copied:
                cost = layers.number(_layer_costs(tables, held, at, copied=True), (at, True))
                rows[at - first] = replace(rows[at - first], cost=cost)
            found.append((start, number(first, rows)))
        if found:
            copying[atom] = tuple(found)
    return Programs(tuple(known), of_atom, copying, tuple(layers.first), tuple(edges.first))


def copied_from(instance: Instance, space: CutSpace, first: int, stop: int) -> list[tuple[int, list[int]]]:
    """Return which of some layers copy weights in stages from which atom on: (that atom, layers), ascending."""
    found: dict[int, list[int]] = {}
    for layer in range(first, stop):
        copy = instance.copies[layer]
        if copy is not None and copy.earlier < first:
            found.setdefault(bisect_right(space.places, copy.earlier), []).append(layer)
    return sorted(found.items())


class _Numbers(Generic[Thing]):
    """Numbers things by what they cost; ``first`` has one thing for each number."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}
        self.first: list[Thing] = []

    def number(self, costs: Hashable, at: Thing) -> int:
        if costs not in self._known:
            self._known[costs] = len(self.first)
            self.first.append(at)
        return self._known[costs]


def _layer_costs(tables: Tables, held: MemoryTables | None, at: int, *, copied: bool = False) -> Hashable:
    parts = [tables.compute[:, at], tables.inside[:, at], tables.each[:, at]]
    if held is not None:
        # In what forms a layer may lie depends on what it follows.
        rows = (held.once, held.by_version, held.by_micro_batch, held.working_set, held.possible)
        parts += [part[:, at] for part in rows]
    copy = tables.instance.copies[at]
    if copied and copy is not None:
        parts += [tables.copies[copy.earlier, at], tables.copies_each[copy.earlier, at]]
        if held is not None and held.copies:
            more = held.copies[copy.earlier, at]
            parts += [more.once, more.by_version, more.working_set]
    row = tables.instance.layers[at]
    return (row.split, row.allowed_forms, row.across, *(np.ascontiguousarray(part).tobytes() for part in parts))


def last_looks(tables: Tables) -> list[int]:
    """Return for every layer the last one that looks at its form, itself if there is none."""
    instance = tables.instance
    last = list(range(len(instance.layers)))
    for edge in instance.form_edges:
        last[edge.source] = max(last[edge.source], edge.consumer)
    for layer, source in enumerate(instance.sources):
        if source is not None:
            last[source] = max(last[source], layer)
    return last


def _steps(tables: Tables, of_layer: list[int], of_edge: list[int]) -> Iterator[tuple[LayerStep, int]]:
    """Yield the step of every layer, and how many layers are live after it."""
    instance, last = tables.instance, last_looks(tables)
    into: dict[int, list[tuple[int, FormEdge]]] = {}
    for index, edge in enumerate(instance.form_edges):
        into.setdefault(edge.consumer, []).append((index, edge))
    live: list[int] = []
    for at, row in enumerate(instance.layers):
        follows, source = row.split is Split.FOLLOW, instance.sources[at]
        around = live if follows else [*live, at]
        kept = tuple(place for place, one in enumerate(around) if last[one] > at)
        edges = () if follows else tuple((live.index(edge.source), of_edge[n]) for n, edge in into.get(at, []))
        yield (
            LayerStep(
                cost=of_layer[at],
                forms=() if follows else tuple(sorted(row.allowed_forms)),
                source=live.index(source) if follows and source in live else None,
                edges=edges,
                kept=kept,
            ),
            len(kept),
        )
        live = [around[place] for place in kept]
