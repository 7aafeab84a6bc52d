"""The stages of plans with one number of micro-batches: lower bounds first, exact where a proof uses them.

*Lower tables, prove, settle what the proof used, ask again.* Two things are lower than they are at first: cells
where memory is short (``solvers.reduce.cells``), and seats across servers or with devices of several classes,
which have the prices of those over better links, in the slowest of these classes alone. A stage of a plan that
would be the best is *settled*: its seat is priced itself, and its least time found exactly
(``solvers.reduce.exact``). A bound that rests on settled stages alone is that of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.limits import NEVER, Deadline
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.units import Link
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.solvers.atoms.fronts import Fronts, Passes
from pipecut.solvers.reduce.cell_labels import StageLabel, StageLabels
from pipecut.solvers.reduce.cells import Cells, PricedPasses, priced_groups
from pipecut.solvers.reduce.exact import ExactStage
from pipecut.solvers.reduce.form_sums import Numbers
from pipecut.solvers.reduce.kinds import of_kinds, stand_ins
from pipecut.solvers.reduce.programme import Cell, pace_ns
from pipecut.solvers.reduce.seats import SeatLine
from pipecut.solvers.reduce.word import Word
from pipecut.solvers.step_time.bounds.rays import weighed

NEAR = 4
"""Prices that leave labels out are from so many times below to so many times above the least at which one fits."""


@dataclass(frozen=True, slots=True)
class _Seat:
    """Where the kinds of a seat are priced: cells, and the numbers of its kinds there, one for each group.

    One kind may stand for those of several groups.
    """

    cells: Cells
    kinds: tuple[int, ...]

    @property
    def distinct(self) -> list[int]:
        """Return the numbers of its kinds, each once."""
        return sorted(set(self.kinds))


def _seats(word: Word, of: Mapping[int, Sequence[Group]], deadline: Deadline, *, each: bool) -> dict[int, _Seat]:
    """Price the kinds of some groups; return where those of each seat are, or what stands for them."""
    groups = tuple(dict.fromkeys(group for row in of.values() for group in row))
    priced = priced_groups(word, groups, deadline)
    kinds, kind_of = priced[0].kinds, dict(zip(groups, priced[0].kind_of, strict=True))
    stands = stand_ins(priced)
    cells = Cells.of(word, of_kinds(priced, sorted(set(stands))), deadline, each=each)
    number = {kind: at for at, kind in enumerate(cells.kinds)}
    known = {group: number[kinds[stands[kind]]] for group, kind in kind_of.items()}
    return {seat: _Seat(cells, tuple(known[group] for group in row)) for seat, row in of.items()}


@dataclass(slots=True)
class ReducedStages:
    """All stages that plans may have: ``least`` by seat and slot, and labels that are among the fastest.

    ``firsts`` are the seats that no other one stands for, and those that were priced themselves.
    """

    word: Word
    line: SeatLine
    deadline: Deadline
    each: bool
    _seats: dict[int, _Seat]
    firsts: set[int]
    _known: dict[tuple[int, int], Numbers] = field(default_factory=dict)
    _final: dict[tuple[int, int], NDArray[np.bool_]] = field(default_factory=dict)
    _exact: dict[tuple[int, int, int, int], tuple[int, StageLabel | None]] = field(default_factory=dict)
    _most: int = FORBIDDEN
    _others: dict[Callable[[Cells, Deadline], Cells], ReducedStages] = field(default_factory=dict)
    _labels_of: dict[tuple[int, int, int, int], StageLabel | None] = field(default_factory=dict)
    _labels: dict[tuple[int, int, int], StageLabels] = field(default_factory=dict)
    _forms: dict[object, tuple[int, ...]] = field(default_factory=dict)
    _fronts: dict[int, Fronts] = field(default_factory=dict)

    @staticmethod
    def of(word: Word, line: SeatLine, deadline: Deadline = NEVER, *, each: bool = False) -> ReducedStages:
        """Price the seats of a line, each that is no better than another in its place at first.

        Times are those of ``each`` pass, or with what is done once a step charged to them.
        """
        instance, like = word.short, dict[int, int]()
        every = iter(GroupKind.all_of(instance, chain.from_iterable(line.groups)))
        kinds = [tuple(islice(every, len(groups))) for groups in line.groups]
        speed = [min(instance.device_classes[at].flops_per_second for at in one.classes) for one, *_ in kinds]
        for seat in sorted(range(len(kinds)), key=lambda at: len(kinds[at][0].classes)):
            firsts = [one for one in like if like[one] == one and _no_worse(kinds[one], kinds[seat])]
            like[seat] = min(firsts, key=speed.__getitem__, default=seat)
        firsts = [seat for seat, one in like.items() if one == seat]
        of = _seats(word, {seat: line.groups[seat] for seat in firsts}, deadline, each=each)
        return ReducedStages(word, line, deadline, each, {seat: of[one] for seat, one in like.items()}, {*firsts})

    def charged(self) -> ReducedStages:
        """Return the same stages with what is done once a step charged to its micro-batches."""
        return self._with(Cells.charged)

    def ending(self) -> ReducedStages:
        """Return the same stages with all of what is done once a step in their times."""
        return self._with(Cells.ending)

    def _with(self, made: Callable[[Cells, Deadline], Cells]) -> ReducedStages:
        if made not in self._others:
            cells = {id(one.cells): one.cells for one in self._seats.values()}
            known = {at: made(one, self.deadline) for at, one in cells.items()}
            seats = {seat: _Seat(known[id(one.cells)], one.kinds) for seat, one in self._seats.items()}
            others = ReducedStages(self.word, self.line, self.deadline, False, seats, set(self.firsts))
            self._others[made] = others
        return self._others[made]

    def weighed(
        self, seat: int, priced: PricedPasses, often: Numbers, stage: tuple[int, int], *, apart: bool = False
    ) -> ReducedStages:
        """Return one stage on a seat, in which passes and synchronisation count so often in place of times.

        What differs in any pass is told ``apart``, for :meth:`listed`.
        """
        tables, passes = weighed(priced.tables, priced.passes, often), priced.passes if apart else None
        cells = Cells.of(self.word, (tables, priced.held), self.deadline, only=stage, passes=passes)
        seats = {seat: _Seat(cells, priced.tables.kind_of)}
        return ReducedStages(self.word, self.line, self.deadline, False, seats, {seat})

    def promising(self, cell: Cell, slot: int) -> list[tuple[int, Group]]:
        """Return the groups that a stage may have, with what it takes at least on each, the least first."""
        seat = int(self.line.seat[cell.x, cell.size])
        self._split(seat)
        where, node = self._seats[seat], self._node(seat, cell)
        bounds = where.cells.least(self.in_flight(slot))[list(where.kinds), node]
        rows = zip(bounds.tolist(), self.line.groups[seat], strict=True)
        return sorted(((bound, group) for bound, group in rows if bound < FORBIDDEN), key=lambda one: one[0])

    @property
    def atoms(self) -> int:
        """Return the number of atoms."""
        return self.word.space.stops

    @property
    def micro_batches(self) -> int:
        """Return the number of micro-batches of a step."""
        return self.word.short.training.micro_batches

    @property
    def numbers(self) -> tuple[int, int]:
        """Return how many stages a plan has at least and at most: groups, where each holds several."""
        asked, most = self.word.whole.demands, min(self.atoms, self.line.devices // min(self.line.sizes))
        if self.word.apart:
            return 1, most
        return asked.stages_at_least or 1, min(asked.stages_at_most or most, most)

    def in_flight(self, slot: int) -> int:
        """Return how many micro-batches a stage in a slot has in flight."""
        return Keeps.in_slot(self.word.short.training, slot).in_flight

    def taken(self, label: StageLabel) -> int:
        """Return the time of a label that counts here."""
        return label.amounts.each if self.each else label.amounts.time

    def least(self, seat: int, slot: int) -> Numbers:
        """Return ``[first atom, atom behind the last]``: the least time of a stage; FORBIDDEN where none fits."""
        return self._least(seat, self.in_flight(slot))

    def _least(self, seat: int, in_flight: int) -> Numbers:
        if (seat, in_flight) not in self._known:
            least, at = self._bounds(seat, in_flight).min(axis=0), self._seats[seat].cells.nodes.at
            self._known[seat, in_flight] = np.where(at >= 0, least[at], FORBIDDEN)
        return self._known[seat, in_flight]

    def leave_out(self, most: int) -> bool:
        """Leave out kinds on which a stage takes too long with what it does once a step, in plans below a value.

        A step takes no less than all passes of a stage, and that. Tell whether anything may have changed.
        """
        if not self.each or self.word.apart or most >= self._most:
            return False
        self._most, known = most, dict(self._known)
        self._known.clear()
        for (seat, in_flight), row in known.items():
            self._known[seat, in_flight] = np.maximum(self._least(seat, in_flight), row)
        return True

    def _bounds(self, seat: int, in_flight: int) -> Numbers:
        """Return ``[kind, node]``: the least time on each kind of a seat; FORBIDDEN where that is of no use."""
        charged = 0 if self._most == FORBIDDEN else self._alike(self.charged(), seat)._bounds(seat, in_flight)
        where = self._seats[seat]
        found = where.cells.least(in_flight)[where.distinct]
        # Where no value is known that plans have to be below, nothing is left out.
        return np.where(self._in_a_step(charged) < self._most, found, FORBIDDEN)

    def _alike(self, other: ReducedStages, seat: int) -> ReducedStages:
        """Return the same stages with other times, in which a seat is priced itself if it is here."""
        if (seat in self.firsts) != (seat in other.firsts):
            self._split(seat)
            other._split(seat)
        return other

    def _in_a_step(self, charged: Numbers | int) -> Numbers:
        # What is charged to a layer was rounded up, and so was what is charged to a copy of weights.
        many, rounded = self.micro_batches, 2 * len(self.word.whole.layers)
        return many * (np.minimum(charged, FORBIDDEN // many) - rounded)

    def whole(self, seat: int, slot: int) -> Numbers:
        """Return ``[first atom, atom behind the last]``: what a stage takes in a step at least, all in all.

        That is all its pairs of passes, in any way to run it, and what is then done once a step.
        """
        return self._in_a_step(self._alike(self.charged(), seat).least(seat, slot))

    def ended(self, seat: int, slot: int) -> Numbers:
        """Return the same with all that is done once a step: where that is charged to passes it is in them."""
        return self.least(seat, slot)

    def final(self, seat: int, slot: int) -> NDArray[np.bool_]:
        """Return ``[first atom, atom behind the last]``: whether the least time is that of a stage that fits."""
        key = seat, self.in_flight(slot)
        if key not in self._final:
            self._final[key] = np.zeros((self.atoms + 1, self.atoms + 1), dtype=np.bool_)
        return self._final[key]

    def pace_ns(self) -> int:
        """Return what the slowest stage of any plan takes at least."""
        return pace_ns(self.line, lambda seat: self.least(seat, 0))

    def settle(self, cell: Cell, slot: int, limit: int) -> bool:
        """Price the stage of a plan exactly as far as it may be below a limit; tell whether anything changed."""
        if self.word.apart:
            return False
        seat, in_flight = int(self.line.seat[cell.x, cell.size]), self.in_flight(slot)
        if self._split(seat):
            return True
        before = int(self.least(seat, slot)[cell.first, cell.stop])
        where = self._seats[seat]
        node = int(where.cells.nodes.at[cell.first, cell.stop])
        kinds = where.distinct
        bounds, best = self._bounds(seat, in_flight)[:, node], limit
        for at in np.argsort(bounds, kind="stable"):
            if int(bounds[at]) >= best:
                break
            best = min(best, self._settled(where.cells, kinds[at], in_flight, cell, best))
        if best < limit:
            self.final(seat, slot)[where.cells.nodes.at == node] = True
        if best <= before:
            return False
        known = self._known[seat, in_flight]
        known[where.cells.nodes.at == node] = best
        return True

    def label(self, cell: Cell, slot: int) -> tuple[Group, StageLabel] | None:
        """Return a stage that fits and is among the fastest; None if none was found."""
        seat, in_flight = int(self.line.seat[cell.x, cell.size]), self.in_flight(slot)
        self._split(seat)
        where = self._seats[seat]
        node, kinds = int(where.cells.nodes.at[cell.first, cell.stop]), where.distinct
        bounds = self._bounds(seat, in_flight)[:, node]
        best: tuple[int, int] | None = None
        found: StageLabel | None = None
        for at in np.argsort(bounds, kind="stable"):
            if int(bounds[at]) >= (FORBIDDEN if best is None else best[0]):
                break
            label = self._fitting(where.cells, kinds[at], in_flight, cell)
            if label is not None and (best is None or self.taken(label) < best[0]):
                best, found = (self.taken(label), int(at)), label
        if best is None or found is None:
            return None
        mode = where.cells.kinds[kinds[best[1]]].mode
        return Group.on_line(self.word.short, cell.x, self.line.sizes[cell.size], mode), found

    def plan(self, cells: Sequence[Cell], longest: int = FORBIDDEN) -> Plan | None:
        """Return the plan of some cells, first to last; None where one has no stage that fits and is no longer."""
        stages = list[Stage]()
        for index, cell in enumerate(cells):
            found = self.label(cell, len(cells) - 1 - index)
            if found is None or self.taken(found[1]) > longest:
                return None
            stages.append(self.stage_of(cell, *found))
        return Plan(tuple(stages))

    def at_least(self, plan: Plan) -> list[int]:
        """Return what tables say that the stages of a plan on this line take at least; FORBIDDEN: none fits.

        Nothing where a stage is on devices that no stage may have.
        """
        found, x = list[int](), 0
        for at, stage in enumerate(plan.stages):
            run, seat = self.word.space.run(stage.span), self.line.seat_of(x, stage.group)
            if seat < 0:
                return []
            found.append(int(self.least(seat, len(plan) - 1 - at)[run.first, run.stop]))
            x += stage.group.devices
        return found

    def stage_of(self, cell: Cell, group: Group, label: StageLabel) -> Stage:
        """Return the stage of a cell on a group with a label."""
        atoms = list(self.word.space.atoms())
        again = tuple(Span(*atoms[cell.first + at]) for at in label.again)
        return Stage(self.word.space.layers(Span(cell.first, cell.stop)), group, label.forms, again=again)

    def like(self, cell: Cell) -> tuple[object, ...]:
        """Return what stages have in common that are run and priced alike."""
        seat = int(self.line.seat[cell.x, cell.size])
        return seat, self._node(seat, cell), self.word.of_atom[cell.first : cell.stop]

    def _node(self, seat: int, cell: Cell) -> int:
        return int(self._seats[seat].cells.nodes.at[cell.first, cell.stop])

    def _split(self, seat: int) -> bool:
        """Price a seat itself that had the prices of another; tell whether it had."""
        if seat in self.firsts:
            return False
        self._seats |= _seats(self.word, {seat: self.line.groups[seat]}, self.deadline, each=self.each)
        self.firsts.add(seat)
        self._known = {key: one for key, one in self._known.items() if key[0] != seat}
        return True

    def _settled(self, cells: Cells, kind: int, in_flight: int, cell: Cell, limit: int) -> int:
        """Return the least time of a stage of a kind, or the limit where that is no less."""
        node = int(cells.nodes.at[cell.first, cell.stop])
        bound = int(cells.least(in_flight)[kind, node])
        key = (id(cells), kind, in_flight, node)
        # What was searched up to a lower limit in vain is longer than that; with a label it is as long as it.
        done, known = self._exact.get(key, (bound, None))
        if known is not None or done >= limit:
            return min(limit, done)
        label = self._fitting(cells, kind, in_flight, cell)
        if label is not None:
            limit = min(limit, self.taken(label))
        found = self._search(cells, kind, in_flight, cell, limit).least() if limit > done else None
        if found is None and label is not None and self.taken(label) == limit:
            found = label
        if found is not None:
            self._labels_of[key] = found
        self._exact[key] = (limit if found is None else self.taken(found)), found
        return self._exact[key][0]

    def _fitting(self, cells: Cells, kind: int, in_flight: int, cell: Cell) -> StageLabel | None:
        """Return a label of a kind that fits, among the fastest that are known."""
        node = int(cells.nodes.at[cell.first, cell.stop])
        key = (id(cells), kind, in_flight, node)
        if key not in self._labels_of:
            self._labels_of[key] = self._mixed(cells, kind, in_flight, cell)
        return self._labels_of[key]

    def _room(self, cells: Cells, kind: int, in_flight: int, cell: Cell) -> int:
        """Return what a device has for a stage, its working set included."""
        if cells.held is None:
            return FORBIDDEN
        node = int(cells.nodes.at[cell.first, cell.stop])
        return int(cells.room(in_flight)[kind, node] + cells.working[kind, node])

    def _mixed(self, cells: Cells, kind: int, in_flight: int, cell: Cell) -> StageLabel | None:
        """Return the label at the lowest price of a byte at which it fits, with cheaper atoms as far as it can."""
        ends, room = (cell.first, cell.stop), self._room(cells, kind, in_flight, cell)
        labels, at = self._weighed(cells, kind, in_flight), self._cheapest(cells, kind, in_flight, cell)
        if at is None:
            return None
        label = labels.label(*ends, at)
        path, cheap = (labels.path(*ends, one) for one in (at, max(0, at - 1)))
        if at == 0 or path is None or label is None or cheap is None:
            return label
        few, many = 0, len(path)
        while few < many:
            middle = (few + many) // 2
            some = labels.mixed(path, cheap, middle, ends, at - 1)
            fits = some is not None and some.amounts.held(in_flight) <= room
            few, many = (few, middle) if fits else (middle + 1, many)
        some = labels.mixed(path, cheap, many, ends, at - 1)
        fits = some is not None and some.amounts.held(in_flight) <= room
        return some if some and fits and self.taken(some) <= self.taken(label) else label

    def _cheapest(self, cells: Cells, kind: int, in_flight: int, cell: Cell) -> int | None:
        """Return the number of the lowest price of a byte at which the label of a stage fits, None for none.

        The higher the price the less is held.
        """
        labels, room = self._weighed(cells, kind, in_flight), self._room(cells, kind, in_flight, cell)
        node, many = int(cells.nodes.at[cell.first, cell.stop]), len(labels.prices)

        def fits(at: int) -> bool:
            label = labels.label(cell.first, cell.stop, at)
            return label is not None and label.amounts.held(in_flight) <= room

        # It is near the price by which the stage takes most.
        at = cells.price(kind, node, in_flight)
        while at < many and not fits(at):
            at += 1
        while 0 < at < many and fits(at - 1):
            at -= 1
        return at if at < many else None

    def _search(self, cells: Cells, kind: int, in_flight: int, cell: Cell, limit: int) -> ExactStage:
        """Return the labels with times below a limit."""
        room, labels = self._room(cells, kind, in_flight, cell), self._weighed(cells, kind, in_flight)
        at = self._cheapest(cells, kind, in_flight, cell)
        near = labels.prices[-1 if at is None else at][0]
        rows = [n for n, (price, _) in enumerate(labels.prices) if near <= NEAR * price and price <= NEAR * near]
        return ExactStage(
            self._fronts_of(cells), labels, rows, in_flight, room, cell, limit, self.deadline, self._forms
        )

    def listed(
        self,
        cell: Cell,
        slot: int,
        limit: int,
        beside: Sequence[tuple[Numbers, ReducedStages, int]],
        most: int,
    ) -> Iterator[tuple[Numbers, Group, Callable[[], StageLabel]]]:
        """Yield all ways to run a stage that weigh less than a limit: passes, group, and how the label is had.

        And less with other weights ``beside``, of each the stages and the limit. In all of these what differs in
        any pass is told apart (:meth:`weighed`), and memory is limited. Each way that is left out is in no pass
        better than one that is there. Raises StoppedError, and TooLargeError where more than ``most`` have to be
        told apart on the way.
        """
        seat, in_flight = int(self.line.seat[cell.x, cell.size]), self.in_flight(slot)
        cells, kinds = self._seats[seat].cells, self._seats[seat].distinct
        bounds = cells.least(in_flight)[kinds, self._node(seat, cell)]
        for kind in (kind for kind, bound in zip(kinds, bounds.tolist(), strict=True) if bound < limit):
            group = Group.on_line(self.word.short, cell.x, self.line.sizes[cell.size], cells.kinds[kind].mode)
            search = self._search(cells, kind, in_flight, cell, limit)
            search.most = most
            search.beside = [
                (often, other._weighed(other._seats[seat].cells, kind, in_flight), below)
                for often, other, below in beside
            ]
            for passes, label in search.all():
                yield passes, group, label

    def _weighed(self, cells: Cells, kind: int, in_flight: int) -> StageLabels:
        key = (id(cells), kind, in_flight)
        if key not in self._labels:
            self._labels[key] = StageLabels.of(cells, kind, cells.prices(kind, in_flight))
        return self._labels[key]

    def _fronts_of(self, cells: Cells) -> Fronts:
        if id(cells) not in self._fronts:
            held = cells.held
            if held is None:
                raise ValueError("memory is not limited")
            tables = cells.tables
            if self.each:
                tables = replace(tables, inside=tables.each, copies=tables.copies_each)
            sums = cells.growth.sums
            taken = cells.passes and Passes(cells.passes.layers, cells.passes.changes, cells.passes.copies)
            self._fronts[id(cells)] = Fronts(tables, held, sums.programs, sums.alike, taken)
        return self._fronts[id(cells)]


def _no_worse(one: Sequence[GroupKind], other: Sequence[GroupKind]) -> bool:
    """Tell whether kinds differ from others by links that are no slower, and classes that they lack, alone.

    Whatever devices of several classes do takes what it takes on the slowest of them, and they hold what the
    smallest one does.
    """
    # Asked first, as it tells most pairs apart.
    alike = one[0].devices == other[0].devices and {*one[0].classes} <= {*other[0].classes}
    return alike and len(one) == len(other) and all(map(_kind_no_worse, one, other))


def _kind_no_worse(one: GroupKind, other: GroupKind) -> bool:
    axes = zip(one.axes or (None, None), other.axes or (None, None), strict=True)
    linked = all(_no_slower(a, b) for a, b in [(one.link, other.link), (one.inner, other.inner), *axes])
    return linked and _bare(one, one.classes) == _bare(other, one.classes)


def _bare(kind: GroupKind, classes: tuple[int, ...]) -> GroupKind:
    """Return a kind without links, as far as devices of some of its classes go."""
    at, shares = [kind.classes.index(one) for one in classes], kind.shares
    rows, columns = (
        replace(one, by_class=tuple(one.by_class[own] for own in at)) for one in (shares.rows, shares.columns)
    )
    unequal = replace(shares, rows=rows, columns=columns)
    return replace(kind, classes=classes, link=None, inner=None, axes=None, unequal=unequal)


def _no_slower(one: Link | None, other: Link | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.bits_per_second >= other.bits_per_second and one.latency_ns <= other.latency_ns
