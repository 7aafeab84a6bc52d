"""What the model on atoms makes of an instance; apart from the solver, so that asking imports no OR-Tools."""

from __future__ import annotations

from pipecut.formulation.costs.tables import possible_kinds
from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import BoundaryCharge, Combine, StageTime
from pipecut.solvers.atoms.times import check_size
from pipecut.solvers.search.support import Support, sized

BYTES_A_CLAUSE = 200
"""For each stage, place and kind: a clause in the model, and its copy in the solver."""
GOALS = (Goal.BOTTLENECK, Goal.COST, Goal.DEVICES, Goal.STAGES)
"""Goals and limits that groups and whole stages decide."""
SEEN = ("no_cut", "together", "stages", "devices_per_stage", "stages_per_server", "equal_stages")
"""Demands that speak of places, groups and numbers of stages, not of single layers."""


@sized
def accepts(instance: Instance) -> Support:
    """Say what the model makes of an instance (``solvers.search.support``). Cost: linear in device groups."""
    reason = reason_against(instance)
    if reason:
        return Support(reason=reason)
    places, kinds = CutSpace.of(instance).stops, len(possible_kinds(instance))
    needed = BYTES_A_CLAUSE * min(places, instance.devices) * places * kinds
    TooLargeError.refuse_above(
        f"the model of {places} places to cut and {kinds} kinds of device groups",
        needed,
        "close cuts with constraints.no_cut, or narrow constraints.devices_per_stage",
    )
    return Support(proves=True, bytes_needed=max(needed, check_size(places + 1, kinds)))


def reason_against(instance: Instance) -> str:
    """Return why whole stages do not decide an instance; nothing if they do."""
    cost, constraints = instance.cost, instance.constraints
    if cost.combine is not Combine.MAX:
        return "atoms bound the slowest stage, combine is 'sum'"
    if cost.boundary_charge is BoundaryCharge.RECEIVER and cost.stage_time is StageTime.OVERLAP:
        return "atoms know what a stage takes in all, boundary_charge is 'receiver' with stage_time 'overlap'"
    judged = [
        goal for goal in (instance.goals[0], *(one.goal for one in constraints.at_most)) if goal not in GOALS
    ]
    if judged:
        return f"atoms do not see the {judged[0]} of a plan"
    unseen = [name for name in instance.demands.named() if name not in SEEN]
    unseen += [one.name for one in constraints.own]
    return f"atoms do not see the constraints {', '.join(unseen)}" if unseen else ""
