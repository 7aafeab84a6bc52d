"""The price of any plan, recomputed from the instance alone: no solver, no table, no cleverness.

``evaluate`` is what makes a solver's claim checkable: it re-derives every time from ``formulation.costs.times``
layer by layer (``formulation.costs.prices``), and is compared with ``==`` to what the solver said.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipecut.formulation.constraints.constraint import Violation
from pipecut.formulation.constraints.rules import RULES, structure_violations
from pipecut.formulation.costs.goals import goal_value
from pipecut.formulation.costs.once import once
from pipecut.formulation.costs.prices import StageCost, stage_costs
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The price of a plan and the rules that it breaks. No objective for a plan that is none (see rules).

    ``objective`` is the value of the instance's first goal, ``further`` those of its other goals, in their order.
    """

    objective: int | None
    stages: tuple[StageCost, ...]
    violations: tuple[Violation, ...]
    further: tuple[int, ...] = ()

    @property
    def feasible(self) -> bool:
        """Tell whether the plan keeps every rule."""
        return not self.violations


@once(4)
def evaluate(instance: Instance, plan: Plan) -> Evaluation:
    """Price a plan and list the rules that it breaks. Cost: linear in layers and edges of every stage.

    The last few answers are kept: a claim is checked, compared, shown and written by the same evaluation.
    """
    broken = tuple(structure_violations(instance, plan))
    if broken:
        return Evaluation(None, (), broken)
    stages = stage_costs(instance, plan)
    violations = tuple(found for rule in RULES for found in rule.check(instance, plan))
    first, *further = (goal_value(goal, instance, plan, stages) for goal in instance.goals)
    return Evaluation(first, stages, violations, tuple(further))
