"""What the goals measure, in words; their values are written by ``formulation.costs.amounts``."""

from __future__ import annotations

from formulation.problem.constraints import Goal
from formulation.problem.instance import Instance
from formulation.problem.options import Combine


def goal_name(instance: Instance, goal: Goal) -> str:
    """Say what a goal measures."""
    if goal is Goal.BOTTLENECK:
        largest = instance.cost.combine is Combine.MAX
        which = "the slowest stage or boundary" if largest else "the sum of all stages and boundaries"
        return f"{which} for one micro-batch"
    return NAMES[goal]


NAMES = {
    Goal.ITERATION_TIME: "one optimiser step by the formula",
    Goal.STEP_TIME: "one optimiser step as executed, links without queues",
    Goal.PERIOD: "one micro-batch in the steady state as executed, links without queues",
    Goal.COST: "all devices that stages take",
    Goal.MEMORY: "the largest peak of a device",
    Goal.DEVICES: "that stages take",
    Goal.STAGES: "of the pipeline",
}
