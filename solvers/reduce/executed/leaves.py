"""The best plan of one composition as executed: paths of a step weighed against the ways to run its stages.

A step takes as long as the longest of its paths: sums of forward and backward passes, transfers, and the
synchronisation of one stage. With weights of some paths every stage has a least weighted sum of its own, whatever
the others do (``ReducedStages.weighed``), and no plan of the composition is below the sum of these, divided by the
weights. One side weighs paths, the other answers with the ways that take least, as in
``solvers.step_time.bounds.game``: each answer is a plan, whose critical path is weighed from then on. Mostly the
first critical path settles it, as what takes least on the way of the slowest stage is what was chosen.

Ways of one stage may mix to what none of them is, as a first stage that synchronises less and computes more. A gap
that weights leave is closed by all ways of that stage which may be in a better plan: of many at once the least
passes are taken, and they are parted until nothing is left. They are few, as each path says what they may take.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.passes import stage_passes
from pipecut.formulation.costs.times import activation_ns, gradient_ns
from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.problem.groups import Group, Mode
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.plan import Plan, Stage
from pipecut.formulation.problem.units import ceil_div
from pipecut.solvers.reduce.cell_labels import StageLabel
from pipecut.solvers.reduce.cells import PricedPasses
from pipecut.solvers.reduce.form_sums import Numbers
from pipecut.solvers.reduce.programme import Cell, time_of
from pipecut.solvers.reduce.reduced_stages import ReducedStages
from pipecut.solvers.step_time.bounds.game import equilibrium
from pipecut.solvers.step_time.bounds.paths import COUNTED, ROWS, SENT, PassPath, longest_path

ROUNDS = 12
"""So often paths are weighed anew."""
Way = tuple[Numbers, Group, Callable[[], StageLabel]]
"""What a stage takes in each pass, and its group, and how its label is had."""
UNIT_BITS, SUM_BITS = 16, 54
"""Weights add up to so much at most, and weighted sums stay below so many bits."""


def counted_passes(instance: Instance, stage: Stage) -> tuple[int, ...]:
    """Return a stage's forward pass, backward pass with what it computes again, and synchronisation."""
    found = stage_passes(instance, stage, halves=False)
    return found.forward_ns, found.backward_ns + found.again_ns, found.sync_ns


def rows_of(instance: Instance, plan: Plan, passes: Iterable[tuple[int, ...]]) -> Numbers:
    """Return ``[row, stage]``: the passes of the stages of a plan, and what is transferred behind each."""
    rows = np.zeros((ROWS, len(plan)), dtype=np.int64)
    for at, (stage, own) in enumerate(zip(plan.stages, passes, strict=True)):
        rows[COUNTED, at] = own
        if at:
            where = stage.span.first, plan.link_before(instance, at)
            rows[SENT, at - 1] = activation_ns(instance, *where), gradient_ns(instance, *where)
    return rows


