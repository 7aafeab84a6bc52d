"""The atoms of a model as stages have them: what each takes and holds in given forms, by where its stage begins.

What an atom takes depends on its stage only by which of the layers that it looks at are in it: layouts are
changed, weights copied and tensors kept for blocks that are computed again, or not. Each case is a *piece*, and a
stage is a sum over pieces. They are priced in a short model, of which the whole one has many alike.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.bulk.lent import Reading
from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import build_tables
from pipecut.formulation.limits import Deadline
from pipecut.formulation.problem.constraints import Recompute
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import ALL_BUT_NAME, FORBIDDEN, Instance
from pipecut.formulation.problem.options import StageTime

Numbers = NDArray[np.int64]
Forms = tuple[int, ...]
"""Of all layers of a short model."""
Looks = tuple[tuple[int, ...], ...]
"""How far before an atom the layers are that its own lie as, that edges come from, and whose weights it copies.

0 for those that are in the atom, or are none.
"""


@dataclass(frozen=True, slots=True)
class ShortModel:
    """An instance, one of a model with every class of its atoms, and by atom the one there that it is like."""

    whole: Instance
    short: Instance
    of_atom: tuple[int, ...]

    @staticmethod
    def itself(instance: Instance) -> ShortModel:
        """Return a model that is its own short model."""
        return ShortModel(instance, instance, tuple(range(CutSpace.of(instance).stops)))


class Pieces:
    """The pieces of a model: of a class of atoms one for each reach of a stage before it that makes a difference.

    ``layers`` are (piece, layer, layer that it lies as or -1, whether it copies weights), ``edges`` (piece, edge),
    ``reads`` (piece, number of what it reads of another atom: ``read_of``), all of the short model. Grids compute
    an atom again if ``repeats`` says so of it: if it is named, or, where none is, if it stands more than once, or
    none does; ``several[p]`` says so of a piece.
    Cost: linear in layers and edges, and in pieces times the layers of an atom.
    """

    def __init__(self, model: ShortModel) -> None:
        self.model, self.ends = model, list(CutSpace.of(model.whole).atoms())
        self.own, short, whole = list(CutSpace.of(model.short).atoms()), model.short, model.whole
        self.layers, self.edges, self.several = list[list[int]](), list[list[int]](), list[bool]()
        self.reads = list[tuple[int, int]]()
        rows = [tuple(map(ALL_BUT_NAME, short.layers[a:b])) for a, b in self.own]
        times = Counter(rows)
        self.repeats = [len(times) == len(rows) or times[row] > 1 for row in rows]
        if short.demands.recompute_layers or short.constraints.recompute is Recompute.EVERY_BLOCK:
            self.repeats = [True in ways for ways in CutSpace.of(short).again(short)]
        readings = [*enumerate(read_of(short))]
        into = [[whole.form_edges[one].source for one in row] for row in _into(whole)]
        self._into = _into(short)
        self._first, self._far, self._rows = list[int](), list[list[int]](), dict[int, NDArray[np.intp]]()
        known: dict[tuple[int, Looks], int] = {}
        for (first, stop), atom in zip(self.ends, model.of_atom, strict=True):
            own = [(number, row) for number, row in readings if row.block == atom]
            looks = _looks(whole, first, stop, into)
            far = {one for row in looks for one in row if one}
            self._far.append(sorted(far | {self.own[atom][0] - row.producer for _, row in own}))
            if (atom, looks) not in known:
                known[atom, looks] = len(self.several)
                for limit in (0, *self._far[-1]):
                    self._write(atom, looks, limit, own)
            self._first.append(known[atom, looks])

    def _write(self, atom: int, looks: Looks, limit: int, readings: list[tuple[int, Reading]]) -> None:
        """Write down a piece: an atom in a stage that has so many layers before it."""
        short, piece, (first, stop) = self.model.short, len(self.several), self.own[atom]
        lies, edges, copies = looks
        for at, far, copied in zip(range(first, stop), lies, copies, strict=True):
            source = short.sources[at]
            self.layers.append([piece, at, -1 if far > limit or source is None else source, copied > limit])
        own = (number for at in range(first, stop) for number in self._into[at])
        self.edges += [[piece, number] for number, far in zip(own, edges, strict=True) if far <= limit]
        self.reads += [(piece, number) for number, row in readings if first - row.producer <= limit]
        self.several.append(self.repeats[atom])

    def of(self, first: int) -> NDArray[np.intp]:
        """Return the pieces of the atoms from one on, of a stage that begins there."""
        if first not in self._rows:
            begun = self.ends[first][0]
            rows = zip(self._first[first:], self._far[first:], self.ends[first:], strict=True)
            self._rows[first] = np.array([at + bisect_right(far, end[0] - begun) for at, far, end in rows])
        return self._rows[first]

    def least(self, amounts: Numbers) -> Numbers:
        """Return the least amounts of the pieces of every atom."""
        starts = sorted(set(self._first))
        return np.minimum.reduceat(amounts, starts)[np.searchsorted(starts, self._first)]


@dataclass(frozen=True, slots=True, eq=False)
class PieceCosts:
    """What pieces take and hold on one kind of group in one choice of forms, by piece.

    ``each`` and ``charged`` are times of a micro-batch without and with what is done once a step, ``sync`` what
    that is at least. ``once``, ``version`` and ``stash`` are bytes that a stage keeps once, for each version of
    its weights and for each micro-batch; ``work`` what it needs beside at once; ``received`` is for each
    micro-batch, by the atom where a stage begins. Nothing is held where memory is not limited.
    """

    each: Numbers
    charged: Numbers
    sync: Numbers
    once: Numbers
    version: Numbers
    stash: Numbers
    work: Numbers
    received: Numbers
    capacity: int


class PieceTables:
    """The prices of pieces on some kinds of groups, for one number of micro-batches: that of ``short``."""

    def __init__(self, pieces: Pieces, short: Instance, groups: tuple[Group, ...], deadline: Deadline) -> None:
        self.pieces, self.tables = pieces, build_tables(short, groups, deadline)
        self.held = MemoryTables.of(self.tables) if short.constraints.memory else None
        self.again = self.tables.recomputing()
        self.kinds: dict[Hashable, int] = {}
        self._layers = np.array(pieces.layers).T
        self._edges = np.array(pieces.edges, dtype=np.int64).reshape(-1, 2).T
        self._ends = np.array([[one.source, one.consumer] for one in short.form_edges], dtype=np.int64).reshape(
            -1, 2
        )
        # What stays of a tensor for one reader or another may be less than all that they need.
        atom_of = [at for at, (first, stop) in enumerate(pieces.own) for _ in range(first, stop)]
        rows, self._stays = read_of(short) if self.again else [], list[tuple[int, int, int]]()
        for piece, number in pieces.reads if self.again else ():
            at, kept = rows[number].producer, rows[number].kept_bytes
            size = rows[number].again_bytes if pieces.several[piece] else kept * pieces.repeats[atom_of[at]]
            self._stays.append((piece, at, size))
        sizes = [0] * len(short.layers)
        for _, at, size in self._stays:
            sizes[at] = max(sizes[at], size)
        self._lent = MemoryTables.outputs(self.tables, sizes)

    def costs(self, kind: int, forms: Forms, *, again: bool) -> PieceCosts:
        """Price the pieces on a kind; ``again``: atoms that stand more than once are computed again alone."""
        several, (piece, layer, source, copied) = np.array(self.pieces.several), self._layers
        lies = np.where(source < 0, 0, np.array(forms)[source])
        each, charged = self._times(kind, lies, forms)
        if again:
            there = self._times(self.again[kind], lies, forms)
            each, charged = np.where(several, there[0], each), np.where(several, there[1], charged)
        steps, number = self.tables.instance.training.micro_batches, len(several)
        # What is charged to micro-batches was rounded up: of a copied weight also what is sent of its gradients.
        rounded = np.bincount(np.repeat(piece, 1 + (copied != 0)), minlength=number)
        sync = np.maximum(0, steps * (charged - each) - (steps - 1) * rounded)
        if (held := self.held) is None:
            none, nowhere = np.zeros(number, dtype=np.int64), np.zeros(len(self.pieces.ends), dtype=np.int64)
            return PieceCosts(each, charged, sync, none, none, none, none, nowhere, 0)
        once, version, stash, work = self._bytes(held, kind, lies)
        if again:
            rerun = _summed((held.once[self.again[kind]] - held.once[kind])[layer, lies], piece, number)
            work, stash = np.where(several, work + rerun, work), np.where(several, 0, stash)
            for reader, at, size in self._stays:
                lie = self.tables.instance.sources[at]
                stash[reader] += self._lent[kind, at, 0 if lie is None else forms[lie]] * (size > 0)
        places = [self.pieces.own[atom][0] for atom in self.pieces.model.of_atom]
        received = held.received[kind][places]
        # That of the tables is no more than the short model can need.
        classes = self.tables.instance.device_classes
        capacity = min(classes[one].memory_bytes for one in self.tables.kinds[kind].classes)
        return PieceCosts(each, charged, sync, once, version, stash, work, received, capacity)

    def _bytes(self, held: MemoryTables, kind: int, lies: Numbers) -> tuple[Numbers, ...]:
        """Return what pieces hold once, for each version of weights and micro-batch, and need while they work."""
        number, (piece, layer, *_) = len(self.pieces.several), self._layers
        parts = (held.once, held.by_version, held.by_micro_batch)
        once, version, stash = (_summed(part[kind, layer, lies], piece, number) for part in parts)
        work = np.zeros(number, dtype=np.int64)
        np.maximum.at(work, piece, held.working_set[kind, layer, lies])
        for at, ends in self._copies() if held.copies else ():
            more = held.copies[ends]
            once[piece[at]] += more.once[kind, lies[at]]
            version[piece[at]] += more.by_version[kind, lies[at]]
            work[piece[at]] += more.working_set[kind, lies[at]]
        return once, version, stash, work

    def _times(self, kind: int, lies: Numbers, forms: Forms) -> list[Numbers]:
        """Return the times of pieces without and with what is done once a step; FORBIDDEN where there is no form.

        Where communication hides beside computing they are those of what takes longer in all, or a little less.
        """
        number, tables, (piece, layer, *_) = len(self.pieces.several), self.tables, self._layers
        computed = _summed(tables.compute[kind, layer], piece, number)
        own, edge = self._edges
        changes = tables.between[kind, edge, *np.array(forms)[self._ends[edge]].T]
        between, found = _summed(changes, own, number), list[Numbers]()
        for inside, copies in ((tables.each, tables.copies_each), (tables.inside, tables.copies)):
            sent = between + _summed(inside[kind, layer, lies], piece, number)
            for at, ends in self._copies() if copies else ():
                sent[piece[at]] += copies[ends][kind, lies[at]]
            overlap = tables.instance.cost.stage_time is StageTime.OVERLAP
            found.append(max(computed, sent, key=np.sum) if overlap else computed + sent)
        return [np.minimum(one, FORBIDDEN) for one in found]

    def _copies(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the places of layers that copy weights, and which ones: of the layer before, by the layer."""
        for at in np.flatnonzero(self._layers[3]):
            copy = self.tables.instance.copies[layer := int(self._layers[1, at])]
            if copy is not None:
                yield int(at), (copy.earlier, layer)


