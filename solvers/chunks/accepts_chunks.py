"""What the search over chunks makes of an instance; apart from the solver, so that asking imports no OR-Tools."""

from __future__ import annotations

from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, forms_on, modes_by_size
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.options import BoundaryCharge, Combine, StageTime
from pipecut.solvers.search.support import Support, of_whole_stages, sized

BYTES_A_RUN = 400
"""For each stage and run of atoms: a variable of the model with its places in sums, and a row of its prices."""
GOALS = (Goal.BOTTLENECK, Goal.STEP_TIME)
SEEN = ("no_cut", "together", "stages", "devices_per_stage", "equal_stages")
"""Demands that speak of places, of sizes of groups and of the number of stages."""


@sized
def accepts(instance: Instance) -> Support:
    """Say what the search makes of an instance (``solvers.search.support``). Cost: layers, and devices."""
    reason = reason_against(instance)
    if reason:
        return Support(reason=reason)
    places, stages = CutSpace.of(instance).stops, min(CutSpace.of(instance).stops, most_stages(instance))
    window = max(1, places - instance.training.chunks * 2 + 1)
    needed = BYTES_A_RUN * stages * window * window // 2
    TooLargeError.refuse_above(
        f"the model of {stages} stages and {places} places to cut", needed, "close cuts with constraints.no_cut"
    )
    return Support(proves=True, bytes_needed=needed)


def most_stages(instance: Instance) -> int:
    """Return how many stages there can be: as many groups as have an order of passes, with all their chunks."""
    most, training = instance.devices, instance.training
    return training.chunks * max(n for n in range(1, most + 1) if training.dealt_to(n))


def reason_against(instance: Instance) -> str:
    """Return why runs of atoms do not decide an instance; nothing if they do."""
    cost, constraints = instance.cost, instance.constraints
    if blocks := of_whole_stages("cpsat_chunks", instance).reason:
        return blocks
    if instance.training.chunks == 1:
        return "it searches groups that hold several stages, training.chunks is 1"
    if cost.combine is not Combine.MAX or cost.stage_time is not StageTime.ADD:
        return "it adds up the times of the chunks of a group: it needs cost.combine max and cost.stage_time add"
    if cost.boundary_charge is not BoundaryCharge.LINK:
        return "it needs stages whose time is their own, cost.boundary_charge is receiver"
    if instance.goals[0] not in GOALS:
        return f"it sees the goals {' and '.join(GOALS)}, the first goal is {instance.goals[0]}"
    unseen = [name for name in instance.demands.named() if name not in SEEN]
    unseen += [one.goal for one in constraints.at_most] + [one.name for one in constraints.own]
    if unseen:
        return f"it does not see the constraints {', '.join(unseen)}"
    if any(copy is not None for copy in instance.copies):
        return "it does not see weights that several stages share"
    return _undecided(instance)


def _undecided(instance: Instance) -> str:
    """Return which layer has a choice of forms on groups of some size; nothing if none has."""
    groups = {
        (mode.tensor_parallel_degree(size), size): Group(((0, size),), mode)
        for size, found in modes_by_size(instance).items()
        for mode in found
    }
    for row in instance.layers:
        for (degree, _), group in sorted(groups.items(), key=lambda one: one[0]):
            if row.split is not Split.FOLLOW and len(forms_on(row, group)) > 1:
                return (
                    f"it takes one form a layer, and {row.name} may take several on {degree} devices: leave one"
                    " with constraints.forms, or take constraints.tensor_parallel_degrees [1]"
                )
    return ""
