"""The least time of one stage that fits, exactly: labels of its atoms joined as far as they can be the best.

Where memory is short the fastest forms may not fit, and the best mix of forms and of atoms that are computed again
is no least weighted sum. For a single stage all unbeaten labels (``solvers.atoms.fronts``) are joined atom by
atom. What the rest weighs at least at some price of a byte leaves out almost all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.limits import NEVER, Deadline, TooLargeError
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.solvers.atoms.fronts import FrontRule, Fronts, States
from pipecut.solvers.atoms.labels import AGAIN, HELD, TIME, WORKING, joined
from pipecut.solvers.atoms.labels import Labels as Rows
from pipecut.solvers.atoms.programs import OUTSIDE, Key
from pipecut.solvers.reduce.labels import Amounts, StageLabel, StageLabels
from pipecut.solvers.reduce.programme import Cell
from pipecut.solvers.reduce.sums import Numbers

_State = tuple[Key, Key]
"""The layouts of what is live, and the statuses of tensors (``solvers.atoms.blocks``)."""
_Parts = list[tuple[Rows, NDArray[np.intp], tuple[_State, FrontRule], Rows]]


@dataclass(frozen=True, slots=True, eq=False)
class _Grown:
    """Labels behind an atom by state: ``rows``, and of each the row before, its layout, rule and own label."""

    rows: Rows
    before: NDArray[np.intp]
    left: list[tuple[_State, FrontRule]]
    of: NDArray[np.intp]
    own: Rows


@dataclass(slots=True)
class ExactStage:
    """The labels of one stage on one kind of group with so many micro-batches in flight, within a limit in ns.

    ``fronts`` have the times that count; ``prices`` are the numbers of those of ``labels`` that leave labels out.
    So do weights of passes ``beside``, with the labels of these, and what all weighs at most. Without ``memory``
    it leaves none out, and labels are compared by what they take in each pass alone. Of the first atoms of a stage
    so many ways are told apart at ``most``.
    """

    fronts: Fronts
    labels: StageLabels
    prices: list[int]
    in_flight: int
    room: int
    cell: Cell
    limit: int
    deadline: Deadline = NEVER
    forms: dict[object, tuple[int, ...]] = field(default_factory=dict)
    beside: Sequence[tuple[Numbers, StageLabels, int]] = ()
    memory: bool = True
    most: int | None = None

    def least(self) -> StageLabel | None:
        """Return the label with the least time that fits, if it is below the limit. Raises StoppedError."""
        states = self._states()
        ends = [(int(one.rows[:, TIME].min()), key) for key, one in states[-1].items() if len(one.rows)]
        # Not all that is too long is left out on the way, and of that which is not the best may be gone.
        if not ends or min(ends)[0] >= self.limit:
            return None
        key = min(ends)[1]
        return self._label(states, key, int(states[-1][key].rows[:, TIME].argmin()))

    def all(self) -> Iterator[tuple[Rows, Callable[[], StageLabel] | None]]:
        """Yield the labels below the limit: of each what it takes by pass, and how it is had.

        None: it does not fit. No other is at most in every column. Raises StoppedError, and TooLargeError for too
        many.
        """
        states = self._states()
        for key, one in states[-1].items():
            for at, row in enumerate(one.rows):
                if row[TIME] < self.limit:
                    fits = row[HELD] + row[WORKING] <= self.room
                    yield row[AGAIN:], partial(self._label, states, key, at) if fits else None

    def _states(self) -> list[dict[_State, _Grown]]:
        """Return the labels before the first atom, and behind every one."""
        labels, programs = self.labels, self.fronts.programs
        nodes = labels.way(self.cell.first, self.cell.stop)
        width = programs.all[labels.growth.nodes.program[nodes[0]]].width
        none = np.zeros(1, dtype=np.intp)
        start = np.zeros((1, self.fronts.width), dtype=np.int64)
        outside = labels.growth.outside(labels.growth.nodes.atom[nodes[0]])
        states = [{((OUTSIDE,) * width, outside): _Grown(start, none, [], none, start)}]
        for at, node in enumerate(nodes):
            self.deadline.check()
            states.append(self._grown(states[-1], node, at))
            rows = sum(len(one.rows) for one in states[-1].values())
            if self.most is not None and rows > self.most:
                raise TooLargeError(f"{rows} ways to run a stage")
        return states

    @property
    def kind(self) -> int:
        """Return the kind of group."""
        return self.labels.kind

    def _rule(self) -> FrontRule:
        whole = self.fronts.tables.kinds[self.kind].mode.recompute is True
        return FrontRule(self.kind, Keeps(1, 1 if whole else self.in_flight))

    def _grown(self, before: dict[_State, _Grown], node: int, at: int) -> dict[_State, _Grown]:
        """Return the labels behind the next atom: those that may still be the best."""
        program = self.labels.growth.nodes.program[node]
        parts: dict[_State, _Parts] = {}
        for rule in self.fronts.choices(self._rule(), self.labels.growth.nodes.choices(node)):
            fronts = self._fronts(program, rule, {layouts for layouts, _ in before})
            for left, grown in before.items():
                more, statuses = self._more(node, rule, left, at)
                for right, front in fronts[left[0]].items():
                    own = front + more
                    rows = joined(grown.rows, own)
                    one, other = np.divmod(np.arange(len(rows)), len(own))
                    kept = self._may_win(rows, right, at + 1)
                    if kept.any():
                        part = rows[kept], one[kept], (left, rule), front[other[kept]]
                        parts.setdefault((right, statuses), []).append(part)
        return {key: self._unbeaten(row) for key, row in parts.items()}

    def _fronts(self, program: int, rule: FrontRule, lefts: set[Key]) -> Mapping[Key, States]:
        """Return the fronts of an atom, without those that are beaten if memory is not looked at."""
        fronts = self.fronts.of(program, rule, lefts)
        if self.memory:
            return fronts
        return {left: {right: row[self._best(row)] for right, row in of.items()} for left, of in fronts.items()}

    def _best(self, rows: Rows) -> NDArray[np.intp]:
        """Return the rows that no other is at most in every column that counts."""
        return self.fronts.best(rows[:, 0 if self.memory else AGAIN :], np.zeros(len(rows), dtype=np.int64))

    def _more(self, node: int, rule: FrontRule, left: _State, at: int) -> tuple[Rows, Key]:
        """Return what an atom takes beside its front, computing and what stays of tensors, and their statuses."""
        growth = self.labels.growth
        atom = growth.nodes.atom[node]
        first, stop = list(growth.word.short_space.atoms())[atom]
        computed, again = int(self.fronts.tables.compute[rule.kind, first:stop].sum()), rule.alone is not None
        stays, statuses = growth.lending.after(growth.lending.of_atom[atom], left, (at, self.kind), again=again)
        more = np.zeros(self.fronts.width, dtype=np.int64)
        more[[TIME, HELD]] = computed, self.in_flight * stays
        return more, statuses

    def _may_win(self, rows: Rows, right: Key, at: int) -> NDArray[np.bool_]:
        """Tell which labels may still end within limit and room, by what the rest weighs at least."""
        kept = (rows[:, HELD] + rows[:, WORKING] <= self.room) | (not self.memory)
        sums = self.labels.growth.sums
        place = tuple(sums.ends.index(sums.alike.get(form, form)) for form in right)
        rests = self.labels.rests(self.cell.first, self.cell.stop)[at][place]
        spare = np.minimum(rows[:, HELD] + rows[:, WORKING] - self.room, 0)
        for one in self.prices if self.memory else (0,):
            weighed = sums.weights.scale * rows[:, TIME] + self.labels.prices[one][0] * spare
            kept &= weighed + int(rests[one]) < sums.weights.scale * self.limit
        for often, labels, limit in self.beside:
            rest = int(labels.rests(self.cell.first, self.cell.stop)[at][place][0])
            kept &= rows[:, AGAIN:] @ often + rest < limit
        return kept

    def _label(self, states: list[dict[_State, _Grown]], key: _State, row: int) -> StageLabel:
        """Go back from a label to the first atom."""
        nodes = self.labels.way(self.cell.first, self.cell.stop)
        time, held, working = (int(one) for one in states[-1][key].rows[row][:AGAIN])
        forms: list[tuple[int, ...]] = []
        again: list[int] = []
        for at in range(len(nodes) - 1, -1, -1):
            grown = states[at + 1][key]
            left, rule = grown.left[grown.of[row]]
            program = self.labels.growth.nodes.program[nodes[at]]
            width = self.fronts.programs.all[program].width
            forms.append(self._forms_of(program, rule, (left[0][:width], key[0]), grown.own[row]))
            if rule.alone is not None:
                again.append(at)
            key, row = left, int(grown.before[row])
        amounts = Amounts(time=time, each=time, once=held, working=working)
        return StageLabel(
            self.kind, tuple(form for row in reversed(forms) for form in row), tuple(reversed(again)), amounts
        )

    def _forms_of(self, program: int, rule: FrontRule, ends: tuple[Key, Key], own: Rows) -> tuple[int, ...]:
        """Return the forms of an atom, which are looked for once for all that are alike."""
        known = (id(self.fronts), program, rule, ends, own.tobytes())
        if known not in self.forms:
            self.forms[known] = tuple(self.fronts.forms(program, rule, ends, own))
        return self.forms[known]

    def _unbeaten(self, parts: _Parts) -> _Grown:
        rows = np.concatenate([part[0] for part in parts])
        before = np.concatenate([part[1] for part in parts])
        of = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
        own = np.concatenate([part[3] for part in parts])
        best = self._best(rows)
        return _Grown(rows[best], before[best], [part[2] for part in parts], of[best], own[best])
