"""What every run of atoms takes as a stage, on groups of one kind: passes, synchronisation and memory.

Layers have one form here, so what a stage takes is a sum over its layers, and over the edges between them. Of a
FOLLOW layer the form is that of its source where this lies in the run; so are edges from before the run left out.
For every start the few layers of which that is so are counted anew, and all others are sums that are made once.
Layers that are alike, with edges that are alike, are priced once on each kind of groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs import times
from pipecut.formulation.costs.memory import MemoryParts, received_bytes
from pipecut.formulation.costs.passes import change_passes, layer_passes
from pipecut.formulation.limits import Deadline, in_time
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, GroupKind, forms_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FormEdge, Split
from pipecut.formulation.problem.units import Link
from pipecut.solvers.chunks.pass_chains import ChunkPath

Numbers = NDArray[np.int64]
FORWARD, BACKWARD, WEIGHT, SYNC, TOTAL = range(5)
"""Rows of :class:`Runs` that are times, the first four in the order in which paths have them; ``AtomRun``."""
WEIGHTS, GRADIENTS, OPTIMIZER, STASH, RECEIVED, WORKING, RECOMPUTED, OUTPUT_GRADIENTS = range(5, 13)
"""Rows that are bytes, in the order of ``MemoryParts``."""


@dataclass(frozen=True, slots=True)
class AtomRun:
    """A run of atoms as a stage: ``total_ns`` as the evaluator charges it, its passes, its memory.

    ``backward_ns`` has what is computed again, and of backward passes in halves the first; ``weight_ns`` is the
    second. ``parts`` are those of one micro-batch and one version.
    """

    total_ns: int
    forward_ns: int
    backward_ns: int
    weight_ns: int
    sync_ns: int
    parts: MemoryParts

    @property
    def passes_ns(self) -> int:
        """All passes of a micro-batch."""
        return self.forward_ns + self.backward_ns + self.weight_ns


class Runs(Mapping[tuple[int, int], AtomRun]):
    """Runs by the place where each begins and that where it ends.

    ``table[row, i, j]`` is a number of the run from place i to place j, where ``there[i, j]``.
    """

    def __init__(self, table: Numbers, there: NDArray[np.bool_]) -> None:
        self.table, self.there = table, there

    def __getitem__(self, ends: tuple[int, int]) -> AtomRun:
        """Return one run. Raises KeyError where there is none."""
        if not (0 <= ends[0] < ends[1] < len(self.there) and self.there[ends]):
            raise KeyError(ends)
        forward, backward, weight, sync, total, *parts = self.table[:, ends[0], ends[1]].tolist()
        return AtomRun(total, forward, backward, weight, sync, MemoryParts(*parts))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((start, stop) for start, stop in np.argwhere(self.there).tolist())

    def __len__(self) -> int:
        return int(self.there.sum())


def forms_of(instance: Instance, group: Group | GroupKind) -> tuple[int, ...]:
    """Return the one form of every layer on groups of this size and mode."""
    return tuple(0 if row.split is Split.FOLLOW else forms_on(row, group)[0] for row in instance.layers)


@dataclass(slots=True)
class KnownRuns:
    """Runs on all kinds of groups that were asked for, and transfers over all links, each worked out once.

    ``into[l]`` are the edges of a layer, and ``reaches[a]`` is the first layer on whose place in the stage it
    depends how layers of atom a lie, or what their edges take.
    ``by_stages`` are the paths of any step of so many stages, and as often as they go through everything.
    """

    instance: Instance
    space: CutSpace
    into: tuple[tuple[FormEdge, ...], ...] = ()
    reaches: tuple[int, ...] = ()
    by_kind: dict[GroupKind, Runs] = field(default_factory=dict)
    by_share: dict[Fraction, list[int]] = field(default_factory=dict)
    by_link: dict[Link | None, tuple[list[int], list[int]]] = field(default_factory=dict)
    by_stages: dict[int, tuple[tuple[ChunkPath, ...], Numbers]] = field(default_factory=dict)

    @staticmethod
    def of(instance: Instance) -> KnownRuns:
        """Return what nothing is known of yet."""
        into: dict[int, list[FormEdge]] = defaultdict(list)
        for edge in instance.form_edges:
            into[edge.consumer].append(edge)
        layers, space = range(len(instance.layers)), CutSpace.of(instance)
        reaches = [min(_sources(instance, into[at], at)) for at in layers]
        return KnownRuns(
            instance,
            space,
            tuple(tuple(into[at]) for at in layers),
            tuple(min(reaches[begin:end]) for begin, end in space.atoms()),
        )

    def over(self, link: Link | None) -> tuple[list[int], list[int]]:
        """Return the times of the activations and of the gradients over a link, at every place."""
        if link not in self.by_link:
            places = self.space.places[:-1]
            self.by_link[link] = (
                [times.activation_ns(self.instance, cut, link) for cut in places],
                [times.gradient_ns(self.instance, cut, link) for cut in places],
            )
        return self.by_link[link]

    def on(self, kind: GroupKind, most_ns: int, deadline: Deadline) -> Runs:
        """Return every run of which the passes take at most so long on groups of this kind, or some more.

        A run that takes longer is too long with more atoms as well: nothing of a layer takes less than no time.
        Raises StoppedError after the deadline. Cost: linear in the places times the layers that each start
        changes, and quadratic in places.
        """
        if kind not in self.by_kind:
            self.by_kind[kind] = self._made(kind, most_ns, deadline)
        return self.by_kind[kind]

    def _made(self, kind: GroupKind, most_ns: int, deadline: Deadline) -> Runs:
        rows = _Rows(self, kind, forms_of(self.instance, kind), {})
        stops = self.space.stops
        columns = [rows.of(layer, 0) for layer in in_time(range(len(self.into)), deadline)]
        table, received = np.zeros((13, stops + 1, stops + 1), dtype=np.int64), self._received(kind)
        whole = np.array([_together(columns[begin:end]) for begin, end in self.space.atoms()], dtype=np.int64).T
        for start, first in enumerate(in_time(self.space.places[:-1], deadline)):
            own = whole[:, start:].copy()
            for atom in (one for one in range(start, stops) if self.reaches[one] < first):
                begin, end = self.space.places[atom], self.space.places[atom + 1]
                own[:, atom - start] = _together([rows.of(layer, first) for layer in range(begin, end)])
            own[RECEIVED, 0] += received[start]
            summed = np.cumsum(own, axis=1)
            summed[WORKING] = np.maximum.accumulate(own[WORKING])
            table[:, start, start + 1 :] = summed
        there = np.minimum(table[TOTAL], table[FORWARD] + table[BACKWARD] + table[WEIGHT]) <= most_ns
        return Runs(table, np.triu(there, 1))

    def _received(self, kind: GroupKind) -> list[int]:
        """Return by place what a device keeps of what one micro-batch brought a stage that begins there."""
        share = kind.shares.rows.device
        if share not in self.by_share:
            places = self.space.places[:-1]
            self.by_share[share] = [received_bytes(self.instance, kind, first) for first in places]
        return self.by_share[share]


def _sources(instance: Instance, into: list[FormEdge], layer: int) -> Iterator[int]:
    """Yield the layer itself, and those whose place in the stage decides what it takes."""
    yield layer
    source = instance.sources[layer]
    if source is not None:
        yield source
    yield from (edge.source for edge in into)


def _together(columns: list[tuple[int, ...]]) -> list[int]:
    """Return what layers take together: of working sets the largest, of all else the sum."""
    rows = list(zip(*columns, strict=True))
    return [max(row) if at == WORKING else sum(row) for at, row in enumerate(rows)]


@dataclass(frozen=True, slots=True)
class _Rows:
    """What layers with the edges before them take on groups of one kind, each found once for all alike."""

    known: KnownRuns
    kind: GroupKind
    forms: tuple[int, ...]
    rows: dict[Hashable, tuple[int, ...]]

    def of(self, layer: int, first: int) -> tuple[int, ...]:
        """Return all rows of a layer in a stage that starts at layer ``first``, in the order of :class:`Runs`."""
        source = self.known.instance.sources[layer]
        form = 0 if source is None or source < first else self.forms[source]
        edges = [edge for edge in self.known.into[layer] if edge.source >= first]
        key = (
            self.known.instance.alike[layer],
            form,
            *((edge.size_bytes, self.forms[edge.source]) for edge in edges),
        )
        if key not in self.rows:
            self.rows[key] = self._made(layer, form, edges)
        return self.rows[key]

    def _made(self, layer: int, form: int, edges: list[FormEdge]) -> tuple[int, ...]:
        instance, kind = self.known.instance, self.kind
        total = times.compute_ns(instance, layer, form, kind) + times.inside_ns(instance, layer, form, kind)
        forward, backward, sync, weight = layer_passes(instance, layer, form, kind)
        for edge in edges:
            source = self.forms[edge.source]
            changed = change_passes(instance, edge, source, form, kind)
            total += times.between_ns(instance, edge, source, form, kind)
            forward, backward = forward + changed[0], backward + changed[1]
        parts = MemoryParts.of_layer(instance, kind, layer, form, None)
        return forward, backward - weight, weight, sync, total, *astuple(parts)
