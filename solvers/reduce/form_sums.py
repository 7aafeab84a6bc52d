"""Least weighted sums over the forms of an atom's layers, one layer eliminated after the other.

What a stage takes and holds adds up over its layers, and at edges over pairs of them. For given *weights* of time
and bytes the least of such a sum over all forms is found without going through combinations: a layer whose form
only a few others look at is eliminated first, and what is left is a sum over those (bucket elimination, Dechter,
Artificial Intelligence 113, 1999). All weights and all kinds of groups are worked on at once. The least sums are
lower bounds by duality: a stage that holds at most so much takes at least the least sum less the price of that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.problem.instance import FORBIDDEN, Instance, longest_ns
from pipecut.formulation.problem.layers import Split
from pipecut.solvers.atoms.programs import OUTSIDE, AtomProgram, LayerStep, Programs

Numbers = NDArray[np.int64]
Forms = tuple[int, ...]
NO_SUM = 1 << 60
"""No forms; sums are cut off here, so that two of them never leave 64 bits."""
SCALE_BITS, TIME_BITS = 14, 58
"""Times are counted in parts of a nanosecond, of so many bits at most, so that a byte may weigh less than one.

Of fewer where the longest times would have more than so many bits.
"""
MOST_BYTES = 1 << 42
"""No device holds as much, so bytes are cut off here."""


def scale_of(instance: Instance) -> int:
    """Return in how many parts a nanosecond is counted, so that no sum of times is cut off."""
    return 1 << max(0, min(SCALE_BITS, TIME_BITS - longest_ns(instance).bit_length()))


def product(one: Numbers, other: Numbers) -> Numbers:
    """Return products of numbers that are 0 or more, no more than NO_SUM."""
    return np.where(other > NO_SUM // np.maximum(one, 1), NO_SUM, one * other)


@dataclass(frozen=True, slots=True, eq=False)
class ByteWeights:
    """Rows of weights, each for every kind: of time, in parts of a nanosecond, and of a byte.

    ``time[g, k]`` is ``scale``, how many parts a nanosecond has, or 0; ``once[g, k]`` for a byte that is held
    once, ``stash[g, k]`` for one that every micro-batch in flight has. ``each``: the time of passes alone is
    weighed, without what is done once a step.
    """

    time: Numbers
    once: Numbers
    stash: Numbers
    scale: int
    each: bool = False

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """A sum by the forms of some variables: ``sums[form of each of over ..., weights, kind]``."""

    over: tuple[int, ...]
    sums: Numbers

    def aligned(self, over: Sequence[int]) -> Numbers:
        """Return the sums with an axis for each of these variables; of length 1 for those that are not in it."""
        shape = dict(zip(self.over, self.sums.shape, strict=False))
        return self.sums.reshape((*(shape.get(one, 1) for one in over), *self.sums.shape[-2:]))


def product_of(factors: Iterable[Factor]) -> Factor:
    """Return the sum of some factors, by all their variables. It is not cut off at NO_SUM."""
    rows = list(factors)
    over = tuple(sorted({one for row in rows for one in row.over}))
    found = rows[0].aligned(over)
    for at, row in enumerate(rows[1:], 1):
        # So many sums stay within 64 bits.
        found = found + row.aligned(over) if at % 6 else np.minimum(found, NO_SUM) + row.aligned(over)
    return Factor(over, found)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """For an eliminated variable the number of its best form, by those of the variables ``over``."""

    variable: int
    over: tuple[int, ...]
    best: NDArray[np.intp]


def eliminated(factors: Iterable[Factor], kept: Iterable[int], trace: list[Choice] | None = None) -> Factor:
    """Return the least sum over all variables but the kept ones, by these.

    The variable goes first that leaves the smallest table. Into ``trace`` is written what was chosen on the way.
    Cost: that of the largest table.
    """
    rows, around = list(factors), defaultdict[int, set[int]](set)
    for row in rows:
        for one in row.over:
            around[one].update(row.over)
    left = around.keys() - set(kept)
    while left:
        one = min(left, key=lambda each: (len(around[each]), each))
        left.remove(one)
        joined = product_of(row for row in rows if one in row.over)
        at = joined.over.index(one)
        over = (*joined.over[:at], *joined.over[at + 1 :])
        for other in over:
            around[other].update(over)
            around[other].remove(one)
        rows = [row for row in rows if one not in row.over]
        rows.append(Factor(over, np.minimum(joined.sums.min(axis=at), NO_SUM)))
        if trace is not None:
            trace.append(Choice(one, over, joined.sums.argmin(axis=at)))
    left_over = product_of(rows)
    return Factor(left_over.over, np.minimum(left_over.sums, NO_SUM))


@dataclass(frozen=True, slots=True, eq=False)
class LayerSums:
    """Weighted sums of layers and changes of layout, for some weights on all kinds of the tables.

    ``alike[form]`` is the first form in which a layer costs others the same as in this one.
    """

    tables: Tables
    held: MemoryTables | None
    weights: ByteWeights
    programs: Programs
    alike: Mapping[int, int]

    @property
    def ends(self) -> tuple[int, ...]:
        """Return the layouts in which a live layer may lie at a cut, one for all that cost the same behind it."""
        return (*sorted(set(self.alike.values())), OUTSIDE)

    def of_layer(self, number: int, kinds: Numbers, again: Numbers | None) -> Numbers:
        """Return ``[form, weights, kind]`` of layers of this number, or of such layers that are computed again.

        ``kinds`` are those of the stage, ``again`` those that price what is computed again.
        """
        tables, held, weights = self.tables, self.held, self.weights
        layer, copied = self.programs.layers[number]
        copy = tables.instance.copies[layer]
        priced = kinds if again is None else again
        inside, copies = (tables.each, tables.copies_each) if weights.each else (tables.inside, tables.copies)
        taken = inside[priced, layer] + tables.compute[priced, layer, None]
        none = tables.inside[priced, layer] >= FORBIDDEN
        if copied and copy is not None:
            taken = taken + copies[copy.earlier, layer][priced]
        sums = self._weighed(weights.time[:, kinds], np.where(none, 0, taken))
        if held is not None:
            once = held.once[kinds, layer] + held.by_version[kinds, layer]
            stash = held.by_micro_batch[priced, layer]
            if copied and copy is not None and held.copies:
                more = held.copies[copy.earlier, layer]
                once = once + more.once[kinds] + more.by_version[kinds]
            sums = sums + self._weighed(weights.once[:, kinds], np.minimum(once, MOST_BYTES))
            sums = np.minimum(sums + self._weighed(weights.stash[:, kinds], np.minimum(stash, MOST_BYTES)), NO_SUM)
            if tables.instance.layers[layer].split is not Split.FOLLOW:
                # One that follows lies as others may, and a layout stands for all those that cost it the same.
                none = none | ~held.possible[kinds, layer]
        return np.where(none.T[:, None, :], NO_SUM, sums)

    def _weighed(self, weights: Numbers, amounts: Numbers) -> Numbers:
        """Return ``[form, weights, kind]`` of amounts ``[kind, form]``."""
        return product(weights[None], amounts.T[:, None, :])

    def of_edge(self, number: int, ends: tuple[Forms, Forms], kinds: Numbers, priced: Numbers) -> Numbers:
        """Return ``[form of the source, form of the consumer, weights, kind]``; nothing for a source outside.

        ``ends`` are the forms of both, ``priced`` the kinds that have the prices of the stage's ``kinds``.
        """
        edge, (sources, forms) = self.programs.edges[number], ends
        changes = self.tables.between[priced, edge].transpose(1, 2, 0)[:, forms]
        found = [np.zeros_like(changes[0]) if one == OUTSIDE else changes[one] for one in sources]
        return product(self.weights.time[None, None][..., kinds], np.stack(found)[:, :, None, :])


@dataclass(slots=True)
class AtomForms:
    """The variables of an atom so far, with the forms of each, and what layers and edges cost by them.

    ``own`` are the variables of its layers; None for one that follows another.
    """

    sums: LayerSums
    kinds: Numbers
    again: Numbers | None
    forms: list[Forms]
    live: list[int]
    factors: list[Factor] = field(default_factory=list)
    costs: dict[int, Numbers] = field(default_factory=dict)
    own: list[int | None] = field(default_factory=list)

    @staticmethod
    def of(
        sums: LayerSums,
        program: AtomProgram,
        kinds: Numbers,
        again: Numbers | None = None,
        more: Mapping[int, Numbers] | None = None,
    ) -> AtomForms:
        """Return all variables of an atom (:func:`of_atom`)."""
        width = program.width
        atom = AtomForms(sums, kinds, again, [sums.ends] * width, [*range(width)])
        nothing = np.zeros((len(sums.ends), len(sums.weights), len(kinds)), dtype=np.int64)
        atom.factors += [Factor((at,), (more or {}).get(at, nothing)) for at in range(width)]
        for step in program.steps:
            atom.add(step)
        return atom

    def add(self, step: LayerStep) -> None:
        """Take in the next layer."""
        if step.cost not in self.costs:
            self.costs[step.cost] = self.sums.of_layer(step.cost, self.kinds, self.again)
        costs, around = self.costs[step.cost], self.live
        if step.forms:
            own, forms = len(self.forms), tuple(sorted({0, *step.forms}))
            self.factors.append(Factor((own,), costs[list(forms)]))
            priced = self.kinds if self.again is None else self.again
            for at, edge in step.edges:
                source = self.live[at]
                changes = self.sums.of_edge(edge, (self.forms[source], forms), self.kinds, priced)
                self.factors.append(Factor((source, own), changes))
            self.forms.append(forms)
            self.own.append(own)
            around = [*self.live, own]
            self.live = [around[at] for at in step.kept]
            return
        self.own.append(None)
        if step.source is None:
            self.factors.append(Factor((), costs[0]))
        else:
            # What came over a boundary lies by rows.
            source = self.live[step.source]
            lies = [0 if one == OUTSIDE else one for one in self.forms[source]]
            self.factors.append(Factor((source,), costs[lies]))
        self.live = [around[at] for at in step.kept]

    def folded(self, found: Factor, width: int) -> Factor:
        """Return a factor in which layers that are live at the right end have the layouts of a cut."""
        sums, ends = found.sums, self.sums.ends
        for at, one in enumerate(found.over):
            if one >= width:
                like = [self.sums.alike.get(form, form) for form in self.forms[one]]
                rows = [sums.take([n for n, form in enumerate(like) if form == end], at) for end in ends]
                least = [row.min(axis=at, keepdims=True, initial=NO_SUM) for row in rows]
                sums = np.concatenate(least, axis=at)
        return Factor(found.over, sums)


def of_atom(
    sums: LayerSums,
    program: AtomProgram,
    kinds: Numbers,
    again: Numbers | None = None,
    more: Mapping[int, Numbers] | None = None,
) -> tuple[Factor, tuple[int, ...]]:
    """Return the least sums of an atom by the layouts of what is live at its ends, and what is live at its right.

    Variables 0, 1, ... are what is live at its left end, in order; those that are live at both ends keep their
    number. With ``again`` the atom is computed again by itself, at the prices of these kinds. ``more`` is by a
    variable of the left end what its layout costs beside.
    """
    width = program.width
    atom = AtomForms.of(sums, program, kinds, again, more)
    found = eliminated(atom.factors, {*range(width), *atom.live})
    return atom.folded(found, width), tuple(atom.live)


def alike_forms(tables: Tables, held: MemoryTables | None) -> Mapping[int, int]:
    """Return for each form the first one in which a layer costs whoever looks at it the same."""
    # Which forms are possible is no cost: a layer lies as the one that it follows, whatever that may be.
    follows = [at for at, layer in enumerate(tables.instance.layers) if layer.split is Split.FOLLOW]
    parts = [one.swapaxes(0, 2) for one in (tables.between, tables.inside[:, follows], tables.each[:, follows])]
    for copies in (tables.copies, tables.copies_each):
        parts += [row.swapaxes(0, 1) for (_, layer), row in copies.items() if layer in follows]
    if held is not None:
        rows = (held.once, held.by_version, held.by_micro_batch, held.working_set)
        parts += [row[:, follows].swapaxes(0, 2) for row in rows]
        for (_, layer), more in (held.copies or {}).items():
            if layer in follows:
                parts += [row.swapaxes(0, 1) for row in (more.once, more.by_version, more.working_set)]
    known = dict[Hashable, int]()
    return {
        form: known.setdefault(tuple(np.ascontiguousarray(part[form]).tobytes() for part in parts), form)
        for form in range(tables.inside.shape[2])
    }
