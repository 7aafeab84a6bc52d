"""What a neighbour costs, what a change does, and names of layers and links: in few words."""

from __future__ import annotations

from collections.abc import Sequence

from commands.terminal import human
from formulation.constraints.violation import told
from formulation.costs.amounts import goal_text
from formulation.problem.constraints import Goal
from formulation.problem.instance import Instance
from formulation.problem.plan import Span
from formulation.problem.units import Link
from solvers.reasons.choices import Neighbour
from solvers.reasons.differences import PlanDifference
from solvers.reasons.reasons import Reasons

BREAKS = "breaks"
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
NAMES = {
    Goal.BOTTLENECK: "slowest",
    Goal.ITERATION_TIME: "step",
    Goal.STEP_TIME: "executed step",
    Goal.PERIOD: "period",
    Goal.COST: "cost",
    Goal.MEMORY: "memory",
    Goal.DEVICES: "devices",
    Goal.STAGES: "stages",
}
"""A word for every goal where several stand in one line."""


def cost_text(found: Reasons, one: Neighbour) -> str:
    """Say what a neighbour costs: of the first goal in which it differs; or which rule it breaks."""
    goals = found.instance.goals
    said = "as good"
    for goal, cost, value in zip(goals, one.costs, found.priced.values, strict=True):
        if cost:
            share = f" ({human.gap(abs(cost) / value)})" if value else ""
            which = "" if goal is goals[0] else f"as good, and in {NAMES[goal]} "
            said = f"{which}{goal_text(goal, abs(cost))} {'more' if cost > 0 else 'less'}{share}"
            break
    if one.priced.violations:
        rule, message = told(one.priced.violations)[0]
        return f"{said}, but {BREAKS} {rule}: {message}"
    return said


def change_text(found: PlanDifference, effects: Sequence[int]) -> str:
    """Say what a change does to every measure: ``slowest +4.880 ms, memory -1.200 GiB``."""
    said = [
        f"{NAMES[goal]} {'-' if effect < 0 else '+'}{goal_text(goal, abs(effect))}"
        for goal, effect in zip(found.measures, effects, strict=True)
        if effect
    ]
    return ", ".join(said) or "no effect"


def value_text(found: PlanDifference, values: Sequence[int]) -> str:
    """Write the value of every measure."""
    return ", ".join(
        f"{NAMES[goal]} {goal_text(goal, value)}" for goal, value in zip(found.measures, values, strict=True)
    )


def layers_text(instance: Instance, span: Span) -> str:
    """Name the layers of a stage by the first and the last."""
    first, last = instance.layers[span.first].name, instance.layers[span.stop - 1].name
    return first if len(span) == 1 else f"{first} {ELLIPSIS} {last}"


def link_text(link: Link | None) -> str:
    """Write a link: ``10 Gbit/s``."""
    if link is None:
        return "no link"
    for unit, size in (("Gbit/s", 10**9), ("Mbit/s", 10**6)):
        if link.bits_per_second >= size:
            return f"{link.bits_per_second / size:g} {unit}"
    return f"{link.bits_per_second} bit/s"
