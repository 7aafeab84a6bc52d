"""How CP-SAT searches on the value of the objective (``solvers.search.threshold``), and tidies the best plan.

The upper limit comes from a plan that the evaluator has priced, the lower one from areas; each answer moves one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ortools.sat.python import cp_model

from formulation.costs.amounts import plural
from formulation.limits.deadline import StoppedError
from formulation.outcome import Outcome
from solvers.cpsat.base.engine import found, make_solver, run
from solvers.cpsat.base.reading import read_plan
from solvers.cpsat.base.variables import Variables
from solvers.search.incumbent import Incumbent
from solvers.search.threshold import close

TIDY_WORK = 1.0
"""Deterministic time that CP-SAT may spend on a tidier optimal plan (about seconds)."""

Build = Callable[[int], Variables]
"""Build the model that asks for a plan of at most a threshold."""


def search(known: Incumbent, build: Build) -> Outcome:
    """Search, and say what came of it. A model that is not finished in time leaves all as it was before."""

    def choose() -> int:
        """Bisect; the first and then every third question is the one that would end the search."""
        return known.upper - 1 if known.asked % 3 == 0 else (known.lower + known.upper - 1) // 2

    with contextlib.suppress(StoppedError):
        close(known, choose, lambda threshold: _ask(known, build, threshold))
        if known.plan is not None and known.closed:
            _tidy(known, build)
    return known.outcome(f"{known.asked} {plural(known.asked, 'threshold')} asked")


def _ask(known: Incumbent, build: Build, threshold: int) -> bool | None:
    v = build(threshold)
    solver = make_solver(known.limits)
    status = run(solver, v.model, known.limits.deadline.over)
    if found(status):
        known.take(read_plan(v, solver), threshold)
        return True
    return False if status == cp_model.INFEASIBLE else None


def _tidy(known: Incumbent, build: Build) -> None:
    """Among the optimal plans take one that is easy to read and to run (not proved best: work is limited).

    Few devices first, then few stages, then few layers in a form other than 0.
    """
    v = build(known.upper)
    v.model.minimize(untidiness(v))
    solver = make_solver(known.limits)
    solver.parameters.max_deterministic_time = TIDY_WORK
    if found(run(solver, v.model, known.limits.deadline.over)):
        known.take(read_plan(v, solver), known.upper)


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
