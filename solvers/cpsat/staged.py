"""The accelerated solver: whole stages from the tables of the dynamic programme (``solvers.cpsat.stages``)."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from ortools.sat.python import cp_model

from formulation.evaluate import evaluate
from formulation.groups import possible_groups
from formulation.instance import Instance
from formulation.outcome import Limits, Outcome
from formulation.plan import Plan
from formulation.tables import FORBIDDEN, Tables, Times, build_tables
from solvers import line_dp
from solvers.cpsat import layered
from solvers.cpsat.model import build_model
from solvers.cpsat.reading import read_plan
from solvers.cpsat.search import Question, Search
from solvers.cpsat.stages import applies, stage_families
from solvers.cpsat.start import first_plan
from solvers.cpsat.valid import ceiling_ns, floors, lower_bound_ns
from solvers.cpsat.variables import Variables
from solvers.hybrid import StageTimes, best_forms, stage_times

NAME = "cpsat_stages"


def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Find the best plan and prove it with stage times of the dynamic programme.

    Where a stage's time depends on its neighbours (receivers pay, or times are summed) the layered model is
    used instead, and the outcome says so. Raises ValueError as ``solvers.hybrid.stage_times`` does.
    """
    began = time.monotonic()
    tables = build_tables(instance, possible_groups(instance))
    if not applies(tables):
        outcome = layered.solve(instance, limits)
        return replace(outcome, solver=NAME, notes=(*outcome.notes, "layered model: stages are not independent"))
    times = stage_times(tables)
    families, start = stage_families(times), _start(instance, tables)

    def read(v: Variables, solver: cp_model.CpSolver) -> Plan:
        return with_best_forms(times, read_plan(v, solver))

    return Search(
        instance=instance,
        question=Question(
            lambda threshold_ns: build_model(tables, threshold_ns, families, layered=False),
            read,
            objective_values(times),
        ),
        limits=limits or Limits(),
        began=began,
        plan=None if start is None else with_best_forms(times, start),
        lower=lower_bound_ns(tables, floors(tables)),
        upper=ceiling_ns(tables) + 1,
    ).outcome(NAME)


def _start(instance: Instance, tables: Tables) -> Plan | None:
    """Return the better of the first plan and the dynamic programme's, if either keeps every rule."""
    candidates = [plan for plan in (first_plan(tables), line_dp.solve(instance).plan) if plan is not None]
    priced = [(evaluate(instance, plan), plan) for plan in candidates]
    kept = [(found.objective_ns or 0, plan) for found, plan in priced if found.feasible]
    return min(kept, key=lambda pair: pair[0])[1] if kept else None


def with_best_forms(times: StageTimes, plan: Plan) -> Plan:
    """Give every stage of a plan the forms with the least communication."""
    tables = times.tables
    kind_of = dict(zip(tables.groups, tables.kind_of, strict=True))
    return Plan(
        tuple(replace(stage, forms=best_forms(tables, kind_of[stage.group], stage.span)) for stage in plan.stages)
    )


def objective_values(times: StageTimes) -> Times:
    """Return, ascending, every value that the slowest stage or boundary can have."""
    tables = times.tables
    stages = times.time[times.time < FORBIDDEN]
    return np.unique(np.concatenate([stages, (tables.activation + tables.gradient).ravel()]))
