"""What a plan is judged by, as whole numbers: the value of every goal, from the costs of its stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pipecut.formulation.costs.passes import pipeline_passes
from pipecut.formulation.costs.prices import StageCost
from pipecut.formulation.executed import period_ns, step_of_training_ns
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import BoundaryCharge, Combine, Synchronisation
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule

Costs = tuple[StageCost, ...]


def goal_value(goal: Goal, instance: Instance, plan: Plan, stages: Costs) -> int:
    """Return the value of a goal, in its unit, for a plan with these stage costs."""
    return _VALUES[goal](instance, plan, stages)


def bottleneck(instance: Instance, plan: Plan, stages: Costs) -> int:
    """Return the largest of all stage and boundary times, or under ``Combine.SUM`` their sum (PipePar eq. 1).

    Of groups with several chunks, and of the links between them, the times of all their chunks together count.
    It is what a pipeline is paced by where nothing waits for transfers; :func:`period` is what is executed.
    """
    terms = _terms(instance, stages)
    return max(terms) if instance.cost.combine is Combine.MAX else sum(terms)


def iteration_time(instance: Instance, plan: Plan, stages: Costs) -> int:
    """Return the time of one optimiser step of M micro-batches.

    ``latency + (M - 1) * bottleneck``: fill and drain are one micro-batch's way through all stages and boundaries
    and back, the steady state lets one micro-batch out per bottleneck (Alpa, OSDI'22, eq. 2; for equal stages
    ``(M + S - 1)`` times one, Megatron-LM §2.2). Without a pipeline M times the latency; without a flush M times
    the bottleneck. Gradients are summed once a step, 1/M of which is part of every stage time.
    It is a formula, neither a lower nor an upper bound of what is executed (:func:`step_time`).
    """
    terms = _terms(instance, stages)
    schedule, steps = instance.training.schedule, instance.training.micro_batches
    if not schedule.flushes:
        return steps * max(terms)
    latency = sum(terms)
    return steps * latency if schedule is Schedule.NAIVE else latency + (steps - 1) * max(terms)


def step_time(instance: Instance, plan: Plan, stages: Costs) -> int:
    """Return the time of one optimiser step as executed, links without queues (``formulation.executed``).

    Raises ValueError for a schedule without a flush.
    """
    overlapped = instance.cost.synchronisation is Synchronisation.OVERLAPPED
    passes, warm_ups = pipeline_passes(instance, plan), plan.warm_ups(instance.training)
    return step_of_training_ns(instance.training, passes, overlapped=overlapped, warm_ups=warm_ups)


def period(instance: Instance, plan: Plan, stages: Costs) -> int:
    """Return the steady-state time of a micro-batch as executed, links without queues, rounded up.

    ``formulation.executed`` has how. Raises ValueError for a schedule with a flush.
    """
    training = instance.training
    if training.schedule.flushes:
        raise ValueError(
            f"a pipeline under {training.schedule} runs empty after every step; ask for its step_time"
        )
    overlapped = instance.cost.synchronisation is Synchronisation.OVERLAPPED
    return period_ns(pipeline_passes(instance, plan), training.micro_batches, overlapped=overlapped)


def cost(instance: Instance, plan: Plan, stages: Costs) -> int:
    """Return the price per hour of all devices that stages take."""
    return sum(
        count * instance.servers[server].device_class.price_per_hour
        for stage in plan.stages[: instance.training.ranks(len(plan))]
        for server, count in stage.group.counts
    )


def memory(instance: Instance, plan: Plan, stages: Costs) -> int:
    """Return the largest peak of any stage, in bytes of one device."""
    return max(stage.memory_bytes for stage in stages)


def devices(instance: Instance, plan: Plan, stages: Costs) -> int:
    """Return how many devices the stages take."""
    return sum(stage.group.devices for stage in plan.stages[: instance.training.ranks(len(plan))])


def number_of_stages(instance: Instance, plan: Plan, stages: Costs) -> int:
    """Return how many stages there are."""
    return len(plan)


def _terms(instance: Instance, stages: Costs) -> list[int]:
    """Return the times of all groups and, where links pay for boundaries, of all links between groups."""
    training, total = instance.training, len(stages)
    ranks = range(training.ranks(total))
    terms = [sum(stages[at].total_ns for at in training.stages_of(rank, total)) for rank in ranks]
    if instance.cost.boundary_charge is BoundaryCharge.LINK:
        terms += [sum(stages[at].boundary_ns for at in training.boundaries_of(rank, total)) for rank in ranks]
    return terms


_VALUES: Mapping[Goal, Callable[[Instance, Plan, Costs], int]] = MappingProxyType(
    {
        Goal.BOTTLENECK: bottleneck,
        Goal.ITERATION_TIME: iteration_time,
        Goal.STEP_TIME: step_time,
        Goal.PERIOD: period,
        Goal.COST: cost,
        Goal.MEMORY: memory,
        Goal.DEVICES: devices,
        Goal.STAGES: number_of_stages,
    }
)
