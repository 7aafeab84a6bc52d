"""What bounds a plan: the terms that its objective is made of, and how near each stage is to its memory."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipecut.formulation.costs.prices import StageCost, stage_costs
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import BoundaryCharge, Combine
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.problem.units import Link


class TermOf(enum.StrEnum):
    """What a term of an objective is about."""

    STAGE = "stage"
    BOUNDARY = "boundary"
    """The boundary before the stage."""


@dataclass(frozen=True, slots=True)
class PlanTerm:
    """A part of the value of the first goal: ``value``, in the unit of the goal, is in it ``times`` times.

    ``binding``: the value cannot become better unless this term does, or it is the largest. ``link`` is that of a
    boundary; None where its stages share a device.
    """

    of: TermOf
    stage: int
    value: int
    times: int
    binding: bool
    link: Link | None = None


def plan_terms(instance: Instance, plan: Plan) -> tuple[PlanTerm, ...]:
    """Return the terms of the first goal of a plan that has a price; ``value * times`` add up to its value.

    Of equal largest terms of which one counts, the first one has the ``times``, and all are binding.
    Of executed times nothing is counted: what overlaps does not add up, and the largest term is the binding one.
    """
    goal, costs = instance.goals[0], stage_costs(instance, plan)
    if goal.timed:
        return _timed(instance, plan, costs, goal)
    values = list(_values(instance, plan, costs, goal))
    largest = max(values)
    if goal is Goal.MEMORY:
        counted = values.index(largest)
        rows = ((value, int(at == counted)) for at, value in enumerate(values))
    else:
        rows = ((value, 1) for value in values)
    return tuple(
        PlanTerm(TermOf.STAGE, at, value, times, binding=value == largest)
        for at, (value, times) in enumerate(rows)
    )


def bounding_stages(terms: Iterable[PlanTerm]) -> list[int]:
    """Return the stages that bound a plan, and those at both ends of a boundary that does."""
    stages = {term.stage for term in terms if term.binding}
    return sorted(stages | {term.stage - 1 for term in terms if term.binding and term.of is TermOf.BOUNDARY})


def _values(instance: Instance, plan: Plan, costs: tuple[StageCost, ...], goal: Goal) -> Iterator[int]:
    for stage, cost in zip(plan.stages, costs, strict=True):
        if goal is Goal.MEMORY:
            yield cost.memory_bytes
        elif goal is Goal.COST:
            prices = [server.device_class.price_per_hour for server in instance.servers]
            yield sum(count * prices[server] for server, count in stage.group.counts)
        else:
            yield stage.group.devices if goal is Goal.DEVICES else 1


def _timed(instance: Instance, plan: Plan, costs: tuple[StageCost, ...], goal: Goal) -> tuple[PlanTerm, ...]:
    rows = [(TermOf.STAGE, at, cost.total_ns) for at, cost in enumerate(costs)]
    if instance.cost.boundary_charge is BoundaryCharge.LINK:
        rows += [(TermOf.BOUNDARY, at, cost.boundary_ns) for at, cost in enumerate(costs) if at]
    each, paced = _counted(instance, goal)
    largest = max(value for _, _, value in rows)
    pace = [value for _, _, value in rows].index(largest)
    return tuple(
        PlanTerm(
            of,
            stage,
            value,
            times=each + (paced if at == pace else 0),
            binding=value == largest,
            link=plan.link_before(instance, stage) if of is TermOf.BOUNDARY else None,
        )
        for at, (of, stage, value) in enumerate(rows)
    )


def _counted(instance: Instance, goal: Goal) -> tuple[int, int]:
    """Return how often every term counts, and how often the largest one counts beside."""
    schedule, steps = instance.training.schedule, instance.training.micro_batches
    if goal.executed:
        return 0, 0
    if goal is Goal.BOTTLENECK:
        return (0, 1) if instance.cost.combine is Combine.MAX else (1, 0)
    if not schedule.flushes:
        return 0, steps
    return (steps, 0) if schedule is Schedule.NAIVE else (1, steps - 1)
