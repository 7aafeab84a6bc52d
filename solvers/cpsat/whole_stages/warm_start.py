"""First plans of the accelerated solver, from the dynamic programmes over the line and over device states."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from formulation.costs.ceiling import ceiling_ns
from formulation.costs.tables import Tables, all_tables
from formulation.evaluate import evaluate
from formulation.limits.deadline import StoppedError
from formulation.outcome import Limits
from formulation.problem.cuts import every_cut
from formulation.problem.instance import Instance
from formulation.problem.options import BoundaryCharge, Combine, Goal, Placement
from formulation.problem.plan import Plan, Span, Stage
from solvers.cpsat.bounds import lower_bound_ns
from solvers.cpsat.valid import floors
from solvers.cpsat.whole_stages.stage_plans import Stages
from solvers.cpsat.whole_stages.stages import applies
from solvers.dynamic.line import solver as line_dp
from solvers.dynamic.line.threshold import LineReach
from solvers.dynamic.states.solver import Search
from solvers.dynamic.states.states import StateSpace, state_space
from solvers.dynamic.tables.atom_tables import atom_tables
from solvers.dynamic.tables.stage_table import StageTable
from solvers.search.first_plan import first_plan

MODERATE_STATES = 5_000
"""States of devices up to which the model gets their labels."""


def start_of_a_neighbour(instance: Instance, limits: Limits) -> Plan | None:
    """Return a first plan for an instance whose stages are not independent: that of one where they are.

    The neighbour charges links instead of receivers, and is judged by the slowest stage whatever this instance is
    judged by. Its plan is a hint and no more; None if it breaks a rule here, if demands speak of single layers, or
    if there is no time for it.
    """
    cost = replace(instance.cost, boundary_charge=BoundaryCharge.LINK, combine=Combine.MAX)
    unlimited = replace(instance.constraints, at_most=())
    neighbour = replace(instance, cost=cost, constraints=unlimited, goals=(Goal.BOTTLENECK,))
    plan = None
    with contextlib.suppress(StoppedError):
        tables = all_tables(neighbour, limits.deadline)
        if not applies(tables):
            return None
        stages = Stages(atom_tables(tables, every_cut(instance)))
        plan = best_start(neighbour, stages, limits, moderate_space(stages))
    return plan if plan is not None and evaluate(instance, plan).feasible else None


def moderate_space(stages: StageTable) -> StateSpace | None:
    """Return the device states of an instance; None where they are too many."""
    try:
        space = state_space(stages.tables)
    except ValueError:
        return None
    return space if len(space.states) <= MODERATE_STATES else None


def best_start(instance: Instance, stages: Stages, limits: Limits, space: StateSpace | None = None) -> Plan | None:
    """Return the best of some plans that keep every rule; None if there is none among them.

    With the device states of the instance it is the best plan that their dynamic programme finds in time.
    """
    first = first_plan(stages.tables)
    if space is not None:
        search = Search(space, stages, replace(limits, progress=lambda _: None))
        if first is not None:
            search.plan, search.upper = first, evaluate(instance, first).objective or 0
        search.run()
        return search.plan
    line = stages
    if instance.constraints.placement is not Placement.LINE:
        ordered = replace(instance, constraints=replace(instance.constraints, placement=Placement.LINE))
        line = Stages(atom_tables(all_tables(ordered, limits.deadline), every_cut(ordered)))
    dearest = None if first is None else evaluate(instance, first).objective
    exact = stages.limits.held is None
    on_line = line_dp.solve(instance, limits).plan if exact else line_plan(line, dearest, limits.deadline.over)
    candidates = [plan for plan in (first, on_line) if plan is not None]
    priced = [(evaluate(instance, plan), plan) for plan in candidates]
    kept = [(found.objective or 0, plan) for found, plan in priced if found.feasible]
    return min(kept, key=lambda pair: pair[0])[1] if kept else None


def line_plan(stages: Stages, dearest_ns: int | None, over: Callable[[], bool]) -> Plan | None:
    """Return a plan of the line, at the least threshold for which the threshold programme proposes one that works.

    The threshold is bisected by paths alone; forms and links are looked at from there upwards, in growing steps.
    ``dearest_ns`` is the price of a plan that is known.
    """
    tables = stages.tables
    slots = min(len(tables.instance.layers), tables.instance.devices)
    low, high = lower_bound_ns(tables, floors(tables)), dearest_ns or ceiling_ns(tables)
    while low < high and not over():
        middle = (low + high) // 2
        found = LineReach(stages.limits, middle, slots).path() is not None
        low, high = (low, middle) if found else (middle + 1, high)
    step = max(1, high // 10_000)
    while high <= (dearest_ns or ceiling_ns(tables)) and not over():
        path = LineReach(stages.limits, high, slots).path()
        plan = None if path is None else stages.with_forms(_bare(tables, path), high)
        if plan is not None and evaluate(tables.instance, plan).feasible:
            return plan
        high, step = high + step, 2 * step
    return None


def _bare(tables: Tables, path: list[tuple[int, int, int, int]]) -> Plan:
    """Return the plan of a path, with form 0 everywhere."""
    return Plan(
        tuple(
            Stage(Span(first, stop), tables.groups[index], (0,) * (stop - first)) for _, index, first, stop in path
        )
    )
