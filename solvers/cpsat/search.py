"""Search on the value of the objective: fix a threshold T and ask "is there a plan that takes at most T?".

Minimising a maximum in one go leaves CP-SAT with weak limits on every stage; with T fixed they are yes/no
tables. The upper limit comes from a plan that the evaluator has priced, the lower one from areas; each answer
moves one of them, and "no plan takes UB - 1" is the proof (a destructive lower bound). Objectives are whole
numbers, so the search ends.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from formulation.constraints.violation import told
from formulation.costs.amounts import goal_amount, plural
from formulation.evaluate import evaluate
from formulation.limits.deadline import StoppedError
from formulation.outcome import FalseClaimError, Limits, Outcome, Progress, Proof
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan
from solvers.cpsat.base.engine import found, make_solver, run
from solvers.cpsat.base.variables import Variables

TIDY_WORK = 1.0
"""Deterministic time that CP-SAT may spend on a tidier optimal plan (about seconds)."""


@dataclass(frozen=True, slots=True)
class Question:
    """A way to ask for a plan of at most T: how to build the model, and how to read a plan from it."""

    build: Callable[[int], Variables]
    read: Callable[[Variables, cp_model.CpSolver], Plan]


@dataclass(slots=True)
class Search:
    """The state of one search: best plan and its price (upper), proved lower limit, thresholds asked.

    Without a plan, ``upper`` is one above a value that no plan exceeds: "no" below it means that there is none.
    """

    instance: Instance
    question: Question
    limits: Limits
    plan: Plan | None
    lower: int
    upper: int
    steps: int = 0
    began_s: float = field(default_factory=time.monotonic)

    def outcome(self, solver: str) -> Outcome:
        """Search, and say what came of it. The objective is the evaluator's price of the plan.

        A model that is not finished in time leaves everything as it was before its question.
        """
        if self.plan is not None:
            self.upper = price_of(self.instance, self.plan)
        with contextlib.suppress(StoppedError):
            self._search()
            if self.plan is not None and self.lower >= self.upper:
                self._tidy()
        return Outcome(
            solver=solver,
            proof=self._proof(),
            plan=self.plan,
            objective=None if self.plan is None else self.upper,
            bound=None if self._proof() is Proof.INFEASIBLE else self.lower,
            seconds=time.monotonic() - self.began_s,
            notes=(f"{self.steps} {plural(self.steps, 'threshold')} asked",),
        )

    def _proof(self) -> Proof:
        if self.plan is None:
            return Proof.INFEASIBLE if self.lower >= self.upper else Proof.UNKNOWN
        return Proof.OPTIMAL if self.lower >= self.upper else Proof.FEASIBLE

    def _search(self) -> None:
        self._tell()
        while self.lower < self.upper and not self.limits.deadline.over():
            threshold = self._next_threshold()
            status, plan = self._ask(threshold)
            if status == cp_model.INFEASIBLE:
                self.lower = threshold + 1
            elif plan is not None:
                self._take(plan, threshold)
            self._tell()

    def _next_threshold(self) -> int:
        """Bisect; the first and then every third question is the one that would end the search."""
        self.steps += 1
        if self.steps % 3 == 1:
            return self.upper - 1
        return (self.lower + self.upper - 1) // 2

    def _ask(self, threshold: int) -> tuple[cp_model.CpSolverStatus, Plan | None]:
        v = self.question.build(threshold)
        solver = make_solver(self.limits)
        status = run(solver, v.model, self.limits.deadline.over)
        return status, self.question.read(v, solver) if found(status) else None

    def _take(self, plan: Plan, threshold: int) -> None:
        """Keep a plan at the evaluator's price, which must keep the promise of the threshold."""
        price = price_of(self.instance, plan)
        if price > threshold:
            goal = self.instance.goals[0]
            raise SolverDefectError(
                f"the model accepts a plan at {goal_amount(goal, threshold)} that the evaluator prices at"
                f" {goal_amount(goal, price)}"
            )
        self.plan, self.upper = plan, price

    def _tidy(self) -> None:
        """Among the optimal plans take one that is easy to read and to run (not proved best: work is limited).

        Few devices first, then few stages, then few layers in a form other than 0.
        """
        v = self.question.build(self.upper)
        v.model.minimize(untidiness(v))
        solver = make_solver(self.limits)
        solver.parameters.max_deterministic_time = TIDY_WORK
        status = run(solver, v.model, self.limits.deadline.over)
        plan = self.question.read(v, solver) if found(status) else None
        if plan is not None:
            self._take(plan, self.upper)

    def _tell(self) -> None:
        self.limits.progress(Progress(None if self.plan is None else self.upper, self.lower))


class SolverDefectError(FalseClaimError):
    """The model and the evaluator contradict each other: a defect, never a property of the input."""


def price_of(instance: Instance, plan: Plan) -> int:
    """Return the evaluator's price of a plan that must keep every rule; else raise SolverDefectError."""
    evaluation = evaluate(instance, plan)
    if evaluation.objective is None or evaluation.violations:
        raise SolverDefectError("; ".join(message for _, message in told(evaluation.violations)))
    return evaluation.objective


def untidiness(v: Variables) -> cp_model.LinearExpr | int:
    """Return devices, stages and layers in an unusual form, weighted so that each counts before the next."""
    sizes = [group.devices for group in v.tables.groups]
    unusual = [literal for row in v.state for (_, form), literal in row.items() if form != 0]
    stage_weight = len(unusual) + 1
    device_weight = stage_weight * (v.slots + 1)
    used = sum(
        (device_weight * sizes[g] + stage_weight) * literal for row in v.runs for g, literal in enumerate(row)
    )
    return used + sum(unusual)
