"""docs/formulation.md, "Goals"."""

from __future__ import annotations

from formulation.problem.options import BoundaryCharge, Combine, Goal, Schedule
from formulation.problem.plan import Plan
from tests.formulation.page.memory import peak_bytes
from tests.formulation.page.numbers import Numbers
from tests.formulation.page.stages import PricedStage


def priced(numbers: Numbers, plan: Plan) -> list[PricedStage]:
    """The stages of a plan that has a price."""
    return [PricedStage(numbers, plan, index) for index in range(len(plan.stages))]


def peaks(stages: list[PricedStage]) -> list[int]:
    """peak_s of every stage."""
    return [peak_bytes(stage, len(stages) - stage.index) for stage in stages]


def value(goal: Goal, numbers: Numbers, stages: list[PricedStage]) -> int:
    """The value of a goal."""
    if goal is Goal.COST:
        classes = [numbers.servers[server].device_class for stage in stages for server in stage.servers]
        return sum(one.price_per_hour for one in classes)
    if goal is Goal.MEMORY:
        return max(peaks(stages))
    if goal is Goal.DEVICES:
        return sum(len(stage.servers) for stage in stages)
    if goal is Goal.STAGES:
        return len(stages)
    terms = [stage.total_ns for stage in stages]
    if numbers.cost.boundary_charge is BoundaryCharge.LINK:
        terms += [stage.boundary_ns for stage in stages]
    if goal is Goal.BOTTLENECK:
        return max(terms) if numbers.cost.combine is Combine.MAX else sum(terms)
    schedule, steps = numbers.training.schedule, numbers.training.micro_batches
    if schedule is Schedule.NAIVE:
        return steps * sum(terms)
    if schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B):
        return sum(terms) + (steps - 1) * max(terms)
    return steps * max(terms)