@dataclass(slots=True)
class _Known:
    """What is known of a composition: paths, and plans with their passes, ``passes[row, stage]``.

    ``modes`` are those that some stages are looked at in, or the same computing everything again. ``chosen`` are
    passes that some stages take at least, in the ways that are looked at, and count in place of their own.
    ``limits`` are counts of passes by stage, and what it weighs less than, by the weights of the last answer.
    """

    cells: list[Cell]
    paths: list[PassPath]
    plans: list[Plan]
    passes: list[Numbers]
    bound: int
    modes: dict[int, Mode] = field(default_factory=dict)
    chosen: dict[int, Numbers] = field(default_factory=dict)
    limits: list[tuple[Numbers, int]] = field(default_factory=list)

    def add(self, path: PassPath) -> None:
        """Take in a path where it is a new one."""
        if not any(np.array_equal(path.often, one.often) for one in self.paths):
            self.paths.append(path)

    def differing(self) -> list[int]:
        """Return the stages that stand in several ways in the plans, those in the fewest first."""
        ways = [len({tuple(rows[COUNTED, at]) for rows in self.passes}) for at in range(len(self.cells))]
        return sorted((at for at, many in enumerate(ways) if many > 1), key=ways.__getitem__)

    def mixed(self) -> list[int]:
        """Return the stages that stand in several modes in the plans, and are not looked at in one."""
        open_ = [at for at in range(len(self.cells)) if at not in self.modes and at not in self.chosen]
        return [at for at in open_ if len({plan.stages[at].group.mode for plan in self.plans}) > 1]

    def lightest(self, at: int, counts: Numbers) -> tuple[int, Stage]:
        """Return what a stage of a known plan weighs at least, and that stage."""
        sums = [int(passes[COUNTED, at] @ counts) for passes in self.passes]
        least = min(sums)
        stage = self.plans[sums.index(least)].stages[at]
        return (int(self.chosen[at] @ counts) if at in self.chosen else least), stage


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a stage weighs at least, if that is below a limit, with all ways to run such a stage."""

    limit: int
    value: int
    cell: Cell
    stages: ReducedStages | None


@dataclass(slots=True)
class Leaves:
    """The compositions of one instance.

    ``take`` is told of every plan that is found on the way, and what it takes, and returns what plans have to be
    below from then on, which is ``most``. Of the ways to run a stage so many ``rows`` are told apart at most.
    """

    instance: Instance
    stages: ReducedStages
    take: Callable[[Plan, int], int]
    most: int = FORBIDDEN
    rows: int = 40_000
    _priced: dict[tuple[int, tuple[Group, ...]], PricedPasses] = field(default_factory=dict)
    _passes: dict[object, tuple[int, ...]] = field(default_factory=dict)
    _answers: dict[object, _Answer] = field(default_factory=dict)

    def value(self, cells: list[Cell], plan: Plan | None) -> None:
        """Tell what a plan of a composition takes, if there is one."""
        if plan is not None:
            self._learn(_Known(cells, [], [], [], 0), plan)

    def bound(self, cells: list[Cell], bound: int, below: int, *, ways: bool = False) -> int:
        """Return what no plan of a composition is below, given such a bound; no more than ``below``.

        By weights of paths; where these leave a gap by all the ``ways`` to run one stage after another, too.
        """
        first = self.stages.plan(cells)
        if first is None:  # by what was learned since, plans with one of these stages may be of no use
            slots = range(len(cells) - 1, -1, -1)
            times = [time_of(self.stages.line, self.stages.least, *one) for one in zip(cells, slots, strict=True)]
            return min(below, self.most) if max(times) >= FORBIDDEN else bound
        known = _Known(cells, [], [], [], bound)
        self._learn(known, first)
        return self._closed(known, below) if ways else self._weighed(known, below)

    def _closed(self, known: _Known, below: int) -> int:
        """Weigh paths; then try the modes, or the ways, of a stage that differs among the plans of the weights.

        Of the one that differs least first: what is chosen coarsely leaves the larger gaps.
        """
        found = self._weighed(known, below)
        if found < min(below, self.most) and (mixed := known.mixed()):
            return max(found, self._by_modes(known, mixed[0], below))
        for at in known.differing() if self.instance.constraints.memory else ():
            if found >= min(below, self.most):
                break
            with suppress(TooLargeError):
                ways = self._ways(known, at, min(below, self.most))
                found = max(found, self._parted(known, at, ways, below) if ways else min(below, self.most))
        return found

    def _by_modes(self, known: _Known, at: int, below: int) -> int:
        """Return what no plan is below, with a stage in one mode after another."""
        if not (limits := self._limits(known, at, below)):
            return known.bound
        (own, limit), cell, slot = limits[0], known.cells[at], len(known.cells) - 1 - at
        groups = self._promising(cell, slot, int(min(own[0], own[1])), limit)
        modes = [group.mode for group in groups]
        alone = [one for one in modes if not one.recompute or replace(one, recompute=False) not in modes]
        least = [(found, mode) for mode in alone if (found := self._lighter(cell, slot, own, limit, mode))]
        left = FORBIDDEN
        for (_, stage), mode in sorted(least, key=lambda one: one[0][0]):
            if left <= known.bound:
                break
            some = replace(known, plans=[], passes=[], modes={**known.modes, at: mode})
            for plan in known.plans:
                of = plan.stages[at] if plan.stages[at].group.mode == mode else stage
                self._learn(some, Plan((*plan.stages[:at], of, *plan.stages[at + 1 :])))
            left = min(left, self._closed(some, below))
        return min(left, below, self.most)

    def _limits(self, known: _Known, at: int, below: int) -> list[tuple[Numbers, int]]:
        """Return counts of passes of a stage, and what it weighs less than: by all weights, and by each path."""
        limits = list[tuple[Numbers, int]]()
        for paths in (known.paths, *([path] for path in known.paths)):
            some = replace(known, paths=paths, limits=[])
            self._answered(some, min(below, self.most))
            limits += some.limits[at : at + 1]
        return limits

    def _ways(self, known: _Known, at: int, below: int) -> list[Way]:
        """Return the ways of a stage that plans below may have by all weights and by each path.

        Raises TooLargeError where they are too many, or nothing leaves any out.
        """
        if not (limits := self._limits(known, at, below)):
            raise TooLargeError("no limit to the ways of a stage")
        cell, slot, (often, limit) = known.cells[at], len(known.cells) - 1 - at, limits[0]
        seat = int(self.stages.line.seat[cell.x, cell.size])
        groups = self._promising(cell, slot, int(min(often[0], often[1])), limit, known.modes.get(at))
        if not groups:
            return []
        priced, ends = self._price(seat, groups), (cell.first, cell.stop)
        first, *others = (self.stages.weighed(seat, priced, one, ends, apart=True) for one, _ in limits)
        beside = [(one, stages, most) for (one, most), stages in zip(limits[1:], others, strict=True)]
        return list(first.listed(cell, slot, limit, beside, self.rows))

    def _parted(self, known: _Known, at: int, ways: list[Way], below: int) -> int:
        """Return what no plan with one of some ways of a stage is below: of many by their least, then by halves.

        Those of the least bound come first.
        """
        passes = np.array([one for one, *_ in ways])
        open_, left = [(known.bound, list(range(len(ways))))], FORBIDDEN
        while open_ and open_[0][0] < min(below, self.most, left):
            self.stages.deadline.check()
            if len(some := heapq.heappop(open_)[1]) == 1:
                left = min(left, self._closed(self._with(known, at, [ways[some[0]]]), below))
                continue
            column = passes[:, np.argmax(np.ptp(passes[some], axis=0))]
            order = sorted(some, key=column.__getitem__)
            for half in (order[: len(order) // 2], order[len(order) // 2 :]):
                bound = self._weighed(self._with(known, at, [ways[one] for one in half]), below)
                heapq.heappush(open_, (bound, half))
        return min(left, below, self.most, *(bound for bound, _ in open_[:1]))

    def _with(self, known: _Known, at: int, ways: list[Way]) -> _Known:
        """Return what is known of the plans with one of some ways of a stage: it takes their least at least."""
        least = np.min([one for one, *_ in ways], axis=0)
        found = replace(known, plans=[], passes=[], chosen={**known.chosen, at: least})
        _, group, label = ways[0]
        stage = self.stages.stage_of(known.cells[at], group, label())
        for plan in known.plans:
            self._learn(found, Plan((*plan.stages[:at], stage, *plan.stages[at + 1 :])))
        return found

    def _weighed(self, known: _Known, below: int) -> int:
        """Weigh paths until that says no more; return what no plan is below then, no more than the best one."""
        for _ in range(ROUNDS):
            limit = min(below, self.most)
            answer = self._answered(known, limit)
            if answer is None or known.bound >= limit:
                return min(known.bound, limit)
            many = len(known.paths), len(known.plans)
            self._learn(known, answer)
            self._mix(known)
            if (len(known.paths), len(known.plans)) == many:
                break
        return min(known.bound, below, self.most)

    def _learn(self, known: _Known, plan: Plan) -> None:
        """Take in a plan: its passes, and its critical path where that is a new one."""
        own = [self._passes_of(stage, cell) for stage, cell in zip(plan.stages, known.cells, strict=True)]
        rows = rows_of(self.instance, plan, own)
        path = longest_path(self.instance.training, rows.astype(np.float64))
        self.most = min(self.most, self.take(plan, int(path.length)))
        if known.chosen:
            for at, least in known.chosen.items():
                rows[COUNTED, at] = least
            path = longest_path(self.instance.training, rows.astype(np.float64))
        if not any(np.array_equal(rows, one) for one in known.passes):
            known.plans.append(plan)
            known.passes.append(rows)
            known.add(path)

    def _mix(self, known: _Known) -> None:
        """Take in the critical path of a mixture of the plans that is worst for all paths together."""
        _, shares = equilibrium(self._payoff(known))
        mean = np.tensordot(shares, np.stack(known.passes).astype(np.float64), 1)
        known.add(longest_path(self.instance.training, mean))

    def _payoff(self, known: _Known) -> NDArray[np.float64]:
        """Return what every plan takes on every path."""
        return np.array([[float((one.often * passes).sum()) for passes in known.passes] for one in known.paths])

    def _passes_of(self, stage: Stage, cell: Cell) -> tuple[int, ...]:
        """Return the passes and the synchronisation of a stage, found once for all that are alike."""
        again = tuple(span.first - stage.span.first for span in stage.again)
        key = self.stages.like(cell), stage.group.mode, stage.forms, again
        if key not in self._passes:
            self._passes[key] = counted_passes(self.instance, stage)
        return self._passes[key]

    def _weights(self, known: _Known, below: int) -> tuple[int, Numbers]:
        """Return how much paths weigh together, and how often they go through everything, by row and stage."""
        if len(known.paths) == 1:
            return 1, known.paths[0].often
        often = np.stack([path.often for path in known.paths])
        shares, _ = equilibrium(self._payoff(known))
        unit = 1 << max(0, min(UNIT_BITS, SUM_BITS - below.bit_length()))
        whole = np.maximum(0, np.round(unit * shares)).astype(np.int64)
        if not whole.any():
            whole[0] = 1
        divisor = int(np.gcd.reduce(whole))
        return int(whole.sum()) // divisor, np.tensordot(whole // divisor, often, 1)

    def _answered(self, known: _Known, below: int) -> Plan | None:
        """Weigh paths; return the plan that takes least by them; None where the composition has none below."""
        unit, often = self._weights(known, below)
        transfers = int((often[SENT] * known.passes[0][SENT]).sum())
        counts = [often[COUNTED, stage] for stage in range(len(known.cells))]
        slots = range(len(known.cells) - 1, -1, -1)
        rows = list(zip(known.cells, slots, counts, strict=True))
        least = [int(min(own[0], own[1])) * self._pair(cell, slot) for cell, slot, own in rows]
        most, answers = unit * below - transfers, list[Stage]()
        for at, (cell, slot, own) in enumerate(rows):
            limit = most - sum(least) + least[at]
            value, stage = known.lightest(at, own)
            below_own, mode = min(limit, value), known.modes.get(at)
            if at not in known.chosen and (lighter := self._lighter(cell, slot, own, below_own, mode)):
                value, stage = lighter
            least[at] = max(least[at], min(value, limit))
            answers.append(stage)
            if value >= limit:
                break
        if len(answers) == len(rows) or sum(least) >= most:
            known.bound = max(known.bound, ceil_div(sum(least) + transfers, unit))
            known.limits = [(counts[at], most - sum(least) + one) for at, one in enumerate(least)]
        return Plan(tuple(answers)) if len(answers) == len(rows) else None

    def _pair(self, cell: Cell, slot: int) -> int:
        return int(self.stages.least(int(self.stages.line.seat[cell.x, cell.size]), slot)[cell.first, cell.stop])

    def _lighter(
        self, cell: Cell, slot: int, often: Numbers, limit: int, mode: Mode | None
    ) -> tuple[int, Stage] | None:
        """Return what a stage weighs at least, in a mode or in any; None where it is no less than a limit."""
        key = self.stages.like(cell), self.stages.in_flight(slot), tuple(int(one) for one in often), mode
        answer = self._answers.get(key)
        if answer is None or (answer.value >= answer.limit and answer.limit < limit):
            answer = self._asked_for(cell, slot, often, limit, mode)
            self._answers[key] = answer
        if answer.stages is None or answer.value >= limit:
            return None
        found = answer.stages.label(replace(answer.cell, x=cell.x), slot)
        return None if found is None else (answer.value, self.stages.stage_of(cell, *found))

    def _asked_for(self, cell: Cell, slot: int, often: Numbers, limit: int, mode: Mode | None) -> _Answer:
        seat = int(self.stages.line.seat[cell.x, cell.size])
        groups = self._promising(cell, slot, int(min(often[0], often[1])), limit, mode)
        if not groups:
            return _Answer(limit, limit, cell, None)
        weighed = self.stages.weighed(seat, self._price(seat, groups), often, (cell.first, cell.stop))
        weighed.settle(cell, slot, limit)
        return _Answer(limit, int(weighed.least(seat, slot)[cell.first, cell.stop]), cell, weighed)

    def _promising(
        self, cell: Cell, slot: int, pairs: int, limit: int, mode: Mode | None = None
    ) -> tuple[Group, ...]:
        """Return the groups of a mode, or of any, that may weigh less than the limit, as their pairs of passes do.

        With each the one of the same devices that computes everything again, which prices single blocks.
        """
        known = dict[Group, None]()
        rows = self.stages.promising(cell, slot)
        for bound, group in rows:
            # A mode stands for the one that computes everything again, which may take less where memory is short.
            if pairs * bound < limit and (mode is None or group.mode in (mode, replace(mode, recompute=True))):
                known[group] = None
                known.setdefault(replace(group, mode=replace(group.mode, recompute=True)), None)
        there = {group for _, group in rows} | set(
            self.stages.line.groups[int(self.stages.line.seat[cell.x, cell.size])]
        )
        return tuple(group for group in known if group in there)

    def _price(self, seat: int, groups: tuple[Group, ...]) -> PricedPasses:
        if (seat, groups) not in self._priced:
            self._priced[seat, groups] = PricedPasses.of(self.stages.word, groups, self.stages.deadline)
        return self._priced[seat, groups]
