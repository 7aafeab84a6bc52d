"""Values of goals for people: times, amounts of memory, prices and counts with the unit that fits."""

from __future__ import annotations

from formulation.instance import Instance
from formulation.options import Combine, Goal
from scenarios import human


def goal_text(goal: Goal, value: int) -> str:
    """Return a value as short text: ``12.34 ms``, ``9.500 GiB``, ``19.84 per hour``, ``3 stages``."""
    if goal in (Goal.BOTTLENECK, Goal.ITERATION_TIME):
        return human.duration(value)
    if goal is Goal.MEMORY:
        return human.amount(value)
    if goal is Goal.COST:
        return f"{value / 10**6:,.6g} per hour"
    return human.count(value, "device" if goal is Goal.DEVICES else "stage")


def exact_goal_text(goal: Goal, value: int) -> str:
    """Return a value for the eye and, of times and memory, to the last unit as well."""
    if goal in (Goal.BOTTLENECK, Goal.ITERATION_TIME):
        return human.exact_duration(value)
    return f"{human.amount(value)} ({value:,} bytes)" if goal is Goal.MEMORY else goal_text(goal, value)


def goal_name(instance: Instance, goal: Goal) -> str:
    """Say what a goal measures."""
    if goal is Goal.BOTTLENECK:
        largest = instance.cost.combine is Combine.MAX
        which = "the slowest stage or boundary" if largest else "the sum of all stages and boundaries"
        return f"{which} for one micro-batch"
    return NAMES[goal]


NAMES = {
    Goal.ITERATION_TIME: "one optimiser step",
    Goal.COST: "all devices that stages take",
    Goal.MEMORY: "the largest peak of a device",
    Goal.DEVICES: "that stages take",
    Goal.STAGES: "of the pipeline",
}
