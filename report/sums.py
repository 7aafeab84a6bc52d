"""How the objective follows from the times of stages and boundaries, which a page lists."""

from __future__ import annotations

from typing import Any

from formulation.problem.constraints import Goal
from formulation.problem.options import Combine
from formulation.problem.training import Schedule
from report.simulation import Simulation
from report.stages import boundaries_paid, slowest_in_words


def sums_of(simulation: Simulation) -> dict[str, Any]:
    """Return the sum and the largest of all times, and how the objective follows; None where it does not.

    With what the largest is ``called`` for this goal, and what it ``means``.
    """
    costs, instance = simulation.evaluation.stages, simulation.instance
    terms = [cost.total_ns for cost in costs]
    if boundaries_paid(instance):
        terms += [cost.boundary_ns for cost in costs[1:]]
    together, largest = sum(terms), max(terms)
    value, words = _objective(simulation, together, largest)
    follows = words if simulation.evaluation.objective == value else None
    called, means = slowest_in_words(instance)
    return {"sum_ns": together, "largest_ns": largest, "follows": follows, "called": called, "means": means}


def _objective(simulation: Simulation, together: int, largest: int) -> tuple[int | None, str]:
    """Return what the first goal should be worth by these times, and that in words."""
    instance = simulation.instance
    training, steps = instance.training, instance.training.micro_batches
    goal = instance.goals[0]
    if goal is Goal.BOTTLENECK:
        if instance.cost.combine is Combine.SUM:
            return together, "the sum of all times"
        return largest, "the largest time"
    if goal is not Goal.ITERATION_TIME:
        return None, ""
    if not training.schedule.flushes:
        return steps * largest, f"{steps:,} times the largest time, once a micro-batch"
    if training.schedule is Schedule.NAIVE:
        return steps * together, f"{steps:,} times the sum of all times, once a micro-batch"
    return together + (steps - 1) * largest, f"the sum of all times, and {steps - 1:,} times the largest"
