"""What the declarative model makes of an instance: it sees every rule, and is refused where it would be too large.

Apart from the solver, so that asking imports no OR-Tools.
"""

from __future__ import annotations

from pipecut.formulation.costs.tables import possible_kinds
from pipecut.formulation.executed import IN_ROUNDS
from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import Synchronisation
from pipecut.formulation.problem.training import Schedule
from pipecut.solvers.search.support import Support, sized

BYTES_A_CLAUSE = 200
"""For each stage, layer and kind: a clause in the model, and its copy in the solver."""
# Pairs of passes that are posted one by one, of all stages together: each question goes through them all.
MOST_PAIRS = 1024


@sized
def accepts(instance: Instance) -> Support:
    """Say what the model makes of an instance (``solvers.search.support``). Cost: linear in device groups."""
    executed, schedule = instance.goals[0].executed, instance.training.schedule
    if executed and schedule.flushes and (schedule.in_halves or schedule not in IN_ROUNDS):
        return Support(reason=f"the declarative model does not know the order of the passes of {schedule}")
    layers, slots = len(instance.layers), min(len(instance.layers), instance.devices)
    pairs = slots * _posted_one_by_one(instance) if executed else 0
    if pairs > MOST_PAIRS:
        many, chosen = instance.training.micro_batches, instance.training.chooses_warm_ups
        raise TooLargeError(
            f"up to {slots} stages do {slots * many} pairs of passes in {many} micro-batches"
            f"{f', with {many} warm-ups to choose from' if chosen else ''}: {pairs} to post one by one, and the"
            f" declarative model posts at most {MOST_PAIRS}; take fewer micro-batches"
        )
    kinds = len(possible_kinds(instance))
    needed = BYTES_A_CLAUSE * (slots * layers * kinds + 2 * pairs)
    TooLargeError.refuse_above(
        f"the model of {layers} layers, {slots} stages and {kinds} kinds of device groups",
        needed,
        "merge layers, narrow constraints.devices_per_stage, or let state_dp plan",
    )
    return Support(proves=True, bytes_needed=needed)


def _posted_one_by_one(instance: Instance) -> int:
    """Return how many pairs of passes of a stage are in the model, for each warm-up; others are in formulas."""
    training, cost = instance.training, instance.cost
    if instance.goals[0] is Goal.STEP_TIME:
        orders = training.micro_batches if training.chooses_warm_ups else 1
        return orders * training.micro_batches if training.schedule is Schedule.ONE_F_ONE_B else 0
    once = training.micro_batches == 1 or cost.synchronisation is not Synchronisation.CHARGED
    return 0 if once else training.micro_batches
