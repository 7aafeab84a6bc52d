"""Plans of simpler problems, for instances that an exact method cannot take: fewer cuts, or fewer rules.

Fewer cuts are cuts at some places only: the work is divided into equal parts, each part gives the cut
over which least is sent, and the programme over device states finds the best plan with these. It is a plan for the
whole instance; what it proves is only what work alone says. Fewer rules make a *neighbour* that a dynamic
programme sees; if its best plan keeps every rule here, a search can begin with it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import replace

from formulation.costs.bulk.crossing import crossing_bytes
from formulation.evaluate import evaluate
from formulation.outcome import Limits, Outcome
from formulation.problem.constraints import Goal, Placement
from formulation.problem.cuts import CutSpace
from formulation.problem.instance import Instance
from formulation.problem.options import BoundaryCharge, Combine
from formulation.problem.plan import Plan
from solvers.catalogue import find_solver

SOME_CUTS = 192
"""How many places are left, at most."""
PROGRAMMES = ("state_dp", "line_dp")
"""Who plans a neighbour: the first that takes it."""


def with_some_cuts(instance: Instance, limits: Limits) -> Outcome:
    """Return the best plan that is cut at some places only. Raises ValueError as state_dp does."""
    from solvers.dynamic.states.solver import solve

    return solve(instance, limits, space=some_cuts(instance, SOME_CUTS))


def some_cuts(instance: Instance, number: int) -> CutSpace:
    """Return a space of at most so many places between its ends: of every equal part of the work the cheapest."""
    work = [f + b for f, b in zip(instance.forward_ns[0], instance.backward_ns[0], strict=True)]
    done = list(itertools.accumulate(work, initial=0))
    (first, *places, last), sent = CutSpace.of(instance).places, crossing_bytes(instance)
    parts = itertools.groupby(places, key=lambda cut: done[cut] * number // (done[-1] + 1))
    return CutSpace((first, *(min(part, key=lambda cut: sent[cut]) for _, part in parts), last))


def plan_of_a_neighbour(instance: Instance, limits: Limits) -> Plan | None:
    """Return the plan of a neighbour as a first plan; None if it breaks a rule, or nobody found one in time."""
    for neighbour in neighbours(instance):
        for name in PROGRAMMES:
            entry = find_solver(name)
            if not entry.accepts(neighbour).takes:
                continue
            with contextlib.suppress(ValueError):
                plan = entry.load()(neighbour, replace(limits, progress=lambda _: None, below=None)).plan
                return plan if plan is not None and evaluate(instance, plan).feasible else None
    return None


def neighbours(instance: Instance) -> Iterator[Instance]:
    """Yield the instance where links pay for boundaries and the slowest stage counts; then that on the line."""
    cost = replace(instance.cost, boundary_charge=BoundaryCharge.LINK, combine=Combine.MAX)
    constraints = replace(instance.constraints, at_most=())
    judged = replace(replace(instance, constraints=constraints), cost=cost, goals=(Goal.BOTTLENECK,))
    yield judged
    if constraints.placement is not Placement.LINE:
        yield replace(judged, constraints=replace(constraints, placement=Placement.LINE))
