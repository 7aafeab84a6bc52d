"""What the declarative model makes of an instance: it sees every rule, and is refused where it would be too large.

Apart from the solver, so that asking imports no OR-Tools.
"""

from __future__ import annotations

from formulation.costs.tables import possible_kinds
from formulation.limits.size import TooLargeError
from formulation.problem.instance import Instance
from solvers.search.support import Support, sized

__all__: list[str] = []

BYTES_A_CLAUSE = 200
"""For each stage, layer and kind: a clause in the model, and its copy in the solver."""


@sized
def accepts(instance: Instance) -> Support:
    """Say what the model makes of an instance (``solvers.search.support``). Cost: linear in device groups."""
    if instance.goals[0].executed:
        said = f"the declarative model does not know the executed {instance.goals[0]}"
        return Support(reason=f"{said}; set objective: bottleneck for a formula that it knows")
    layers, slots = len(instance.layers), min(len(instance.layers), instance.devices)
    kinds = len(possible_kinds(instance))
    needed = BYTES_A_CLAUSE * slots * layers * kinds
    TooLargeError.refuse_above(
        f"the model of {layers} layers, {slots} stages and {kinds} kinds of device groups",
        needed,
        "merge layers, narrow constraints.devices_per_stage, or let state_dp plan",
    )
    return Support(proves=True, bytes_needed=needed)
