"""What a plan is judged by, as whole numbers: the value of every goal, from the costs of its stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from formulation.costs.prices import StageCost
from formulation.problem.instance import Instance
from formulation.problem.options import BoundaryCharge, Combine, Goal, Schedule
from formulation.problem.plan import Plan

__all__ = ["UNITS", "goal_value"]

Costs = tuple[StageCost, ...]

UNITS: Mapping[Goal, str] = MappingProxyType(
    {
        Goal.BOTTLENECK: "ns",
        Goal.ITERATION_TIME: "ns",
        Goal.COST: "millionths per hour",
        Goal.MEMORY: "bytes",
        Goal.DEVICES: "devices",
        Goal.STAGES: "stages",
    }
)


def goal_value(goal: Goal, instance: Instance, plan: Plan, stages: Costs) -> int:
    """Return the value of a goal, in the unit of :data:`UNITS`, for a plan with these stage costs."""
    return _VALUES[goal](instance, plan, stages)


def bottleneck(instance: Instance, plan: Plan, stages: Costs) -> int:
    """Return the largest of all stage and boundary times, or under ``Combine.SUM`` their sum (PipePar eq. 1)."""
    terms = _terms(instance, stages)
    return max(terms) if instance.cost.combine is Combine.MAX else sum(terms)


def iteration_time(instance: Instance, plan: Plan, stages: Costs) -> int:
    """Return the time of one optimiser step of M micro-batches.

    ``latency + (M - 1) * bottleneck``: fill and drain are one micro-batch's way through all stages and boundaries
    and back, the steady state lets one micro-batch out per bottleneck (Alpa, OSDI'22, eq. 2; for equal stages
    ``(M + S - 1)`` times one, Megatron-LM §2.2). Without a pipeline M times the latency; without a flush M times
    the bottleneck. Gradients are summed once a step, 1/M of which is part of every stage time.
    """
    terms = _terms(instance, stages)
    schedule, steps = instance.training.schedule, instance.training.micro_batches
    if not schedule.flushes:
        return steps * max(terms)
    latency = sum(terms)
    return steps * latency if schedule is Schedule.NAIVE else latency + (steps - 1) * max(terms)


def cost(instance: Instance, plan: Plan, stages: Costs) -> int:
    """Return the price per hour of all devices that stages take."""
    return sum(
        count * instance.servers[server].device_class.price_per_hour
        for stage in plan.stages
        for server, count in stage.group.counts
    )


def memory(instance: Instance, plan: Plan, stages: Costs) -> int:
    """Return the largest peak of any stage, in bytes of one device."""
    return max(stage.memory_bytes for stage in stages)


def devices(instance: Instance, plan: Plan, stages: Costs) -> int:
    """Return how many devices the stages take."""
    return sum(stage.group.devices for stage in plan.stages)


def number_of_stages(instance: Instance, plan: Plan, stages: Costs) -> int:
    """Return how many stages there are."""
    return len(plan)


def _terms(instance: Instance, stages: Costs) -> list[int]:
    """Return the times of all stages and, where links pay for them, of all boundaries."""
    terms = [stage.total_ns for stage in stages]
    if instance.cost.boundary_charge is BoundaryCharge.LINK:
        terms += [stage.boundary_ns for stage in stages]
    return terms


_VALUES: Mapping[Goal, Callable[[Instance, Plan, Costs], int]] = MappingProxyType(
    {
        Goal.BOTTLENECK: bottleneck,
        Goal.ITERATION_TIME: iteration_time,
        Goal.COST: cost,
        Goal.MEMORY: memory,
        Goal.DEVICES: devices,
        Goal.STAGES: number_of_stages,
    }
)
