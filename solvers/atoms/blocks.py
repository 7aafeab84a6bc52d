"""What blocks of a stage that are computed again let stay of tensors, as a stage grows atom by atom.

A tensor that blocks behind its own read has a *status* at every place that it crosses: whether its block is
computed again, and how much of it stays for the blocks so far; or that nothing more will stay, as a kept block
counts it, or its own block is in another stage. Most tensors are read by one block, on which alone it depends what
stays: these have no status. So chains that differ only by what was computed again are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

from pipecut.formulation.costs.bulk.lent import Reading
from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.layers import Split
from pipecut.solvers.atoms.programs import OUTSIDE, Key, last_looks

SETTLED = 0
"""The status of a tensor of which nothing more will stay."""


@dataclass(frozen=True, slots=True)
class LentRead:
    """What an atom reads of a tensor: ``status`` is its place among those before the atom (None: it has none).

    Its layer lies ``distance`` atoms before, is of this kind, and lies as the live layer at ``source`` does.
    ``last``: no later atom reads it.
    """

    status: int | None
    distance: int
    split: Split
    source: int | None
    again_bytes: int
    kept_bytes: int
    counts: bool
    last: bool


@dataclass(frozen=True, slots=True)
class LentStep:
    """What tensors an atom reads, and which of its own have a status behind it: whether the atom counts them."""

    reads: tuple[LentRead, ...]
    made: tuple[bool, ...]


class Lending:
    """The statuses of all tensors of an instance; ``steps`` are different ones, ``of_atom`` that of each atom.

    ``pending[p]`` is how many tensors have a status at place p. Nothing where stages do not choose blocks.
    """

    def __init__(self, tables: Tables, space: CutSpace) -> None:
        rows = list(Reading.all(tables.instance, space)) if tables.recomputing() else []
        self.steps: list[LentStep] = []
        self.of_atom: list[int] = []
        self.pending = [0]
        self.held = cache(partial(_held_of, tables))
        known, waiting = dict[LentStep, int](), list[int]()
        if not rows:
            self.steps, self.of_atom, self.pending = [LentStep((), ())], [0] * space.stops, [0] * len(space.places)
            return
        for atom in range(space.stops):
            step, waiting = _step(tables, space, rows, atom, waiting)
            self.pending.append(len(waiting))
            self.of_atom.append(known.setdefault(step, len(known)))
        self.steps += known

    def after(self, number: int, key: tuple[Key, Key], place: tuple[int, int], *, again: bool) -> tuple[int, Key]:
        """Return the bytes that stay more for each micro-batch with an atom, and the statuses behind it.

        ``key`` are the layouts of live layers and the statuses before it; ``place`` the number of atoms of the
        stage before it, and the kind.
        """
        (layouts, before), (atoms, kind) = key, place
        step, status, more = self.steps[number], list(before), 0
        for read in step.reads:
            size = read.again_bytes if again else 0
            form = 0 if read.source is None or layouts[read.source] == OUTSIDE else layouts[read.source]
            if read.status is None:
                more += self.held(read.split, size)[kind][form] if size and read.distance <= atoms else 0
                continue
            if (now := status[read.status]) == SETTLED:
                continue
            had, own = divmod(now - 1, 2)
            size = max(had, size if again else read.kept_bytes * own)
            more += self.held(read.split, size)[kind][form] - self.held(read.split, had)[kind][form]
            status[read.status] = SETTLED if read.counts and not again else 1 + own + 2 * size
        done = {read.status for read in step.reads if read.last}
        made = (SETTLED if counted and not again else 1 + again for counted in step.made)
        return more, (*(one for at, one in enumerate(status) if at not in done), *made)


def _held_of(tables: Tables, split: Split, size: int) -> list[list[int]]:
    """Return what a device has of the output of such a layer, by kind and form."""
    layers = tables.instance.layers
    at = next(at for at, layer in enumerate(layers) if layer.split is split)
    sizes = [size * (layer == at) for layer in range(len(layers))]
    return MemoryTables.outputs(tables, sizes)[:, at].tolist()


def _step(
    tables: Tables, space: CutSpace, rows: Sequence[Reading], atom: int, waiting: list[int]
) -> tuple[LentStep, list[int]]:
    """Return the step of an atom, and the layers whose tensors have a status behind it."""
    instance, first = tables.instance, space.places[atom]
    live = [
        layer
        for layer, last in enumerate(last_looks(tables)[:first])
        if last >= first and instance.layers[layer].split is not Split.FOLLOW
    ]
    ends = {row.producer: row.block for row in rows}
    reads: list[LentRead] = []
    for row in (one for one in rows if one.block == atom and one.own != atom):
        source = instance.sources[row.producer]
        reads.append(
            LentRead(
                waiting.index(row.producer) if row.producer in waiting else None,
                atom - row.own,
                instance.layers[row.producer].split,
                live.index(source) if source in live else None,
                row.again_bytes,
                row.kept_bytes,
                row.counts,
                ends[row.producer] == atom,
            )
        )
    made = [producer for producer in _with_status(rows) if space.places[atom] <= producer < space.places[atom + 1]]
    counted = {row.producer for row in rows if row.block == row.own}
    left = [layer for layer in waiting if ends[layer] > atom]
    return LentStep(tuple(reads), tuple(one in counted for one in made)), [*left, *made]


def _with_status(rows: Sequence[Reading]) -> list[int]:
    """Return the layers of whose output what stays depends on more than the choice of one block."""
    readers: dict[int, list[Reading]] = {}
    for row in rows:
        readers.setdefault(row.producer, []).append(row)
    return [
        producer
        for producer, row in readers.items()
        if row[-1].block != row[-1].own and (len(row) > 1 or row[0].kept_bytes)
    ]
