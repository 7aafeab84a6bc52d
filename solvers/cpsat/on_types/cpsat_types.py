"""The declarative engine on the reduced problem: CP-SAT over types of stages, one model for a number of stages.

*Lower tables, prove, settle what the proof used, ask again.* Counts of types (``solvers.cpsat.on_types.counts``)
say what plans with so many stages take at least. Where that is below the best plan the whole model
(``solvers.cpsat.on_types.type_model``) is asked for the best one with so many. The stages of its answer are
settled; if that changes one, it is asked again. Else the answer is a plan, and the evaluator prices it to the same
value.

Tables are those of ``reduced_dp``, the engine is another one: no suffix of a plan, no interval of slowest stages.
So it sees what no programme over suffixes does: layers that are to be apart or in a certain stage, numbers of
stages, limits on other goals.

The executed step: critical paths are cuts, and plans are closed one by one. The model's step is at least what
every known path through it takes, with a least pair of passes for each stage. Its answer is made a plan, which the
evaluator prices; where the critical path of that plan takes more than the model said, it is a path from then on.
Where stages are settled and no path is missing, what is left is how each stage is run: paths are weighed
(``solvers.reduce.executed.leaves``), and the answer is closed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from ortools.sat.python import cp_model

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.limits import StoppedError
from pipecut.formulation.outcome import Limits, Outcome, begin
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import FORBIDDEN, Instance, longest_run_ns
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.cpsat.engine import found as has_assignment
from pipecut.solvers.cpsat.engine import make_solver, run
from pipecut.solvers.cpsat.on_types.accepts_types import NAME, accepts, bare
from pipecut.solvers.cpsat.on_types.counts import CountModel
from pipecut.solvers.cpsat.on_types.type_model import TypeModel, TypeQuestion, along
from pipecut.solvers.cpsat.on_types.types import TypeSpace
from pipecut.solvers.reduce.executed.leaves import Leaves, counted_passes, rows_of
from pipecut.solvers.reduce.intervals import ByFormula
from pipecut.solvers.reduce.programme import Cell, time_of
from pipecut.solvers.reduce.reduced_stages import ReducedStages
from pipecut.solvers.reduce.seats import SeatLine, has_a_first_stage
from pipecut.solvers.reduce.word import Word
from pipecut.solvers.search.incumbent import Incumbent
from pipecut.solvers.search.stoppable import stoppable
from pipecut.solvers.search.support import capped
from pipecut.solvers.step_time.bounds.paths import PassPath, longest_path

EFFORTS = (0.05, 1.0)
"""Counts are asked for with so much effort, about seconds, before the whole model is; last, stages are settled."""
ROUNDED = 1e-9
"""So much less than CP-SAT says of a bound is believed."""


def proposed(stages: ReducedStages) -> Plan | None:
    """Return a first plan by the other engine, which the evaluator prices."""
    first = ByFormula(stages, FORBIDDEN)
    first.first_plans()
    return first.plan


@dataclass(slots=True)
class TypeSearch:
    """The search of one number of micro-batches: ``bounds[S]`` is what no plan with S stages is below.

    ``done`` are numbers of which no more can be found out.
    """

    known: Incumbent
    space: TypeSpace
    asked: int = 0
    bounds: dict[int, int] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    def run(self) -> None:
        """Search to the end. Raises StoppedError where time is over; what is known then stays."""
        known, stages = self.known, self.space.stages
        fewest, most = stages.numbers
        self.bounds = dict.fromkeys(range(fewest, most + 1), known.lower)
        if not self.bounds:
            known.lower = known.upper
            return
        known.offer(proposed(stages))
        times = dict.fromkeys(self.bounds, 0)
        while not known.closed:
            count = min(self.bounds.keys() - self.done, key=lambda one: (self.bounds[one], one), default=None)
            if count is None or self.bounds[count] >= known.upper:
                return
            if times[count] == len(EFFORTS):
                self.raised(count, self.proved(count))
            elif not self._counted(count, times[count]):
                times[count] += 1

    def _counted(self, count: int, time: int) -> bool:
        """Ask counts what no plan with so many stages is below; tell whether stages were settled that they use."""
        ask = TypeQuestion.of(self.space, count, self.known.upper - 1)
        model = CountModel.of(ask)
        bound, cells = (self.known.upper, None) if model is None else self.solved(model, EFFORTS[time])
        self.raised(count, bound)
        if cells is None or any(not self.space.stands(cell) for cell in cells):
            return False
        last = time == len(EFFORTS) - 1
        if last or not ask.executed:  # a bound by counts is far from an executed step, and so are their plans
            self.offer(cells)
        return last and bound < self.known.upper and self.settle(ask, cells, bound)

    def offer(self, cells: list[Cell]) -> Plan | None:
        """Offer the plan of some stages, and return it. Raises StoppedError where time is over."""
        self.known.limits.deadline.check()
        plan = self.space.stages.plan(cells)
        self.known.offer(plan)
        return plan

    def raised(self, count: int, bound: int) -> None:
        """Take over what no plan with so many stages is below."""
        self.bounds[count] = max(self.bounds[count], bound)
        least = min(*self.bounds.values(), self.known.upper)
        if least > self.known.lower:
            self.known.lower = least
            self.known.tell()

    def proved(self, count: int) -> int:
        """Return the least value of plans with so many stages, or that of the best plan where none is below."""
        while True:
            ask = TypeQuestion.of(self.space, count, self.known.upper - 1)
            model = TypeModel.of(ask)
            value, cells = (self.known.upper, None) if model is None else self.solved(model)
            if cells is None:
                return value
            if not self.settle(ask, cells, value):
                return self._priced(cells, value)
            self.raised(count, value)
            self.offer(cells)

    def solved(self, asked: TypeModel | CountModel, effort: float | None = None) -> tuple[int, list[Cell] | None]:
        """Return the least value and stages that have it; the value of the best plan, and None, for none.

        With an ``effort``, in units of CP-SAT's deterministic time, what it has found by then. Raises StoppedError
        where time is over before.
        """
        self.asked += 1
        limits = self.known.limits
        limits.deadline.check()
        if not isinstance(asked.value, int):
            asked.model.minimize(asked.value)
        solver = make_solver(limits)
        if effort is not None:
            solver.parameters.max_deterministic_time = effort
        status = run(solver, asked.model, limits.deadline.over)
        cells = asked.cells(solver.value) if has_assignment(status) else None
        if status == cp_model.INFEASIBLE:
            return self.known.upper, None
        if status == cp_model.OPTIMAL:
            return solver.value(asked.value), cells
        if effort is None and cells is not None:
            self.offer(cells)
        limits.deadline.check()
        if effort is None:
            raise StoppedError
        # The bound of CP-SAT is a floating-point number.
        return int(solver.best_objective_bound * (1 - ROUNDED)), cells

    def settle(self, ask: TypeQuestion, cells: list[Cell], value: int) -> bool:
        """Settle the stages of an answer as far as they are of use; tell whether anything changed."""
        stages, last, changed = self.space.stages, len(cells) - 1, False
        line = self.space.line
        for at, cell in enumerate(cells):
            time = int(stages.least(int(line.seat[cell.x, cell.size]), last - at)[cell.first, cell.stop])
            spare = [time + (cap.most - value) // cap.total for cap in ask.caps[:1] if cap.total]
            changed |= stages.settle(cell, last - at, min(ask.most_ns, *spare, FORBIDDEN - 1) + 1)
        return changed

    def _priced(self, cells: list[Cell], value: int) -> int:
        """Take the plan of settled stages. Raises LookupError if there is none of that value."""
        plan = self.space.stages.plan(cells)
        if plan is None:
            raise LookupError("stages that were settled are no plan")
        self.known.take(plan, value)
        if self.known.upper != value:
            raise LookupError("stages that were settled take less than their bounds")
        return value


def critical_path(instance: Instance, plan: Plan) -> PassPath:
    """Return a longest path through the step of a plan."""
    rows = rows_of(instance, plan, (counted_passes(instance, stage) for stage in plan.stages))
    return longest_path(instance.training, rows.astype(np.float64))


@dataclass(slots=True)
class StepSearch(TypeSearch):
    """The search of one number of micro-batches, by number of stages.

    ``paths`` are cuts, ``closed`` plans that are settled, and ``left`` what those of them take at least that paths
    left open.
    """

    paths: dict[int, list[PassPath]] = field(default_factory=dict)
    closed: dict[int, list[tuple[Cell, ...]]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    leaves: Leaves | None = None

    def proved(self, count: int) -> int:
        """Return what no plan with so many stages is below."""
        known, paths, closed = self.known, self.paths.setdefault(count, []), self.closed.setdefault(count, [])
        while True:
            left = self.left.get(count, FORBIDDEN)
            ask = TypeQuestion.of(self.space, count, known.upper - 1)
            ask = replace(ask, paths=tuple(paths), closed=tuple(closed))
            model = TypeModel.of(ask)
            value, cells = (known.upper, None) if model is None else self.solved(model)
            self.raised(count, min(value, left))
            if cells is None or value >= left:
                if min(value, left) < known.upper:
                    self.done.add(count)
                return min(known.upper, left)
            plan = self.offer(cells)
            if self.settle(ask, cells, value):
                continue
            path = None if plan is None else critical_path(known.instance, plan)
            if path is not None and self._taken(path, cells) > value:
                paths.append(path)
                continue
            closed.append(tuple(cells))
            self._close(count, cells, value)

    def _close(self, count: int, cells: list[Cell], value: int) -> None:
        """Weigh the paths of a plan; what is left of it below the best plan is left for good."""
        known = self.known
        if self.leaves is None:
            judged = replace(known.instance, goals=known.instance.goals[:1])
            self.leaves = Leaves(judged, self.space.stages, self._offered)
        found = self.leaves.bound(cells, value, known.upper, ways=True)
        if found < known.upper:
            self.left[count] = min(self.left.get(count, FORBIDDEN), found)

    def _offered(self, plan: Plan, _: int) -> int:
        self.known.offer(plan)
        return self.known.upper

    def _taken(self, path: PassPath, cells: list[Cell]) -> int:
        """Return what a path takes at least with these stages."""
        space, line, total = self.space, self.space.line, 0
        stages, boundaries = along(path)
        for slot, (cell, (many, ends)) in enumerate(zip(reversed(cells), stages, strict=True)):
            seat = int(line.seat[cell.x, cell.size])
            times = space.whole(seat, slot) if ends else space.stages.least(seat, slot)
            total += many * int(times[cell.first, cell.stop])
        rows = zip(boundaries, reversed([*pairwise(cells)]), strict=True)
        for many, (one, two) in rows:
            total += many * int(line.crossing[line.joint[two.x, one.size, two.size], two.first])
        return total

    def settle(self, ask: TypeQuestion, cells: list[Cell], value: int) -> bool:
        """Settle the stages of an answer as far as they are of use; tell whether anything changed.

        With more than that its own way through the step takes too long, whatever the other stages do.
        """
        stages, last, many, changed = self.space.stages, len(cells) - 1, ask.micro_batches, False
        rows = [
            (last - at, cell, time_of(self.space.line, stages.least, cell, last - at))
            for at, cell in enumerate(cells)
        ]
        before, total, most = 0, sum(time for *_, time in rows), self.known.upper - 1
        for slot, cell, time in rows:
            limit = (most - before) // many
            if many >= slot + 2:
                limit = min(limit, (most - before - 2 * (total - before - time)) // (many - slot))
            changed |= stages.settle(cell, slot, limit + 1)
            before += time
        return changed


@stoppable(NAME, best=True)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Find the plan with the least first goal and prove it, or the best within the limits with an honest bound.

    Raises ValueError where :func:`accepts` has a reason, and TooLargeError where stages are of too many types.
    """
    limits = begin(limits)
    accepts(instance).refuse()
    known = Incumbent(NAME, instance, limits, most_of(instance) + 1, lower_bound(instance))
    known.begin_where_known()
    known.offer()
    if not has_a_first_stage(instance):
        known.lower = known.upper
        return known.outcome()
    executed = instance.goals[0] is Goal.STEP_TIME
    search = (StepSearch if executed else TypeSearch)(known, space_of(instance, limits))
    with contextlib.suppress(StoppedError):
        search.run()
    return known.outcome(f"{search.asked} models were solved")


def most_of(instance: Instance) -> int:
    """Return a value of the first goal that no plan exceeds."""
    if instance.goals[0] in (Goal.DEVICES, Goal.STAGES):
        return instance.devices
    return longest_run_ns(instance, instance.training.micro_batches)


def space_of(instance: Instance, limits: Limits) -> TypeSpace:
    """Return the types of the stages of an instance. Cost: the tables of ``reduced_dp``."""
    instance = capped(instance)
    word, executed = Word.of(bare(instance)), instance.goals[0] is Goal.STEP_TIME
    line = SeatLine.of(word.whole, word.space)
    return TypeSpace(ReducedStages.of(word, line, limits.deadline, each=executed), instance)
