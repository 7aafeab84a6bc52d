"""The best splits of one atom: for each layout at its left end, the unbeaten labels by layout at its right end.

They are made once for each program, kind of group and rule of what is kept, when a search first wants them.
Computation does not depend on forms, so a front knows communication alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.problem.groups import forms_on
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.solvers.atoms.labels import AGAIN, HELD, TIME, WORKING, Labels, best_rows
from pipecut.solvers.atoms.programs import OUTSIDE, Key, LayerStep, Programs
from pipecut.solvers.atoms.unbeaten import unbeaten

States = dict[Key, Labels]
"""The unbeaten labels by the forms of the live layers."""
LAYOUTS = OUTSIDE + 1
# After how many live layers the numbers of layouts are counted anew, so that they stay within 64 bits.
RENUMBER = 16


class Passes(NamedTuple):
    """What layers, changes of layout and copies of weights take, by pass in the last place (``PassTables``)."""

    layers: Times
    changes: Times
    copies: Mapping[tuple[int, int], Times]


@dataclass(frozen=True, slots=True)
class FrontRule:
    """All that fronts depend on beside the program: the kind, and how often its stages keep what they hold.

    ``alone``: the atom is computed again by itself, in a stage of kind ``alone`` that keeps others.
    """

    kind: int
    keeps: Keeps
    alone: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Grown:
    """The labels after some layers of an atom, a row each.

    ``key[row, at]`` is the form of each live layer and ``left[row]`` the number of the layout that it began with;
    ``before[row]`` the row of the layer before that it comes from, ``form[row]`` the form of the newest layer.
    """

    labels: Labels
    key: NDArray[np.int64]
    left: NDArray[np.int64]
    before: NDArray[np.intp]
    form: NDArray[np.int64]

    def of(self, rows: NDArray[np.intp]) -> _Grown:
        return _Grown(self.labels[rows], self.key[rows], self.left[rows], self.before[rows], self.form[rows])


class Fronts:
    """The fronts of an instance; each is made when it is first asked for.

    ``alike`` says by a form the first one that costs others the same: layouts are told apart no further. With
    ``passes``, which programs and layouts then tell apart, labels have their columns behind the others.
    """

    def __init__(
        self,
        tables: Tables,
        held: MemoryTables,
        known: Programs,
        alike: Mapping[int, int] | None = None,
        passes: Passes | None = None,
    ) -> None:
        self.tables, self.held, self.programs, self.passes = tables, held, known, passes
        self.width = AGAIN + (0 if passes is None else passes.layers.shape[-1])
        self._alike = np.array([(alike or {}).get(one, one) for one in range(LAYOUTS)], dtype=np.int64)
        self._known: dict[tuple[int, FrontRule, Key], States] = {}
        self._costs = cache(self._costs_of)
        self._changes = cache(self._changes_of)

    def rule(self, slot: int, kind: int) -> FrontRule:
        """Return the rule of a slot; slots in which stages that recompute everything hold the same share one."""
        keeps = self.held.keeps(slot)
        if self.tables.kinds[kind].mode.recompute is True:
            keeps = Keeps(keeps.versions, 1)
        return FrontRule(kind, keeps)

    def choices(self, rule: FrontRule, ways: Sequence[bool] = (False, True)) -> list[FrontRule]:
        """Return the rules of an atom in a stage with this one, by whether it is computed again by itself."""
        again = self.held.recomputing.get(rule.kind)
        alone = rule if again is None else FrontRule(again, Keeps(rule.keeps.versions, 1), rule.kind)
        return [rule] if again is None else [alone if way else rule for way in ways]

    def of(self, program: int, rule: FrontRule, lefts: Iterable[Key]) -> Mapping[Key, States]:
        """Return the fronts of a program from some layouts at its left end, by layout at its right end."""
        wanted = list(lefts)
        missing = [left for left in wanted if (program, rule, left) not in self._known]
        if missing:
            last = self._folded(self._history(program, rule, missing)[-1])
            last = last.of(self.best(last.labels, _number(last)))
            for number, left in enumerate(missing):
                self._known[program, rule, left] = _by_key(last, np.flatnonzero(last.left == number))
        return {left: self._known[program, rule, left] for left in wanted}

    def forms(self, program: int, rule: FrontRule, ends: tuple[Key, Key], label: Labels) -> list[int]:
        """Return forms of the layers that lead from one layout to the other at this label's costs.

        Raises LookupError for a label that is not of their front.
        """
        history = self._history(program, rule, [ends[0]])
        last = history[-1]
        costs = self._folded(last).labels
        found = np.flatnonzero((last.key == np.array(ends[1])).all(axis=1) & (costs == label).all(axis=1))
        if not len(found):
            raise LookupError(f"program {program}: no forms lead from {ends[0]} to {ends[1]} at {label.tolist()}")
        row, forms = int(found[0]), list[int]()
        for grown in reversed(history[1:]):
            forms.append(int(grown.form[row]))
            row = int(grown.before[row])
        return forms[::-1]

    def _history(self, program: int, rule: FrontRule, lefts: list[Key]) -> list[_Grown]:
        """Return the labels before the first layer of a program, and after every one."""
        count, known = len(lefts), self.programs.all[program]
        none = np.zeros(count, dtype=np.int64)
        key = np.array(lefts, dtype=np.int64).reshape(count, known.width)
        columns = self.width + (rule.alone is not None)
        begun = _Grown(np.zeros((count, columns), dtype=np.int64), key, np.arange(count), none, none)
        history = [begun]
        for step in known.steps:
            grown = self._grown(rule, step, history[-1])
            labels, number = grown.labels, _number(grown)
            history.append(grown.of(self.best(labels, number)))
        return history

    def best(self, labels: Labels, number: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the rows that no other of their number is at most; less that is computed again is better, too."""
        wide = self.passes is not None or labels.shape[1] > AGAIN
        return unbeaten(labels, number, self.tables.deadline) if wide else best_rows(labels, number)

    def _grown(self, rule: FrontRule, step: LayerStep, so_far: _Grown) -> _Grown:
        """Return every label with the next layer in every form that it may have."""
        count, key = len(so_far.labels), so_far.key
        before = np.arange(count)
        if step.forms:
            row = self.tables.instance.layers[self.programs.layers[step.cost][0]]
            forms = forms_on(row, self.tables.kinds[rule.kind])
            before = np.tile(before, len(forms))
            lies = form = np.repeat(np.array(forms, dtype=np.int64), count)
            key = np.column_stack([key[before], self._alike[form]])
        else:
            form = np.zeros(count, dtype=np.int64)
            lies = form if step.source is None else np.where(key[:, step.source] < OUTSIDE, key[:, step.source], 0)
        costs = self._costs(rule, step.cost)[lies]
        labels = so_far.labels[before]
        labels[:, TIME] += costs[:, TIME]
        for at, edge in step.edges:
            more = self._changes(rule.kind, edge)[key[:, at], form]
            labels[:, TIME] += more[:, TIME]
            labels[:, AGAIN : self.width] += more[:, 1:]
        labels[:, HELD] += costs[:, HELD]
        labels[:, AGAIN:] += costs[:, AGAIN:]
        np.maximum(labels[:, WORKING], costs[:, WORKING], out=labels[:, WORKING])
        return _Grown(labels, key[:, list(step.kept)], so_far.left[before], before, form)

    def _costs_of(self, rule: FrontRule, number: int) -> Labels:
        """Return what layers of this number cost, as a label for each form."""
        held, kind, (layer, copied) = self.held, rule.kind, self.programs.layers[number]
        lasting = held.once[kind, layer] + rule.keeps.versions * held.by_version[kind, layer]
        lasting = lasting + rule.keeps.in_flight * held.by_micro_batch[kind, layer]
        moved, working = self.tables.inside[kind, layer], held.working_set[kind, layer]
        copy = self.tables.instance.copies[layer]
        if copied and copy is not None:
            moved = moved + self.tables.copies[copy.earlier, layer][kind]
            if held.copies:
                more = held.copies[copy.earlier, layer]
                lasting, working = lasting + more.lasting(rule.keeps, kind), working + more.working_set[kind]
        taken = self._passes_of(kind, layer, copied=copied)
        if rule.alone is None:
            return np.column_stack([moved, lasting, working, *taken])
        again = held.once[kind, layer] - held.once[rule.alone, layer]
        return np.column_stack([moved, lasting - again, working, *taken, again])

    def _passes_of(self, kind: int, layer: int, *, copied: bool) -> list[Times]:
        """Return what a layer takes in each column of passes, by form; nothing of forms that it may not have."""
        if self.passes is None:
            return []
        found, copy = self.passes.layers[kind, layer], self.tables.instance.copies[layer]
        if copied and copy is not None:
            found = found + self.passes.copies[copy.earlier, layer][kind]
        return [*np.where(found < FORBIDDEN, found, 0).T]

    def _changes_of(self, kind: int, number: int) -> Times:
        """Return what changes of layout cost at edges of this number; from outside they cost nothing."""
        edge = self.programs.edges[number]
        inner = self.tables.between[kind, edge][..., None]
        if self.passes is not None:
            inner = np.concatenate([inner, self.passes.changes[kind, edge]], axis=-1)
        changes = np.zeros((LAYOUTS, *inner.shape[1:]), dtype=np.int64)
        changes[: len(inner)] = inner
        return changes

    def _folded(self, grown: _Grown) -> _Grown:
        """Return labels of an atom that is done: what is computed again is there while its layers work."""
        labels = grown.labels[:, : self.width].copy()
        labels[:, WORKING] += grown.labels[:, self.width :].sum(axis=1)
        return replace(grown, labels=labels)


def _number(grown: _Grown) -> NDArray[np.int64]:
    """Return a number for each row: the same for those with the same layouts at both ends, and for no others."""
    number = grown.left
    for at, column in enumerate(grown.key.T):
        if at % RENUMBER == RENUMBER - 1:
            number = np.unique(number, return_inverse=True)[1]
        number = LAYOUTS * number + column
    return number


def _by_key(grown: _Grown, rows: NDArray[np.intp]) -> States:
    """Return the labels of some rows by layout; those of one layout stand together."""
    keys = grown.key[rows]
    ends = np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1
    parts = np.split(rows, ends)
    return {tuple(grown.key[part[0]].tolist()): grown.labels[part] for part in parts if len(part)}
