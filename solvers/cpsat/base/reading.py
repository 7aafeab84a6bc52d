"""From an assignment of the variables back to a plan."""

from __future__ import annotations

from ortools.sat.python import cp_model

from formulation.problem.cuts import CutSpace
from formulation.problem.plan import Plan, Span, Stage
from solvers.cpsat.base.variables import Variables


def read_plan(v: Variables, solver: cp_model.CpSolver) -> Plan:
    """Read cut points, groups and forms of a solved model."""
    stages: list[Stage] = []
    stop = v.layers
    for k in range(v.slots):
        group = next((g for g, literal in enumerate(v.runs[k]) if solver.boolean_value(literal)), None)
        if group is None:
            break
        first = next(i for i, literal in enumerate(v.starts[k]) if solver.boolean_value(literal))
        forms = tuple(_form(v, solver, layer) for layer in range(first, stop))
        again, warm_up = _again(v, solver, Span(first, stop)), _warm_up(v, solver, k)
        stages.append(Stage(Span(first, stop), v.tables.groups[group], forms, warm_up, again))
        stop = first
    return Plan(tuple(reversed(stages)))


def _again(v: Variables, solver: cp_model.CpSolver, span: Span) -> tuple[Span, ...]:
    """Return the blocks of a stage that are computed again alone."""
    if not v.again:
        return ()
    blocks = CutSpace.of(v.tables.instance).blocks(span)
    return tuple(one for one in blocks if solver.boolean_value(v.again[one.first]))


def _warm_up(v: Variables, solver: cp_model.CpSolver, slot: int) -> int | None:
    """Return how many forward passes a stage has before its first backward pass, where that is chosen."""
    if not v.longer:
        return None
    return max(many for many, only in v.warm_ups(slot) if all(map(solver.boolean_value, only)))


def _form(v: Variables, solver: cp_model.CpSolver, layer: int) -> int:
    if not v.state:
        return 0
    chosen = (form for (_, form), literal in v.state[layer].items() if solver.boolean_value(literal))
    return next(chosen, 0)
