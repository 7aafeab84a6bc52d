"""What the declarative model makes of an instance: it sees every rule, and is refused where it would be too large.

Apart from the solver, so that asking imports no OR-Tools.
"""

from __future__ import annotations

from formulation.costs.tables import possible_kinds
from formulation.limits.size import TooLargeError
from formulation.problem.instance import Instance
from formulation.problem.options import Goal, Schedule, Synchronisation
from solvers.search.support import Support, sized

__all__: list[str] = []

BYTES_A_CLAUSE = 200
"""For each stage, layer and kind: a clause in the model, and its copy in the solver."""
MOST_PAIRS = 1024
"""Pairs of passes that are posted one by one, of all stages together: each question goes through them all."""


@sized
def accepts(instance: Instance) -> Support:
    """Say what the model makes of an instance (``solvers.search.support``). Cost: linear in device groups."""
    executed = instance.goals[0].executed
    if executed and (reason := _unseen_passes(instance)):
        return Support(reason=reason)
    layers, slots = len(instance.layers), min(len(instance.layers), instance.devices)
    pairs = slots * _posted_one_by_one(instance) if executed else 0
    if pairs > MOST_PAIRS:
        raise TooLargeError(
            f"up to {slots} stages do {pairs} pairs of passes in {instance.training.micro_batches} micro-batches,"
            f" and the declarative model posts at most {MOST_PAIRS} one by one; take fewer micro-batches"
        )
    kinds = len(possible_kinds(instance))
    needed = BYTES_A_CLAUSE * (slots * layers * kinds + 2 * pairs)
    TooLargeError.refuse_above(
        f"the model of {layers} layers, {slots} stages and {kinds} kinds of device groups",
        needed,
        "merge layers, narrow constraints.devices_per_stage, or let state_dp plan",
    )
    return Support(proves=True, bytes_needed=needed)


def _unseen_passes(instance: Instance) -> str:
    """Return what the model does not know of an executed time; nothing if it knows all."""
    training = instance.training
    if training.schedule.in_halves:
        return f"the declarative model knows whole backward passes, the schedule is {training.schedule}"
    if training.chooses_warm_ups:
        return "the declarative model does not choose warm-ups, training.warm_up is choose; set classic or eager"
    return ""


def _posted_one_by_one(instance: Instance) -> int:
    """Return how many micro-batches have passes of their own in the model; the others are in closed formulas."""
    training, cost = instance.training, instance.cost
    if instance.goals[0] is Goal.STEP_TIME:
        return training.micro_batches if training.schedule is Schedule.ONE_F_ONE_B else 0
    once = training.micro_batches == 1 or cost.synchronisation is not Synchronisation.CHARGED
    return 0 if once else training.micro_batches
