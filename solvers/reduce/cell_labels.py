"""From cells back to plans: forms of the layers of a stage with a least weighted sum, and what they take and hold.

A *label* is one way to run a stage: its forms, which of its atoms are computed again, and what that takes. For
given weights the forms of least sum are found by going back through the choices that were made when layers were
eliminated (``solvers.reduce.form_sums``). As all blocks of one class cost the same, each pair of layouts at their
ends is gone through once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipecut.solvers.atoms.programs import OUTSIDE
from pipecut.solvers.reduce import form_sums
from pipecut.solvers.reduce.cells import Cells
from pipecut.solvers.reduce.form_sums import AtomForms, ByteWeights, Choice, Factor, LayerSums, Numbers, eliminated
from pipecut.solvers.reduce.growth import AtomGrowth


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
    """An atom kept, or computed again, with what was chosen when its layers were eliminated.

    ``unfolded`` are its sums by the forms of what is live behind it, ``table`` by their layouts,
    ``[left ..., right ..., price]``. ``found`` are labels by layouts and price.
    """

    atom: AtomForms
    unfolded: Factor
    trace: list[Choice]
    table: Numbers
    found: dict[tuple[tuple[int, ...], tuple[int, ...], int], AtomLabel] = field(default_factory=dict)


@dataclass(slots=True)
class StageLabels:
    """The labels of least sum for one kind of group, at some prices of a byte, which all are looked at at once.

    Stages that are alike, by the node of their cells, have the same labels.
    """

    cells: Cells
    kind: int
    prices: list[tuple[int, int]]
    growth: AtomGrowth
    _atoms: dict[tuple[int, int, bool], _Traced] = field(default_factory=dict)
    _states: dict[int, tuple[Numbers, Numbers]] = field(default_factory=dict)
    _labels: dict[tuple[int, int], StageLabel | None] = field(default_factory=dict)
    _rests: dict[int, list[Numbers]] = field(default_factory=dict)
    _tables: dict[tuple[int, int, tuple[bool, ...]], tuple[Numbers, tuple[int, ...]]] = field(default_factory=dict)

    @staticmethod
    def of(cells: Cells, kind: int, prices: list[tuple[int, int]]) -> StageLabels:
        """Return the labels of a kind at prices of a byte that is held once, and of one of the stash."""
        growth, weights = cells.growth, rows_of(cells, prices)
        sums = LayerSums(growth.sums.tables, growth.sums.held, weights, growth.sums.programs, growth.sums.alike)
        return StageLabels(cells, kind, prices, AtomGrowth(sums, growth.nodes, growth.lending, growth.word))

    def label(self, first: int, stop: int, price: int) -> StageLabel | None:
        """Return the label of the stage of these atoms at a price; None where it has no forms."""
        key = int(self.cells.nodes.at[first, stop]), price
        if key not in self._labels:
            path = self.path(first, stop, price)
            self._labels[key] = None if path is None else self.of_path(path)
        return self._labels[key]

    def path(self, first: int, stop: int, price: int) -> list[AtomLabel] | None:
        """Return the labels of the atoms of a stage with the least sum; None where it has no forms."""
        nodes = self.way(first, stop)
        rows = [self._state(node) for node in nodes]
        state = rows[-1][0][..., price]
        if int(state.min()) >= form_sums.NO_SUM:
            return None
        right: tuple[int, ...] = tuple(int(one) for one in np.unravel_index(state.argmin(), state.shape))
        found: list[AtomLabel] = []
        for node, (_, joined) in zip(reversed(nodes), reversed(rows), strict=True):
            left, again = self._back(joined[..., price], node, right, price)
            found.append(self._atom(node, left, right, price, again=again))
            right = left
        return found[::-1]

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
        self, path: Sequence[AtomLabel], other: Sequence[AtomLabel], many: int, ends: tuple[int, int], price: int
    ) -> StageLabel | None:
        """Return the label that has so many first atoms as ``path`` has them, and the rest as ``other``.

        Where layouts do not meet the atom between is chosen anew, at a price; None where it lies in no way that
        leads from one to the other. ``ends`` are those of the stage.
        """
        rows = [*path[:many], *other[many:]]
        if 0 < many < len(rows) and path[many - 1].right != other[many].left:
            node, left, right = self.way(*ends)[many], path[many - 1].right, other[many].right
            if self._least(node)[0][(*left, *right, price)] >= form_sums.NO_SUM:
                return None
            rows[many] = self._atom(node, left, right, price, again=self._is_again(node, (*left, *right), price))
        return self.of_path(rows)

    def way(self, first: int, stop: int) -> list[int]:
        """Return the nodes of the stages from an atom on, up to the one of these atoms."""
        return [int(self.cells.nodes.at[first, at]) for at in range(first + 1, stop + 1)]

    def rests(self, first: int, stop: int) -> list[Numbers]:
        """Return what atoms from each place of a stage on weigh at least, by layouts of what is live and price."""
        key = int(self.cells.nodes.at[first, stop])
        if key not in self._rests:
            self._rests[key] = self._rests_of(self.way(first, stop))
        return self._rests[key]

    def _rests_of(self, nodes: Sequence[int]) -> list[Numbers]:
        _, live = self._least(nodes[-1])
        found = [np.zeros((*(len(self.growth.sums.ends),) * len(live), len(self.prices)), dtype=np.int64)]
        for node in reversed(nodes):
            table, live = self._least(node)
            width = table.ndim - 1 - len(live)
            sums = np.minimum(table + found[-1].reshape((*(1,) * width, *found[-1].shape)), form_sums.NO_SUM)
            found.append(sums.min(axis=tuple(range(width, table.ndim - 1))) if live else sums)
        return found[::-1]

    def _outside(self, node: int) -> Numbers:
        sums, program = self.growth.sums, self.growth.nodes.program[node]
        width = sums.programs.all[program].width
        found = np.full((*(len(sums.ends),) * width, len(self.prices)), form_sums.NO_SUM, dtype=np.int64)
        found[(-1,) * width] = 0
        return found

    def _state(self, node: int) -> tuple[Numbers, Numbers]:
        """Return the least sums by what is live behind a stage, and ``[left ..., right ..., price]`` behind them.

        ``left`` is what is live before its last atom.
        """
        if node not in self._states:
            parent = self.growth.nodes.parent[node]
            before = self._states[parent][0] if parent >= 0 else self._outside(node)
            factor, live = self._least(node)
            width = before.ndim - 1
            wide = before.reshape((*before.shape[:-1], *(1,) * len(live), before.shape[-1]))
            joined = np.minimum(wide + factor, form_sums.NO_SUM)
            self._states[node] = joined.min(axis=tuple(range(width))) if width else joined, joined
        return self._states[node]

    def _least(self, node: int) -> tuple[Numbers, tuple[int, ...]]:
        """Return ``[left ..., right ..., price]`` of an atom, kept or again as is less, and what is live then."""
        nodes, ways = self.growth.nodes, self._choices(node)
        key = nodes.program[node], self.growth.lending.of_atom[nodes.atom[node]], ways
        if key not in self._tables:
            found = [self._traced(node, again=again) for again in ways]
            self._tables[key] = np.minimum.reduce([one.table for one in found]), tuple(found[0].atom.live)
        return self._tables[key]

    def _choices(self, node: int) -> tuple[bool, ...]:
        held = self.growth.sums.held
        return self.growth.nodes.choices(node) if held is not None and self.kind in held.recomputing else (False,)

    def _table(self, atom: AtomForms, found: Factor, width: int) -> Numbers:
        """Return ``[left ..., right ..., price]``; what is live at both ends lies in one way alone."""
        ends, sums = len(self.growth.sums.ends), found.sums[..., 0]
        axes = [*range(width), *atom.live]
        if len(set(axes)) == len(axes):
            return sums.transpose(*(found.over.index(one) for one in axes), -1)
        table = np.full((*(ends,) * len(axes), len(self.prices)), form_sums.NO_SUM, dtype=np.int64)
        for place in np.ndindex(*sums.shape[:-1]):
            of = dict(zip(found.over, place, strict=True))
            table[tuple(of[one] for one in axes)] = sums[place]
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
            table = self._table(atom, atom.folded(found, program.width), program.width)
            self._atoms[key] = _Traced(atom, found, trace, table)
        return self._atoms[key]

    def _back(
        self, joined: Numbers, node: int, right: tuple[int, ...], price: int
    ) -> tuple[tuple[int, ...], bool]:
        """Return the layouts at the left end that lead to those at the right end, and whether it is done again."""
        rows = joined[(..., *right)] if right else joined
        left = tuple(int(one) for one in np.unravel_index(rows.argmin(), rows.shape))
        return left, self._is_again(node, (*left, *right), price)

    def _is_again(self, node: int, ends: tuple[int, ...], price: int) -> bool:
        """Tell whether an atom is computed again between these layouts."""
        ways = self._choices(node)
        return ways[np.argmin([self._traced(node, again=one).table[(*ends, price)] for one in ways])]

    def _atom(
        self, node: int, left: tuple[int, ...], right: tuple[int, ...], price: int, *, again: bool
    ) -> AtomLabel:
        traced = self._traced(node, again=again)
        if (left, right, price) not in traced.found:
            traced.found[left, right, price] = self._gone_back(node, traced, (left, right), price, again=again)
        return traced.found[left, right, price]

    def _gone_back(
        self, node: int, traced: _Traced, ends: tuple[tuple[int, ...], tuple[int, ...]], price: int, *, again: bool
    ) -> AtomLabel:
        """Return the forms that were chosen between two layouts, and what they take."""
        atom, sums, unfolded, (left, right) = traced.atom, self.growth.sums, traced.unfolded, ends
        values = dict(enumerate(left))
        wanted = [
            (one, sums.ends[number]) for one, number in zip(atom.live, right, strict=True) if one >= len(left)
        ]
        places = [
            [n for n, form in enumerate(atom.forms[one]) if sums.alike.get(form, form) == end]
            for one, end in wanted
        ]
        best = form_sums.NO_SUM + 1
        chosen: tuple[int, ...] = ()
        for numbers in np.ndindex(*(len(row) for row in places)):
            some = tuple(row[n] for row, n in zip(places, numbers, strict=True))
            of = values | dict(zip((one for one, _ in wanted), some, strict=True))
            value = int(unfolded.sums[(*(of[one] for one in unfolded.over), price, 0)])
            if value < best:
                best, chosen = value, some
        values |= dict(zip((one for one, _ in wanted), chosen, strict=True))
        for choice in reversed(traced.trace):
            values[choice.variable] = int(choice.best[(*(values[one] for one in choice.over), price, 0)])
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
        time = computed + int(tables.inside[priced, layer, lies])
        each = computed + int(tables.each[priced, layer, lies])
        ends = (copy.earlier, layer) if copied and copy is not None else None
        if ends is not None:
            time += int(tables.copies[ends][priced, lies])
            each += int(tables.copies_each[ends][priced, lies])
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


def rows_of(cells: Cells, prices: Sequence[tuple[int, int]]) -> ByteWeights:
    """Return rows of weights for all kinds of cells: of time, and of bytes at these prices."""
    kinds, scale = len(cells.kinds), cells.weights.scale
    once, stash = np.repeat(np.array(prices, dtype=np.int64).T[:, :, None], kinds, axis=2)
    return ByteWeights(np.full_like(once, scale), once, stash, scale, cells.weights.each)
