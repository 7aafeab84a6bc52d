"""How CP-SAT is run: its parameters, and a watcher that can stop it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ortools.sat.python import cp_model

from formulation.limits.size import TooLargeError
from formulation.outcome import Limits

POLL_S = 0.05


def make_solver(limits: Limits) -> cp_model.CpSolver:
    """Set up CP-SAT without its presolve, for as long as limits that are begun leave.

    google/or-tools#5293 and #5274: in 9.15 presolve can certify wrong optima on one-hot groups with linear
    rows, which is the shape of this model. With the threshold fixed proofs come no later without it: the model
    is built with what presolve would find out (docs/decisions/0003).

    Nor may it detect variables that are at least one of several others: without presolve 9.15 then calls some
    models infeasible that have plans, with every seed (``tests/solvers/cpsat/test_detection.py``).
    """
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = limits.workers
    solver.parameters.random_seed = limits.seed
    solver.parameters.cp_model_presolve = False
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.auto_detect_greater_than_at_least_one_of = False
    solver.parameters.catch_sigint_signal = False
    seconds = limits.deadline.left_s()
    if seconds is not None:
        solver.parameters.max_time_in_seconds = max(0.01, seconds)
    return solver


def without_relaxation(limits: Limits) -> cp_model.CpSolver:
    """Set up the same with one worker and no linear relaxation.

    That is for models whose rows hold what a relaxation would find out: clauses alone are then several times as
    fast.
    """
    solver = make_solver(limits)
    solver.parameters.num_workers = 1
    solver.parameters.linearization_level = 0
    return solver


Value = Callable[[cp_model.IntVar], int]
"""What a variable has in an assignment."""


class _Teller(cp_model.CpSolverSolutionCallback):
    """Hands every assignment on, while the search goes on."""

    def __init__(self, tell: Callable[[Value], None]) -> None:
        super().__init__()
        self._tell = tell

    def on_solution_callback(self) -> None:
        """Tell of the assignment that CP-SAT has found."""
        self._tell(self.value)


def run(
    solver: cp_model.CpSolver,
    model: cp_model.CpModel,
    over: Callable[[], bool],
    tell: Callable[[Value], None] | None = None,
) -> cp_model.CpSolverStatus:
    """Solve while a second thread watches for the wish to stop; ``tell`` gets every assignment on the way.

    Raises TooLargeError for sums that CP-SAT cannot count: over many device groups they exceed what plans take.
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(POLL_S):
            if over():
                solver.stop_search()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        status = solver.solve(model, None if tell is None else _Teller(tell))
    finally:
        done.set()
        watcher.join()
    if status == cp_model.MODEL_INVALID:
        reason = model.validate().strip().split("\n")[0]
        raise TooLargeError(
            f"the model has sums that CP-SAT cannot count in 64 bits ({reason}); ask another solver, allow fewer"
            " device groups (constraints.max_servers), or take smaller micro-batches"
        )
    return status


def found(status: cp_model.CpSolverStatus) -> bool:
    """Tell whether the solver has an assignment."""
    return status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
