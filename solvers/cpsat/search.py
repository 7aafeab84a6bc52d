"""How CP-SAT searches on the value of the objective (``solvers.search.threshold``), and tidies the best plan.

The upper limit comes from a plan that the evaluator has priced, the lower one from areas; each answer moves one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ortools.sat.python import cp_model

from formulation.limits.deadline import StoppedError
from formulation.outcome import Limits, Outcome
from formulation.problem.plan import Plan
from solvers.cpsat.base.engine import found, make_solver, run
from solvers.cpsat.base.reading import read_plan
from solvers.cpsat.base.variables import Variables
from solvers.search.incumbent import Incumbent
from solvers.search.threshold import close, questions

TIDY_WORK = 1.0
"""Deterministic time that CP-SAT may spend on a tidier optimal plan (about seconds)."""

Build = Callable[[int], Variables]
"""Build the model that asks for a plan of at most a threshold."""
Make = Callable[[Limits], cp_model.CpSolver]
"""Set up the solver of a question."""
Read = Callable[[Variables, cp_model.CpSolver], Plan | None]
"""Read a plan of a solved model; None where it is refused, and the next model will not propose it again."""


def search(
    known: Incumbent,
    build: Build,
    read: Read = read_plan,
    choose: Callable[[], int] | None = None,
    make: Make = make_solver,
) -> Outcome:
    """Search, and say what came of it. A model that is not finished in time leaves all as it was before.

    ``choose`` returns the next threshold (default: :func:`halfway`).
    """
    chosen = choose or (lambda: halfway(known))
    with contextlib.suppress(StoppedError):
        close(known, chosen, lambda threshold: _ask(known, build, read, make, threshold))
        if known.plan is not None and known.closed:
            _tidy(known, build, read, make)
    return known.outcome(questions(known.asked))


def halfway(known: Incumbent) -> int:
    """Bisect; the first and then every third question is the one that would end the search."""
    return known.upper - 1 if known.asked % 3 == 0 else (known.lower + known.upper - 1) // 2


def _ask(known: Incumbent, build: Build, read: Read, make: Make, threshold: int) -> bool | None:
    v = build(threshold)
    solver = make(known.limits)
    status = run(solver, v.model, known.limits.deadline.over)
    plan = read(v, solver) if found(status) else None
    if plan is not None:
        known.take(plan, threshold)
        return True
    return False if status == cp_model.INFEASIBLE else None


def _tidy(known: Incumbent, build: Build, read: Read, make: Make) -> None:
    """Among the optimal plans take one that is easy to read and to run (not proved best: work is limited).

    Few devices first, then few stages, then few layers in a form other than 0.
    """
    v = build(known.upper)
    v.model.minimize(untidiness(v))
    solver = make(known.limits)
    solver.parameters.max_deterministic_time = TIDY_WORK
    plan = read(v, solver) if found(run(solver, v.model, known.limits.deadline.over)) else None
    if plan is not None:
        known.take(plan, known.upper)


def untidiness(v: Variables) -> cp_model.LinearExpr | int:
    """Return devices, stages and layers in an unusual form, weighted so that each counts before the next.

    Last count the forward passes of chosen warm-ups.
    """
    sizes = [group.devices for group in v.tables.groups]
    unusual = [literal for row in v.state for (_, form), literal in row.items() if form != 0]
    stage_weight = len(unusual) + 1
    device_weight = stage_weight * (v.slots + 1)
    used = sum(
        (device_weight * sizes[g] + stage_weight) * literal for row in v.runs for g, literal in enumerate(row)
    )
    longer = [literal for row in v.longer for literal in row.values()]
    return (len(longer) + 1) * (used + sum(unusual)) + sum(longer)
