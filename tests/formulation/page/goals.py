"""docs/formulation.md, "Goals"."""

from __future__ import annotations

from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.options import BoundaryCharge, Combine
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule
from tests.formulation.page.chunks import groups, on
from tests.formulation.page.memory import group_peak_bytes, peak_bytes
from tests.formulation.page.numbers import Numbers
from tests.formulation.page.passes import Passes
from tests.formulation.page.stages import PricedStage

EXECUTED = {Goal.STEP_TIME: Passes.step_ns, Goal.PERIOD: Passes.period_ns}


def priced(numbers: Numbers, plan: Plan) -> list[PricedStage]:
    """The stages of a plan that has a price."""
    return [PricedStage(numbers, plan, index) for index in range(len(plan.stages))]


def peaks(stages: list[PricedStage]) -> list[int]:
    """peak_s of every stage; of those that share a group that of the group."""
    numbers, total = stages[0].numbers, len(stages)
    if numbers.training.chunks > 1:
        return [group_peak_bytes(stages, on(numbers, stage.index, total)) for stage in stages]
    return [peak_bytes(stage, total - stage.index) for stage in stages]


def value(goal: Goal, numbers: Numbers, stages: list[PricedStage]) -> int:
    """The value of a goal."""
    own = stages[: groups(numbers, len(stages))]
    """One stage of every group."""
    if goal is Goal.COST:
        classes = [numbers.servers[server].device_class for stage in own for server in stage.servers]
        return sum(one.price_per_hour for one in classes)
    if goal is Goal.MEMORY:
        return max(peaks(stages))
    if goal is Goal.DEVICES:
        return sum(len(stage.servers) for stage in own)
    if goal is Goal.STAGES:
        return len(stages)
    if goal in EXECUTED:
        return EXECUTED[goal](Passes(numbers, stages))
    terms = _terms(numbers, stages)
    if goal is Goal.BOTTLENECK:
        return max(terms) if numbers.cost.combine is Combine.MAX else sum(terms)
    schedule, steps = numbers.training.schedule, numbers.training.micro_batches
    if schedule is Schedule.NAIVE:
        return steps * sum(terms)
    if schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B):
        return sum(terms) + (steps - 1) * max(terms)
    return steps * max(terms)


def _terms(numbers: Numbers, stages: list[PricedStage]) -> list[int]:
    """The times of groups, and where links pay of the links between them."""
    places = [on(numbers, at, len(stages)) for at in range(len(stages))]
    terms = _sums([stage.total_ns for stage in stages], places)
    if numbers.cost.boundary_charge is BoundaryCharge.LINK:
        if numbers.training.schedule is Schedule.ZERO_BUBBLE_V:
            places = list(map(max, places, [0, *places]))
        terms += _sums([stage.boundary_ns for stage in stages], places)
    return terms


def _sums(times: list[int], places: list[int]) -> list[int]:
    """The sums over the stages of each group, or over the boundaries of each link."""
    return [sum(time for time, at in zip(times, places, strict=True) if at == one) for one in {*places}]
