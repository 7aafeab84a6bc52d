"""Search for the order that makes a step shortest: fix a horizon T, ask CP-SAT whether anything ends by it.

The search begins between a proven bound (``bounds``) and the best fixed order, and closes in on the optimum by
whole nanoseconds: "nothing ends by UB - 1" is the proof (``solvers.search.incumbent``). A schedule counts at what
the timeline says of it, never at what the model says.

What fixed orders lose against the proved optimum of the same stages and devices, in the same memory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from fractions import Fraction

from ortools.sat.python import cp_model

from pipecut.formulation.outcome import FalseClaimError, Limits, Progress, Proof
from pipecut.formulation.problem.units import ceil_div
from pipecut.formulation.schedules.table import Action, PipelineSchedule
from pipecut.solvers.cpsat.engine import found, make_solver, run
from pipecut.solvers.search.incumbent import close, questions
from pipecut_literature.orders.bounds import Bounds
from pipecut_literature.orders.families import OrderVariables, build
from pipecut_literature.orders.fixed import (
    Executed,
    OrderOutcome,
    checked,
    execute,
    fixed_orders,
    least_memory,
    memory_excess,
)
from pipecut_literature.orders.problem import OrderProblem

NAME = "best"
"""What the schedule that was found is called."""
QUARTERS = (4, 2, 1, 3)
"""Where, between bound and best, the questions are asked in turn."""
PATIENCE_S = 1.0
"""What the first question may take; twice as much after each left open, so that in the end all are answered."""


def solve(
    problem: OrderProblem, limits: Limits, *, in_turn: bool = True, valid: bool = True, bounds: bool = True
) -> OrderOutcome:
    """Return the order of actions in which one optimiser step ends first, and how sure that is, checked.

    The outcome holds the order as a schedule, which takes ``makespan_ns`` on the timeline, recomputed. OPTIMAL:
    no order is shorter. FEASIBLE: stopped early (``limits``), or links are shared by several passes with
    contention, so that only the bound is proved. INFEASIBLE: not even one micro-batch at a time fits into memory.
    ``in_turn`` and ``valid`` are those of ``families.build``; without ``bounds`` the search begins at 0. Raises
    FalseClaimError where the solver contradicts the timeline (a defect). Cost: exponential at worst; each
    question to the solver is linear in actions, with shared links quadratic in messages.
    """
    began_s, limits = time.monotonic(), limits.begun()
    asked = problem.stretched()
    least = least_memory(asked)
    if not least.fits(asked):
        notes = tuple(memory_excess(asked, least))
        seconds = time.monotonic() - began_s
        return checked(problem, OrderOutcome(Proof.INFEASIBLE, None, None, None, seconds, None, notes))
    orders = {name: one for name, one in fixed_orders(asked).items() if one.fits(asked)}
    start = min(orders, key=lambda name: orders[name].makespan_ns)
    best = orders[start]
    lower = Bounds(asked).best_ns() if bounds else 0
    search = _OrderSearch(
        asked, limits, began_s, in_turn, valid, best.schedule, best.makespan_ns, lower, problem.stretch
    )
    return checked(problem, _shrunk(problem, search.outcome(start)))


def _shrunk(problem: OrderProblem, outcome: OrderOutcome) -> OrderOutcome:
    """Return what an outcome for the stretched problem says of the problem itself (``OrderProblem.stretched``)."""
    factor, bound, schedule = problem.stretch, outcome.bound_ns, outcome.schedule
    if factor == 1 or bound is None or schedule is None:
        return outcome
    makespan, bound = execute(problem, schedule).makespan_ns, _shrunk_bound_ns(bound, factor)
    proof = Proof.OPTIMAL if bound >= makespan else Proof.FEASIBLE
    return replace(outcome, proof=proof, makespan_ns=makespan, bound_ns=bound)


def _shrunk_bound_ns(bound_ns: int, factor: int) -> int:
    """Return what no makespan is below if none of the stretched problem is below a bound."""
    return max(0, ceil_div(bound_ns - factor + 1, factor))


@dataclass(slots=True)
class _OrderSearch:
    """The state of a search: the best schedule with its makespan, and a proven lower limit, both stretched.

    ``upper``: horizons from here on have been answered with yes. That is the makespan itself unless rows
    executed as soon as possible can end after the times that were found for them (shared links).
    """

    problem: OrderProblem
    limits: Limits
    began_s: float
    in_turn: bool
    valid: bool
    schedule: PipelineSchedule
    makespan_ns: int
    lower: int
    stretch: int
    asked: int = 0
    upper: int = 0
    patience_s: float = PATIENCE_S

    def outcome(self, start: str) -> OrderOutcome:
        """Search, and say what came of it."""
        self.upper = self.makespan_ns
        close(self, self._next_horizon, self._ask)
        proved = self.lower >= self.makespan_ns
        notes = [questions(self.asked)]
        if not proved and self.lower >= self.upper:
            notes.append("links are shared: the bound allows devices to wait before they ask for one")
        seconds = time.monotonic() - self.began_s
        proof = Proof.OPTIMAL if proved else Proof.FEASIBLE
        return OrderOutcome(proof, self.schedule, self.makespan_ns, self.lower, seconds, start, tuple(notes))

    def _next_horizon(self) -> int:
        """Return where to ask next: the highest horizon that is open, which would end the search, or inside."""
        quarters = QUARTERS[self.asked % len(QUARTERS)]
        return self.lower + (self.upper - 1 - self.lower) * quarters // 4

    def _ask(self, horizon_ns: int) -> bool | None:
        """Ask for an execution within a horizon; a question that takes too long is left for an easier one."""
        v = build(self.problem, horizon_ns, in_turn=self.in_turn, valid=self.valid)
        solver = _scheduler(self.limits.within(self.patience_s))
        status = run(solver, v.model, self.limits.deadline.over)
        if found(status):
            self._take(_schedule(v, solver), horizon_ns)
            return True
        if status == cp_model.INFEASIBLE:
            return False
        if status == cp_model.MODEL_INVALID:
            raise FalseClaimError(f"order of actions: invalid model: {v.model.validate()}")
        self.patience_s *= 2
        return None

    def _take(self, schedule: PipelineSchedule, horizon_ns: int) -> None:
        """Keep a schedule at what the timeline says of it, which must keep the promise of the horizon."""
        executed = execute(self.problem, schedule)
        wrong = memory_excess(self.problem, executed)
        if executed.makespan_ns > horizon_ns and self.problem.follows_from_rows:
            wrong.append(f"accepted at {horizon_ns} ns, the timeline takes {executed.makespan_ns} ns")
        if wrong:
            raise FalseClaimError("order of actions: " + "; ".join(wrong))
        self.upper = min(horizon_ns, executed.makespan_ns)
        if executed.makespan_ns < self.makespan_ns:
            self.schedule, self.makespan_ns = schedule, executed.makespan_ns

    def over(self) -> bool:
        """Tell whether the limits are used up."""
        return self.limits.deadline.over()

    def tell(self) -> None:
        """Report makespan and bound, unstretched."""
        makespan, bound = self.makespan_ns // self.stretch, _shrunk_bound_ns(self.lower, self.stretch)
        self.limits.progress(Progress(makespan, bound))


def _scheduler(limits: Limits) -> cp_model.CpSolver:
    """Set up CP-SAT so that it branches on which of two actions comes first where that is open.

    Else two actions that do not fit beside one another push each other on by what is missing, a few nanoseconds
    at a time: without this 11 of the 480 random cases of the ``ordering`` study stay open after 10 s, with it 0.
    """
    solver = make_solver(limits)
    solver.parameters.use_dynamic_precedence_in_disjunctive = True
    return solver


def _schedule(v: OrderVariables, solver: cp_model.CpSolver) -> PipelineSchedule:
    """Read the rows from a solution: every rank does its actions in the order in which they begin."""
    rows: list[list[tuple[int, Action]]] = [[] for _ in range(v.problem.ranks)]
    for (stage, kind), begins in v.begin.items():
        for m, begin in enumerate(begins):
            rows[v.problem.stage_ranks[stage]].append((solver.value(begin), Action(stage, kind, m)))
    ordered = [[action for _, action in sorted(row, key=lambda one: one[0])] for row in rows]
    return PipelineSchedule.of_actions(NAME, ordered)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The best order, and every fixed order by name as its authors have it: executed, whether it fits or not."""

    problem: OrderProblem
    outcome: OrderOutcome
    fixed: dict[str, Executed]

    def fits(self, name: str) -> bool:
        """Tell whether a fixed order keeps within the memory of every rank."""
        return self.fixed[name].fits(self.problem)

    def loss(self, name: str) -> Fraction | None:
        """Return by how much of the best order's makespan a fixed order is longer; None if it does not fit.

        None, too, where the best order takes no time. A lower limit of the loss to the optimum unless the outcome
        is OPTIMAL.
        """
        best = self.outcome.makespan_ns
        if not best or not self.fits(name):
            return None
        return Fraction(self.fixed[name].makespan_ns - best, best)


def compare(problem: OrderProblem, limits: Limits) -> Comparison:
    """Return the best order beside the fixed ones. Cost: that of ``solve``.

    Naive, GPipe and 1F1B are executed with whole backward passes even where the problem has split ones: an order
    of split passes can always do at least as well, by doing ``W`` right after ``I``. (Where the weight gradient
    needs more bytes than the whole stash, it may need more memory.)
    """
    fixed = fixed_orders(replace(problem, split=False))
    if problem.split:
        fixed = fixed_orders(problem) | fixed
    return Comparison(problem, solve(problem, limits), fixed)
