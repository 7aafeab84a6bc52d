"""From cells back to plans: forms of the layers of a stage with a least weighted sum, and what they take and hold.

A *label* is one way to run a stage: its forms, which of its atoms are computed again, and what that takes. For
given weights the forms of least sum are found by going back through the choices that were made when layers were
eliminated (``solvers.reduce.sums``). As all blocks of one class cost the same, each pair of layouts at their ends
is gone through once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipecut.solvers.atoms.programs import OUTSIDE
from pipecut.solvers.reduce.cells import AtomGrowth, Cells
from pipecut.solvers.reduce.sums import (
    NO_SUM,
    AtomForms,
    ByteWeights,
    Choice,
    Factor,
    LayerSums,
    Numbers,
    eliminated,
)


@dataclass(frozen=True, slots=True)
class Amounts:
    """What a stage, or a part of it, takes in ns for a micro-batch, and holds in bytes.

    ``time`` is with what is done once a step charged to micro-batches, ``each`` without. ``once`` is held once,
    ``stash`` for every micro-batch in flight, ``working`` while one layer works.
    """

    time: int = 0
    each: int = 0
    once: int = 0
    stash: int = 0
    working: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            self.time + other.time,
            self.each + other.each,
            self.once + other.once,
            self.stash + other.stash,
            max(self.working, other.working),
        )

    def held(self, in_flight: int) -> int:
        """Return the bytes on a device beside what it received."""
        return self.once + in_flight * self.stash + self.working


@dataclass(frozen=True, slots=True)
class StageLabel:
    """A way to run a stage: the forms of its layers, the atoms that are computed again, and what it takes.

    ``again`` counts atoms from the first of the stage on: a label is that of all stages which are alike.
    """

    kind: int
    forms: tuple[int, ...]
    again: tuple[int, ...]
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class AtomLabel:
    """A way to run an atom between layouts of what is live at its ends; ``again``: computed again by itself.

    ``amounts`` are without what stays of the tensors that it reads.
    """

    atom: int
    left: tuple[int, ...]
    right: tuple[int, ...]
    again: bool
    forms: tuple[int, ...]
    amounts: Amounts


@dataclass(slots=True)
class _Traced:
    """An atom kept, or computed again, with what was chosen when its layers were eliminated."""

    atom: AtomForms
    factor: Factor
    trace: list[Choice]
    table: Numbers
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], AtomLabel] = field(default_factory=dict)


@dataclass(slots=True)
class StageLabels:
    """The labels of least sum for one kind of group and one row of weights."""

    cells: Cells
    kind: int
    growth: AtomGrowth
    _atoms: dict[tuple[int, int, bool], _Traced] = field(default_factory=dict)
    _paths: dict[tuple[int, int], list[AtomLabel] | None] = field(default_factory=dict)
    _tables: dict[tuple[int, int], tuple[Numbers, tuple[int, ...]]] = field(default_factory=dict)

    @staticmethod
    def of(cells: Cells, kind: int, weights: ByteWeights) -> StageLabels:
        """Return the labels of a kind for weights in one row."""
        growth = cells.growth
        sums = LayerSums(growth.sums.tables, growth.sums.held, weights, growth.sums.programs, growth.sums.alike)
        return StageLabels(cells, kind, AtomGrowth(sums, growth.nodes, growth.lending, growth.word))

    def label(self, first: int, stop: int) -> StageLabel | None:
        """Return the label of the stage of these atoms; None where it has no forms."""
        path = self.path(first, stop)
        return None if path is None else self.of_path(path)

    def path(self, first: int, stop: int) -> list[AtomLabel] | None:
        """Return the labels of the atoms of a stage with the least sum; None where it has no forms."""
        if (first, stop) not in self._paths:
            self._paths[first, stop] = self._path(first, stop)
        return self._paths[first, stop]

    def _path(self, first: int, stop: int) -> list[AtomLabel] | None:
        nodes = self.way(first, stop)
        state, joined = self._outside(nodes[0]), list[Numbers]()
        for node in nodes:
            state, both = self._step(state, node)
            joined.append(both)
        if int(state.min()) >= NO_SUM:
            return None
        right: tuple[int, ...] = tuple(int(one) for one in np.unravel_index(state.argmin(), state.shape))
        rows: list[AtomLabel] = []
        for at in range(len(nodes) - 1, -1, -1):
            left, again = self._back(joined[at], nodes[at], right)
            rows.append(self._atom(nodes[at], left, right, again=again))
            right = left
        rows.reverse()
        return rows

    def of_path(self, path: Sequence[AtomLabel]) -> StageLabel:
        """Return the label of a stage that is made of these labels of its atoms."""
        again = tuple(at for at, row in enumerate(path) if row.again)
        amounts = sum((row.amounts for row in path), Amounts(stash=self._stays(path)))
        return StageLabel(self.kind, tuple(form for row in path for form in row.forms), again, amounts)

    def _stays(self, path: Sequence[AtomLabel]) -> int:
        """Return what stays of tensors for every micro-batch, as atoms that read them are computed again."""
        growth, total = self.growth, 0
        statuses = growth.outside(path[0].atom)
        for at, row in enumerate(path):
            layouts = tuple(growth.sums.ends[number] for number in row.left)
            number = growth.lending.of_atom[row.atom]
            more, statuses = growth.lending.after(number, (layouts, statuses), (at, self.kind), again=row.again)
            total += more
        return total

    def mixed(
        self, path: Sequence[AtomLabel], other: Sequence[AtomLabel], many: int, first: int, stop: int
    ) -> StageLabel:
        """Return the label that has so many first atoms as ``path`` has them, and the rest as ``other``.

        Where layouts do not meet the atom between them is chosen anew.
        """
        rows = [*path[:many], *other[many:]]
        if 0 < many < len(rows) and path[many - 1].right != other[many].left:
            node = self.way(first, stop)[many]
            ends = path[many - 1].right, other[many].right
            tables = [self._traced(node, again=again).table[(*ends[0], *ends[1])] for again in self._choices()]
            rows[many] = self._atom(node, *ends, again=bool(np.argmin(tables)))
        return self.of_path(rows)

    def way(self, first: int, stop: int) -> list[int]:
        """Return the nodes of the stages from an atom on, up to the one of these atoms."""
        return [int(self.cells.nodes.at[first, at]) for at in range(first + 1, stop + 1)]

    def rests(self, first: int, stop: int) -> list[Numbers]:
        """Return what atoms from each place of a stage on weigh at least, by the layouts of what is live there."""
        nodes = self.way(first, stop)
        _, live = self._least(nodes[-1])
        found = [np.zeros((len(self.growth.sums.ends),) * len(live), dtype=np.int64)]
        for node in reversed(nodes):
            table, live = self._least(node)
            width = table.ndim - len(live)
            sums = np.minimum(table + found[-1].reshape((*(1,) * width, *found[-1].shape)), NO_SUM)
            found.append(sums.min(axis=tuple(range(width, table.ndim))) if live else sums)
        return found[::-1]

    def _outside(self, node: int) -> Numbers:
        width = self.growth.sums.programs.all[self.growth.nodes.program[node]].width
        found = np.full((len(self.growth.sums.ends),) * width, NO_SUM, dtype=np.int64)
        found[(-1,) * width] = 0
        return found

    def _step(self, before: Numbers, node: int) -> tuple[Numbers, Numbers]:
        """Return the least sums by what is live behind an atom, and ``[left ..., right ...]`` behind them."""
        factor, live = self._least(node)
        width = before.ndim
        joined = np.minimum(before.reshape((*before.shape, *(1,) * len(live))) + factor, NO_SUM)
        return joined.min(axis=tuple(range(width))) if width else joined, joined

    def _least(self, node: int) -> tuple[Numbers, tuple[int, ...]]:
        """Return ``[left ..., right ...]`` of an atom, kept or again as is less, and what is live behind it."""
        key = self.growth.nodes.program[node], self.growth.lending.of_atom[self.growth.nodes.atom[node]]
        if key not in self._tables:
            found = [self._traced(node, again=again) for again in self._choices()]
            self._tables[key] = np.minimum.reduce([one.table for one in found]), tuple(found[0].atom.live)
        return self._tables[key]

    def _choices(self) -> tuple[bool, ...]:
        held = self.growth.sums.held
        return (False, True) if held is not None and self.kind in held.recomputing else (False,)

    def _table(self, atom: AtomForms, found: Factor, width: int) -> Numbers:
        """Return ``[left ..., right ...]``; a layer that is live at both ends lies in one way alone."""
        ends = len(self.growth.sums.ends)
        table = np.full((ends,) * (width + len(atom.live)), NO_SUM, dtype=np.int64)
        for place in np.ndindex(*found.sums.shape[:-2]):
            of = dict(zip(found.over, place, strict=True))
            key = (*(of[one] for one in range(width)), *(of[one] for one in atom.live))
            table[key] = found.sums[(*place, 0, 0)]
        return table

    def _traced(self, node: int, *, again: bool) -> _Traced:
        nodes, growth = self.growth.nodes, self.growth
        key = nodes.program[node], growth.lending.of_atom[nodes.atom[node]], again
        if key not in self._atoms:
            program, kinds = growth.sums.programs.all[key[0]], np.array([self.kind])
            held = growth.sums.held
            priced = np.array([held.recomputing[self.kind]]) if again and held is not None else None
            more = growth.stays(key[1], kinds) if again else None
            atom, trace = AtomForms.of(growth.sums, program, kinds, priced, more), list[Choice]()
            found = eliminated(atom.factors, {*range(program.width), *atom.live}, trace)
            found = atom.folded(found, program.width)
            self._atoms[key] = _Traced(atom, found, trace, self._table(atom, found, program.width))
        return self._atoms[key]

    def _back(self, joined: Numbers, node: int, right: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
        """Return the layouts at the left end that lead to those at the right end, and whether it is done again."""
        rows = joined[(..., *right)] if right else joined
        left = tuple(int(one) for one in np.unravel_index(rows.argmin(), rows.shape))
        tables = [self._traced(node, again=again).table[(*left, *right)] for again in self._choices()]
        return left, bool(np.argmin(tables))

    def _atom(self, node: int, left: tuple[int, ...], right: tuple[int, ...], *, again: bool) -> AtomLabel:
        traced = self._traced(node, again=again)
        if (left, right) not in traced.found:
            traced.found[left, right] = self._gone_back(node, traced, left, right, again=again)
        return traced.found[left, right]

    def _gone_back(
        self, node: int, traced: _Traced, left: tuple[int, ...], right: tuple[int, ...], *, again: bool
    ) -> AtomLabel:
        """Return the forms that were chosen between two layouts, and what they take."""
        atom, sums = traced.atom, self.growth.sums
        values = dict(enumerate(left))
        unfolded = eliminated(atom.factors, {*range(len(left)), *atom.live})
        wanted = [
            (one, sums.ends[number]) for one, number in zip(atom.live, right, strict=True) if one >= len(left)
        ]
        places = [
            [n for n, form in enumerate(atom.forms[one]) if sums.alike.get(form, form) == end]
            for one, end in wanted
        ]
        best = NO_SUM + 1
        chosen: tuple[int, ...] = ()
        for numbers in np.ndindex(*(len(row) for row in places)):
            some = tuple(row[n] for row, n in zip(places, numbers, strict=True))
            of = values | dict(zip((one for one, _ in wanted), some, strict=True))
            value = int(unfolded.sums[(*(of[one] for one in unfolded.over), 0, 0)])
            if value < best:
                best, chosen = value, some
        values |= dict(zip((one for one, _ in wanted), chosen, strict=True))
        for choice in reversed(traced.trace):
            values[choice.variable] = int(choice.best[(*(values[one] for one in choice.over), 0, 0)])
        forms = {one: atom.forms[one][number] for one, number in values.items()}
        own = tuple(0 if one is None else forms[one] for one in atom.own)
        amounts = self._amounts(node, forms, own, again=again)
        return AtomLabel(self.growth.nodes.atom[node], left, right, again, own, amounts)

    def _amounts(self, node: int, forms: dict[int, int], own: tuple[int, ...], *, again: bool) -> Amounts:
        """Add up what an atom takes and holds in these forms."""
        sums = self.growth.sums
        tables, held, kind = sums.tables, sums.held, self.kind
        priced = held.recomputing[kind] if again and held is not None else kind
        program = sums.programs.all[self.growth.nodes.program[node]]
        live, fresh, again_bytes = [*range(program.width)], program.width, 0
        total = Amounts()
        for step, form in zip(program.steps, own, strict=True):
            around = live
            lies = form
            if step.forms:
                around = [*live, fresh]
                fresh += 1
                between = sum(
                    int(tables.between[priced, sums.programs.edges[edge], forms[live[at]], form])
                    for at, edge in step.edges
                    if forms[live[at]] != OUTSIDE
                )
                total += Amounts(time=between, each=between)
            elif step.source is not None and forms[live[step.source]] != OUTSIDE:
                lies = forms[live[step.source]]
            total += self._of_layer(step.cost, lies, priced)
            again_bytes += self._rerun(step.cost, lies) if again else 0
            live = [around[at] for at in step.kept]
        return Amounts(total.time, total.each, total.once, total.stash, total.working + again_bytes)

    def _of_layer(self, number: int, lies: int, priced: int) -> Amounts:
        tables, held = self.growth.sums.tables, self.growth.sums.held
        layer, copied = self.growth.sums.programs.layers[number]
        copy = tables.instance.copies[layer]
        computed = int(tables.compute[priced, layer])
        time, each = (
            computed + int(tables.inside[priced, layer, lies]),
            computed + int(tables.each[priced, layer, lies]),
        )
        ends = (copy.earlier, layer) if copied and copy is not None else None
        if ends is not None:
            time, each = (
                time + int(tables.copies[ends][priced, lies]),
                each + int(tables.copies_each[ends][priced, lies]),
            )
        if held is None:
            return Amounts(time, each)
        once = int(held.once[self.kind, layer, lies] + held.by_version[self.kind, layer, lies])
        working = int(held.working_set[priced, layer, lies])
        if ends is not None and held.copies:
            more = held.copies[ends]
            once += int(more.once[self.kind, lies] + more.by_version[self.kind, lies])
            working += int(more.working_set[priced, lies])
        return Amounts(time, each, once, int(held.by_micro_batch[priced, layer, lies]), working)

    def _rerun(self, number: int, lies: int) -> int:
        """Return what a layer that is computed again holds while its atom is."""
        held, (layer, _) = self.growth.sums.held, self.growth.sums.programs.layers[number]
        if held is None:
            return 0
        return int(held.once[held.recomputing[self.kind], layer, lies] - held.once[self.kind, layer, lies])


def row_of(cells: Cells, price: int, stash: int) -> ByteWeights:
    """Return one row of weights for all kinds of cells: of time, and of bytes at these prices."""
    scale, kinds = cells.weights.scale, len(cells.kinds)
    time, once, stashed = (np.full((1, kinds), number, dtype=np.int64) for number in (scale, price, stash))
    return ByteWeights(time, once, stashed, scale, cells.weights.each)
