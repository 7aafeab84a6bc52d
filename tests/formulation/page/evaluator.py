"""A second evaluator, written from docs/formulation.md alone.

It reads what a user writes (the two graphs, training, cost, constraints, goals) and a plan. It calls nothing that
works prices out in ``formulation``, so a formula that the page has wrong, or leaves open, makes it disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from tests.formulation.page.goals import peaks, priced, value
from tests.formulation.page.memory import capacity_bytes
from tests.formulation.page.numbers import numbers_of
from tests.formulation.page.rules import broken, covers, works


@dataclass(frozen=True, slots=True)
class StagePrice:
    """One stage: ns of a micro-batch, bytes of one device."""

    compute_ns: int
    inside_ns: int
    between_ns: int
    received_ns: int
    total_ns: int
    boundary_ns: int
    memory_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, slots=True)
class Price:
    """The values of all goals in order, the stages, and the rules that the plan breaks. No values: no plan."""

    goals: tuple[int, ...]
    stages: tuple[StagePrice, ...]
    broken: frozenset[str]


def evaluate_page(instance: Instance, plan: Plan) -> Price:
    """Price a plan as the page says."""
    numbers = numbers_of(instance)
    no_plan = {"cover": covers(numbers, plan), "devices": works(numbers, plan)}
    if not all(no_plan.values()):
        return Price((), (), frozenset(name for name, kept in no_plan.items() if not kept))
    stages = priced(numbers, plan)
    found = [
        StagePrice(
            compute_ns=stage.compute_ns,
            inside_ns=stage.inside_ns,
            between_ns=stage.between_ns,
            received_ns=stage.received_ns,
            total_ns=stage.total_ns,
            boundary_ns=stage.boundary_ns,
            memory_bytes=peak,
            capacity_bytes=capacity_bytes(stage),
        )
        for stage, peak in zip(stages, peaks(stages), strict=True)
    ]
    values = tuple(value(goal, numbers, stages) for goal in numbers.goals)
    return Price(values, tuple(found), frozenset(broken(numbers, instance, plan)))
