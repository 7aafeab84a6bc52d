"""The least time of one stage that fits, exactly: labels of its atoms joined as far as they can be the best.

Where memory is short the fastest forms may not fit, and the best mix of forms and of atoms that are computed again
is no least weighted sum. For a single stage all unbeaten labels (``solvers.atoms.fronts``) are joined atom by
atom: first from the last one on, by what they take and hold alone. What is before them, weighed at some
prices of a byte, leaves out almost all. Then it is known exactly what each beginning of a stage may *end* with: as
memory is filled by whole blocks, no price of a byte says what fits just so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.limits import NEVER, Deadline, TooLargeError
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.solvers.atoms.fronts import FrontRule, Fronts
from pipecut.solvers.atoms.labels import AGAIN, HELD, START, TIME, WORKING, best_labels, joined
from pipecut.solvers.atoms.labels import Labels as Rows
from pipecut.solvers.atoms.programs import OUTSIDE, Key
from pipecut.solvers.reduce.cell_labels import Amounts, StageLabel, StageLabels
from pipecut.solvers.reduce.form_sums import Numbers
from pipecut.solvers.reduce.programme import Cell

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
    So do weights of passes ``beside``, with the labels of these, and what all weighs at most. Between two atoms so
    many labels are told apart at ``most``. ``endings`` are what the atoms from each place on may take and hold.
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
    most: int | None = None
    endings: list[dict[_State, Rows]] = field(default_factory=list)

    def least(self) -> StageLabel | None:
        """Return the label with the least time that fits, if it is below the limit. Raises StoppedError."""
        self._end()
        ends = self.endings[0].get(self._start, START[:0])[:, TIME]
        least = int(ends.min(initial=FORBIDDEN))
        if least >= self.limit:
            return None
        self.limit = least + 1
        states = self._states()
        return self._label(states, next(iter(states[-1])), 0)

    def all(self) -> Iterator[tuple[Rows, Callable[[], StageLabel]]]:
        """Yield the labels below the limit: of each what it takes by pass, and how it is had.

        No other is at most in every column. Raises StoppedError, and TooLargeError for too many.
        """
        self._end()
        states = self._states()
        for key, one in states[-1].items():
            for at, row in enumerate(one.rows):
                yield row[AGAIN:], partial(self._label, states, key, at)

    def _states(self) -> list[dict[_State, _Grown]]:
        """Return the labels before the first atom, and behind every one."""
        none = np.zeros(1, dtype=np.intp)
        start = np.zeros((1, self.fronts.width), dtype=np.int64)
        states = [{self._start: _Grown(start, none, [], none, start)}]
        for at in range(len(self._nodes)):
            states.append(self._grown(states[-1], at))
            if self.most is not None and (rows := sum(len(one.rows) for one in states[-1].values())) > self.most:
                raise TooLargeError(f"{rows} ways to run a stage")
        return states

    def _end(self) -> None:
        """Find what the atoms from each place on take and hold, by state, where all may be below the limit."""
        prices = np.array([self.labels.prices[one][0] for one in self.prices])
        scale, steps = self.labels.growth.sums.weights.scale, list[list[tuple[_State, _State, Rows]]]()
        before = [{self._start: np.zeros(len(prices), dtype=np.int64)}]
        for at in range(len(self._nodes)):
            rows = [
                (left, right, best_labels(own[:, :AGAIN]))
                for left, _, right, _, own in self._steps(before[-1], at)
            ]
            after = dict[_State, Numbers]()
            for left, right, own in rows:
                least = (scale * own[:, TIME, None] + prices * own[:, HELD, None]).min(axis=0) + before[-1][left]
                after[right] = np.minimum(after[right], least) if right in after else least
            steps.append(rows)
            before.append(after)
        found = [{state: START for state in before[-1]}]
        for at in range(len(steps) - 1, -1, -1):
            parts = dict[_State, list[Rows]]()
            for left, right, own in steps[at]:
                rows = joined(own, found[-1].get(right, START[:0]))
                spare = rows[:, HELD] + rows[:, WORKING] - self.room
                weighed = scale * rows[:, TIME, None] + prices * spare[:, None] + before[at][left]
                kept = (spare <= 0) & (weighed < scale * self.limit).all(axis=1)
                parts.setdefault(left, []).append(rows[kept])
            found.append({state: best_labels(np.concatenate(rows)) for state, rows in parts.items()})
        self.endings = found[::-1]

    @property
    def _nodes(self) -> list[int]:
        return self.labels.way(self.cell.first, self.cell.stop)

    @property
    def _start(self) -> _State:
        growth, node = self.labels.growth, self._nodes[0]
        width = self.fronts.programs.all[growth.nodes.program[node]].width
        return (OUTSIDE,) * width, growth.outside(growth.nodes.atom[node])

    def _rule(self) -> FrontRule:
        whole = self.fronts.tables.kinds[self.labels.kind].mode.recompute is True
        return FrontRule(self.labels.kind, Keeps(1, 1 if whole else self.in_flight))

    def _grown(self, before: dict[_State, _Grown], at: int) -> dict[_State, _Grown]:
        """Return the labels behind the next atom: those that may still be the best."""
        parts: dict[_State, _Parts] = {}
        for left, rule, right, front, own in self._steps(before, at):
            rows = joined(before[left].rows, own)
            one, other = np.divmod(np.arange(len(rows)), len(own))
            kept = self._may_win(rows, right, at + 1)
            if kept.any():
                part = rows[kept], one[kept], (left, rule), front[other[kept]]
                parts.setdefault(right, []).append(part)
        return {key: self._unbeaten(row) for key, row in parts.items()}

    def _steps(self, lefts: Iterable[_State], at: int) -> Iterator[tuple[_State, FrontRule, _State, Rows, Rows]]:
        """Yield how an atom leads from one state to the next, by which rule, its front, and all that it takes."""
        self.deadline.check()
        node, nodes = self._nodes[at], self.labels.growth.nodes
        known = list(lefts)
        for rule in self.fronts.choices(self._rule(), nodes.choices(node)):
            fronts = self.fronts.of(nodes.program[node], rule, {layouts for layouts, _ in known})
            for left in known:
                more, statuses = self._more(nodes.atom[node], rule, left, at)
                for right, front in fronts[left[0]].items():
                    yield left, rule, (right, statuses), front, front + more

    def _more(self, atom: int, rule: FrontRule, left: _State, at: int) -> tuple[Rows, Key]:
        """Return what an atom takes beside its front, computing and what stays of tensors, and their statuses."""
        growth = self.labels.growth
        first, stop = list(growth.word.short_space.atoms())[atom]
        computed, again = int(self.fronts.tables.compute[rule.kind, first:stop].sum()), rule.alone is not None
        stays, statuses = growth.lending.after(
            growth.lending.of_atom[atom], left, (at, self.labels.kind), again=again
        )
        more = np.zeros(self.fronts.width, dtype=np.int64)
        more[[TIME, HELD]] = computed, self.in_flight * stays
        return more, statuses

    def _may_win(self, rows: Rows, state: _State, at: int) -> NDArray[np.bool_]:
        """Tell which labels may still end within limit and room, by what the rest weighs at least."""
        kept, sums = np.ones(len(rows), dtype=np.bool_), self.labels.growth.sums
        place = tuple(sums.ends.index(sums.alike.get(form, form)) for form in state[0])
        for often, labels, limit in self.beside:
            rest = int(labels.rests(self.cell.first, self.cell.stop)[at][place][0])
            kept &= rows[:, AGAIN:] @ often + rest < limit
        kept[kept] = self._may_end(rows[kept], self.endings[at].get(state, START[:0]))
        return kept

    def _may_end(self, rows: Rows, endings: Rows) -> NDArray[np.bool_]:
        """Tell which labels are within limit and room with one of some endings."""
        least = np.full(len(rows), FORBIDDEN, dtype=np.int64)
        for working in np.unique(endings[:, WORKING]):
            some = endings[endings[:, WORKING] == working]
            some = some[np.argsort(some[:, HELD], kind="stable")]
            times = np.concatenate([[FORBIDDEN], np.minimum.accumulate(some[:, TIME])])
            spare = self.room - rows[:, HELD] - np.maximum(rows[:, WORKING], working)
            least = np.minimum(least, times[np.searchsorted(some[:, HELD], spare, side="right")])
        return rows[:, TIME] + least < self.limit

    def _label(self, states: list[dict[_State, _Grown]], key: _State, row: int) -> StageLabel:
        """Go back from a label to the first atom."""
        nodes = self._nodes
        time, held, working = (int(one) for one in states[-1][key].rows[row][:AGAIN])
        forms: list[tuple[int, ...]] = []
        again: list[int] = []
        for at, (right, grown, of) in zip(reversed(range(len(nodes))), _way(states, key, row), strict=True):
            (left, _), rule = grown.left[grown.of[of]]
            program = self.labels.growth.nodes.program[nodes[at]]
            width = self.fronts.programs.all[program].width
            forms.append(self._forms_of(program, rule, (left[:width], right), grown.own[of]))
            if rule.alone is not None:
                again.append(at)
        amounts = Amounts(time=time, each=time, once=held, working=working)
        return StageLabel(
            self.labels.kind,
            tuple(form for row in reversed(forms) for form in row),
            tuple(reversed(again)),
            amounts,
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
        best = self.fronts.best(rows, np.zeros(len(rows), dtype=np.int64))
        return _Grown(rows[best], before[best], [part[2] for part in parts], of[best], own[best])


def _way(states: list[dict[_State, _Grown]], key: _State, row: int) -> Iterator[tuple[Key, _Grown, int]]:
    """Yield the labels that one is made of, the last first: layouts behind them, and where they are."""
    for one in reversed(states[1:]):
        grown = one[key]
        yield key[0], grown, row
        key, row = grown.left[grown.of[row]][0], int(grown.before[row])
