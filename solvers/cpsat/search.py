"""Search on the value of the objective: fix a threshold T and ask "is there a plan that takes at most T?".

Minimising a maximum in one go leaves CP-SAT with weak limits on every stage; with T fixed they are yes/no
tables. The upper limit comes from a plan that the evaluator has priced, the lower one from areas; each answer
moves one of them, and "no plan takes UB - 1" is the proof (a destructive lower bound). Objectives are whole
numbers, so the search ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from formulation.evaluate import evaluate
from formulation.instance import Instance
from formulation.outcome import Limits, Outcome, Progress, Proof
from formulation.plan import Plan
from formulation.tables import Tables, build_tables, line_groups
from solvers.cpsat.families import Family
from solvers.cpsat.model import FAMILIES, build_model
from solvers.cpsat.reading import read_plan
from solvers.cpsat.start import first_plan
from solvers.cpsat.valid import floors, lower_bound_ns, redundant_families

NAME = "cpsat"
POLL_S = 0.05
TIDY_WORK = 1.0
"""Deterministic time that CP-SAT may spend on a tidier optimal plan (about seconds)."""


def solve(instance: Instance, limits: Limits | None = None, families: Sequence[Family] = FAMILIES) -> Outcome:
    """Find the best plan and prove it, or the best within the limits with an honest bound.

    ``families`` are the constraints that say what a plan is and costs; leaving one out is for witnesses in tests.
    The outcome's objective is the evaluator's price of the plan, not the solver's.
    """
    limits = limits or Limits()
    began = time.monotonic()
    tables = build_tables(instance, tuple(line_groups(instance).values()))
    plan = first_plan(tables)
    search = _Search(
        tables=tables,
        families=(*families, *redundant_families(tables)),
        limits=limits,
        deadline=None if limits.time_limit_s is None else began + limits.time_limit_s,
        plan=plan,
        upper=_price(instance, plan),
        lower=lower_bound_ns(tables, floors(tables)),
    )
    search.run()
    proved = search.lower >= search.upper
    if proved:
        search.tidy()
    return Outcome(
        solver=NAME,
        proof=Proof.OPTIMAL if proved else Proof.FEASIBLE,
        plan=search.plan,
        objective_ns=search.upper,
        bound_ns=search.lower,
        seconds=time.monotonic() - began,
        notes=(f"{search.steps} thresholds asked",),
    )


@dataclass(slots=True)
class _Search:
    """The state of one search: best plan and its price (upper), proved lower limit, thresholds asked."""

    tables: Tables
    families: tuple[Family, ...]
    limits: Limits
    deadline: float | None
    plan: Plan
    upper: int
    lower: int
    steps: int = 0

    def run(self) -> None:
        """Ask thresholds until lower and upper meet or the limits end the search."""
        self._tell()
        while self.lower < self.upper and not self._over():
            threshold = self._next_threshold()
            status, plan = self._ask(threshold)
            if status == cp_model.INFEASIBLE:
                self.lower = threshold + 1
            elif plan is not None:
                self._take(plan, threshold)
            self._tell()

    def tidy(self) -> None:
        """Among the optimal plans take one that is easy to read and to run (not proved best: work is limited).

        Few devices first, then few stages, then few layers in a form other than 0.
        """
        v = build_model(self.tables, self.upper, self.families)
        sizes = [group.devices for group in self.tables.groups]
        unusual = [literal for row in v.state for (_, form), literal in row.items() if form != 0]
        stage_weight = len(unusual) + 1
        device_weight = stage_weight * (v.slots + 1)
        v.model.minimize(
            sum(
                (device_weight * sizes[g] + stage_weight) * literal
                for row in v.runs
                for g, literal in enumerate(row)
            )
            + sum(unusual)
        )
        solver = _solver(self.limits, None)
        solver.parameters.max_deterministic_time = TIDY_WORK
        status = _solve(solver, v.model, self._over)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self._take(read_plan(v, solver), self.upper)

    def _next_threshold(self) -> int:
        """Bisect; the first and then every third question is the one that would end the search."""
        self.steps += 1
        if self.steps % 3 == 1:
            return self.upper - 1
        return (self.lower + self.upper - 1) // 2

    def _ask(self, threshold_ns: int) -> tuple[cp_model.CpSolverStatus, Plan | None]:
        v = build_model(self.tables, threshold_ns, self.families)
        solver = _solver(self.limits, None if self.deadline is None else self.deadline - time.monotonic())
        status = _solve(solver, v.model, self._over)
        found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        return status, read_plan(v, solver) if found else None

    def _take(self, plan: Plan, threshold_ns: int) -> None:
        """Keep a plan at the evaluator's price, which must keep the promise of the threshold."""
        price = _price(self.tables.instance, plan)
        if price > threshold_ns:
            raise SolverDefectError(
                f"the model accepts a plan at {threshold_ns} ns that the evaluator prices at {price} ns"
            )
        self.plan, self.upper = plan, price

    def _over(self) -> bool:
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return late or self.limits.stopped()

    def _tell(self) -> None:
        self.limits.progress(Progress(self.upper, self.lower))


class SolverDefectError(Exception):
    """The model and the evaluator contradict each other: a defect, never a property of the input."""


def _price(instance: Instance, plan: Plan) -> int:
    found = evaluate(instance, plan)
    if found.objective_ns is None or found.violations:
        raise SolverDefectError("; ".join(violation.message for violation in found.violations))
    return found.objective_ns


def _solver(limits: Limits, seconds: float | None) -> cp_model.CpSolver:
    """Set up CP-SAT without its presolve.

    google/or-tools#5293 and #5274: in 9.15 presolve can certify wrong optima on one-hot groups with linear
    rows, which is the shape of this model. With the threshold fixed presolve buys nothing here: the model is
    built with what it would find out (docs/decisions), and the search alone is as fast or faster.
    """
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = limits.workers
    solver.parameters.random_seed = limits.seed
    solver.parameters.cp_model_presolve = False
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.catch_sigint_signal = False
    if seconds is not None:
        solver.parameters.max_time_in_seconds = max(0.01, seconds)
    return solver


def _solve(
    solver: cp_model.CpSolver, model: cp_model.CpModel, over: Callable[[], bool]
) -> cp_model.CpSolverStatus:
    """Solve while a second thread watches for the wish to stop."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(POLL_S):
            if over():
                solver.stop_search()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        return solver.solve(model)
    finally:
        done.set()
        watcher.join()
