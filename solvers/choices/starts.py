"""Plans that searches begin with in a choice of trainings: under ZB-H1 the best one by the formula for 1F1B.

A plan of one order of the passes is a plan of another one, if its rules say so; ZB-H1 keeps as much as 1F1B. No
formula is about backward passes in halves, and none sees how many stages there are to be: what is best for whole
passes, in any number of stages, says which number is looked at first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from formulation.evaluate import evaluate
from formulation.outcome import Limits, Outcome, Progress
from formulation.problem.constraints import Goal
from formulation.problem.instance import Instance, longest_run_ns
from formulation.problem.options import BoundaryCharge, Combine
from formulation.problem.plan import Plan
from formulation.problem.training import Schedule

Ask = Callable[[Instance, Limits], tuple[Instance, Outcome]]
"""Any search of one instance: the instance that its outcome is about, in whatever order, and the outcome."""
PART, MOST_S = 6, 10.0
"""The formula may take one part in so many of the time, and so long at most."""
Start = tuple[int, Plan]
"""The value of the first goal, and a plan that keeps the rules."""


def by_formula(instance: Instance, parts: Sequence[Instance], ask: Ask, limits: Limits) -> list[Plan]:
    """Return the best plan by the formula for whole backward passes, for each number of micro-batches under ZB-H1.

    None where nobody is asked for a step under ZB-H1, of several numbers of stages, or nobody takes the formula.
    """
    halves = [one for one in parts if one.training.schedule.in_halves and one.training.chunks == 1]
    numbers = sorted({one.training.micro_batches for one in halves})
    if instance.goals[0] is not Goal.STEP_TIME or len(halves) <= len(numbers) or limits.deadline.over():
        return []
    found: list[Plan] = []
    for at, many in enumerate(numbers):
        some = next(one for one in halves if one.training.micro_batches == many)
        training = replace(some.training, schedule=Schedule.ONE_F_ONE_B)
        cost = replace(instance.cost, combine=Combine.MAX, boundary_charge=BoundaryCharge.LINK)
        judged = replace(instance, training=training, cost=cost, goals=(Goal.ITERATION_TIME,))
        within = limits.share(PART * (len(numbers) - at)).within(MOST_S)
        # With a value that every plan is below nobody is asked to check what is only begun with.
        within = replace(within, below=longest_run_ns(some, many) + 1, start=None, progress=_nobody)
        try:
            plan = ask(judged, within)[1].plan
        except ValueError:
            continue
        found += [] if plan is None else [plan]
    return found


def start_of(instance: Instance, plans: Iterable[Plan]) -> Start | None:
    """Return the best of some plans that keep the rules of an instance. Cost: a price for each that may be one."""
    demands, found = instance.demands, list[Start]()
    for plan in dict.fromkeys(plans):
        if (demands.stages_at_least or 1) <= len(plan) <= (demands.stages_at_most or len(plan)):
            priced = evaluate(instance, plan)
            if priced.feasible and priced.objective is not None:
                found.append((priced.objective, plan))
    return min(found, key=lambda one: one[0], default=None)


def _nobody(_: Progress) -> None:
    """Values of another goal are nobody's progress."""
