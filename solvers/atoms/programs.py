"""What an atom is, apart from where it lies: atoms with equal programs have the same best splits.

An *atom* is what lies between two neighbouring places to cut. Its program goes through its layers and names every
other layer by its position among the *live* ones: those whose form some later layer still looks at. That is the
consumer at the end of a form edge, or a FOLLOW layer, which lies as its source does; also one without weights, as
what it holds depends on how it lies. Layers that cost the same on every kind of group have one number, and so have
edges. So the blocks of a deep network have one program, and all that is found out about one holds for all.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from formulation.costs.memory_tables import MemoryTables
from formulation.costs.tables import Tables
from formulation.problem.cuts import CutSpace
from formulation.problem.instance import FormEdge
from formulation.problem.layers import Split

__all__: list[str] = []

OUTSIDE = 3
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

    ``layers[c]`` and ``edges[c]``: a layer, and a form edge, of these costs. ``widest``: how many layers are live
    at once at most.
    """

    all: tuple[AtomProgram, ...]
    of_atom: tuple[int, ...]
    layers: tuple[int, ...]
    edges: tuple[int, ...]
    widest: int


def programs(tables: Tables, held: MemoryTables | None, space: CutSpace) -> Programs:
    """Write the program of every atom of a cut space. Cost: linear in the cells of the tables."""
    layers, edges = _Numbers(), _Numbers()
    of_layer = [layers.number(_layer_costs(tables, held, at), at) for at in range(len(tables.instance.layers))]
    of_edge = [
        edges.number(np.ascontiguousarray(tables.between[:, at]).tobytes(), at)
        for at in range(len(tables.instance.form_edges))
    ]
    known: dict[AtomProgram, int] = {}
    steps, widths = [], [0]
    for step, width in _steps(tables, of_layer, of_edge):
        steps.append(step)
        widths.append(width)
    of_atom = tuple(
        known.setdefault(AtomProgram(widths[first], tuple(steps[first:stop])), len(known))
        for first, stop in space.atoms()
    )
    return Programs(tuple(known), of_atom, tuple(layers.first), tuple(edges.first), max(widths))


class _Numbers:
    """Numbers things by what they cost; ``first`` has one thing for each number."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}
        self.first: list[int] = []

    def number(self, costs: Hashable, at: int) -> int:
        if costs not in self._known:
            self._known[costs] = len(self.first)
            self.first.append(at)
        return self._known[costs]


def _layer_costs(tables: Tables, held: MemoryTables | None, at: int) -> Hashable:
    parts = [tables.compute[:, at], tables.inside[:, at]]
    if held is not None:
        rows = (held.once, held.by_version, held.by_micro_batch, held.working_set)
        parts += [part[:, at] for part in rows]
    row = tables.instance.layers[at]
    return (row.split, row.allowed_forms, *(np.ascontiguousarray(part).tobytes() for part in parts))


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


def layout_of(step: LayerStep, key: Key) -> int:
    """Return how a layer without a form of its own lies: as its source does, or by rows if that is outside."""
    return 0 if step.source is None or key[step.source] == OUTSIDE else key[step.source]
