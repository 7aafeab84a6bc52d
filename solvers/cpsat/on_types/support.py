"""What the model over types makes of an instance; apart from the solver, so that asking imports no OR-Tools."""

from __future__ import annotations

from dataclasses import replace

from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers.reduce.solver import bytes_needed
from pipecut.solvers.reduce.solver import reason_against as reduced_reason_against
from pipecut.solvers.search.support import Support, sized

NAME = "cpsat_types"
FORMULAS = (Goal.ITERATION_TIME, Goal.BOTTLENECK, Goal.DEVICES, Goal.STAGES)
"""Goals that sums of stages, the slowest of them, and their numbers decide: those that may also be limited."""


def bare(instance: Instance) -> Instance:
    """Return an instance without what models of types see by themselves, for the tables of its stages."""
    seen = replace(instance.constraints, apart=(), pins=(), at_most=(), stages_at_least=None, stages_at_most=None)
    return replace(instance, constraints=seen, goals=(Goal.ITERATION_TIME,))


def reason_against(instance: Instance) -> str:
    """Return what the model does not see of an instance; nothing where it sees all."""
    judged = (instance.goals[0], *(one.goal for one in instance.constraints.at_most))
    if unseen := [goal for goal in judged if goal not in FORMULAS]:
        return f"{NAME} knows sums of stages, the slowest of them, and their numbers, and no {unseen[0]}"
    if any(pin.servers is not None for pin in instance.demands.pins):
        return f"{NAME} sees pins to stages, and none to servers"
    try:
        return reduced_reason_against(bare(instance), NAME) or ""
    except ValueError as error:  # the step by a formula, of which tables are made, is about other questions
        return f"{NAME}: {error}"


@sized
def accepts(instance: Instance) -> Support:
    """Say what the model makes of an instance (``solvers.search.support``). Cost: linear in the layers."""
    reason = reason_against(instance)
    if reason:
        return Support(reason=reason)
    return Support(proves=True, bytes_needed=bytes_needed(bare(instance)))
