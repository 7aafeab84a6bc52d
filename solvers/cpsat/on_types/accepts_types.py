"""What the model over types makes of an instance; apart from the solver, so that asking imports no OR-Tools."""

from __future__ import annotations

from dataclasses import replace

from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers.reduce.reduced_dp import bytes_needed
from pipecut.solvers.reduce.reduced_dp import reason_against as reduced_reason_against
from pipecut.solvers.search.support import Support, capped, on_the_line, sized

NAME = "cpsat_types"
FORMULAS = (Goal.ITERATION_TIME, Goal.BOTTLENECK, Goal.DEVICES, Goal.STAGES)
"""Goals that sums of stages, the slowest of them, and their numbers decide: those that may also be limited."""


def bare(instance: Instance) -> Instance:
    """Return an instance without what models of types see by themselves, for the tables of its stages.

    Raises ValueError where a step is not one of the tables' questions.
    """
    seen = replace(instance.constraints, apart=(), pins=(), at_most=on_the_line(instance))
    goal = Goal.STEP_TIME if instance.goals[0] is Goal.STEP_TIME else Goal.ITERATION_TIME
    return replace(instance, constraints=seen, goals=(goal,))


def _unseen(instance: Instance) -> str:
    """Return which goal or pin the model does not see; nothing where it sees all."""
    goals = [one for one in instance.goals[:1] if one is not Goal.STEP_TIME]
    known, beside = (FORMULAS, "") if goals else ((), " beside an executed step")
    limited = [one.goal for one in instance.constraints.at_most if one not in on_the_line(instance)]
    if unseen := [one for one in (*goals, *limited) if one not in known]:
        return f"{NAME} knows sums of stages, the slowest of them, and their numbers, and no {unseen[0]}{beside}"
    if any(pin.servers is not None for pin in instance.demands.pins):
        return f"{NAME} sees pins to stages, and none to servers"
    if instance.constraints.equal_stages:
        return f"{NAME} does not see the constraint equal_stages"
    return ""


@sized
def accepts(instance: Instance) -> Support:
    """Say what the model makes of an instance (``solvers.search.support``). Cost: linear in the layers."""
    instance = capped(instance)
    if reason := _unseen(instance):
        return Support(reason=reason)
    try:
        tables = bare(instance)
    except ValueError as error:
        return Support(reason=f"{NAME}: {error}")
    if reason := reduced_reason_against(tables, NAME):
        return Support(reason=reason)
    # Mixtures of ways to run the stages of a plan may leave a gap to its executed step.
    return Support(proves=instance.goals[0] is not Goal.STEP_TIME, bytes_needed=bytes_needed(tables))