def read_of(instance: Instance) -> list[Reading]:
    """Return what atoms read of others, of an instance or of one that differs in its training alone."""
    return [row for row in Reading.all(instance, CutSpace.of(instance)) if row.block != row.own]


def _into(instance: Instance) -> list[list[int]]:
    """Return the numbers of the edges into every layer at which layouts meet."""
    found = [list[int]() for _ in instance.layers]
    for number, edge in enumerate(instance.form_edges):
        found[edge.consumer].append(number)
    return found


def _looks(whole: Instance, first: int, stop: int, into: list[list[int]]) -> Looks:
    """Return how far an atom looks back; beyond the model for a layer that lies as what comes from outside."""
    beyond = len(whole.layers) + 1
    lies = (whole.sources[at] for at in range(first, stop))
    copies = (whole.copies[at] for at in range(first, stop))
    return (
        tuple(beyond if one is None else max(0, first - one) for one in lies),
        tuple(max(0, first - one) for at in range(first, stop) for one in into[at]),
        tuple(0 if one is None else max(0, first - one.earlier) for one in copies),
    )


def _summed(amounts: Numbers, of: Numbers, number: int) -> Numbers:
    """Return the sums of amounts by the piece that each is of, cut off where a form is forbidden."""
    found = np.zeros(number, dtype=np.int64)
    np.add.at(found, of, np.minimum(amounts, FORBIDDEN))
    return found
