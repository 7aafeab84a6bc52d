"""What a published planner believes of its plan, beside what the evaluator finds: words for an outcome's notes."""

from __future__ import annotations

from formulation.costs.amounts import goal_amount
from formulation.problem.instance import Instance


def believes(who: str, believed_ns: int, instance: Instance, found: int | None) -> str:
    """Say what a planner expects, a time in ns, and the value of the first goal that the plan really has."""
    priced = "no price" if found is None else goal_amount(instance.goals[0], found)
    return f"{who} {believed_ns} ns, the evaluator finds {priced}"
