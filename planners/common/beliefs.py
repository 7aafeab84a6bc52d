"""What a published planner believes of its plan, beside what the evaluator finds: words for an outcome's notes."""

from __future__ import annotations

from formulation.costs.amounts import exact_duration, goal_amount
from formulation.problem.instance import Instance


def believes(who: str, believed_ns: int, instance: Instance, found: int | None) -> str:
    """Say what a planner expects, a time in ns, and the value of the first goal that the plan really has."""
    priced = "no price" if found is None else goal_amount(instance.goals[0], found)
    return f"{who} {exact_duration(believed_ns)}; the evaluator finds {priced}"


def levels_in_words(levels: int) -> str:
    """Say how many levels of the cluster a planner tells apart."""
    return "sees one flat row of devices" if levels == 1 else f"sees {levels} levels: servers, and devices in each"
