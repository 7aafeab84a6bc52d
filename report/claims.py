"""What a claim is about, in words: the objective under the goal of the instance, and numbers of every goal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from formulation.outcome import GoalClaim, Outcome
from formulation.problem.constraints import Goal
from formulation.problem.instance import Instance
from formulation.problem.options import Combine
from formulation.scope import scope_of, scope_parts

MEANINGS = {
    Goal.ITERATION_TIME: "one optimiser step, with its fill and drain, by the formula",
    Goal.STEP_TIME: "one optimiser step as executed, links without queues",
    Goal.PERIOD: "one micro-batch in the steady state as executed, links without queues",
    Goal.COST: "the price per hour of the devices used",
    Goal.MEMORY: "the largest peak memory of any stage, on one device",
    Goal.DEVICES: "the devices used",
    Goal.STAGES: "the stages",
}
FORMATS = {
    "ns": ("ns", "exact"),
    "bytes": ("bytes", "exact_bytes"),
    "millionths per hour": ("price", "price"),
}
"""How a number of a unit is written, for the eye and exactly; of any other unit, a count, it is whole."""


def meaning_of(instance: Instance) -> str:
    """Return what the objective of an instance is."""
    goal = instance.goals[0]
    if goal is not Goal.BOTTLENECK:
        return MEANINGS[goal]
    slowest = "the slowest" if instance.cost.combine is Combine.MAX else "the sum"
    return f"{slowest} of all stages and boundaries, per micro-batch"


def formats_of(unit: str) -> tuple[str, str]:
    """Return the formats (``report.wording.FORMATS``) of a goal's unit: rounded for the eye, and exact."""
    return FORMATS.get(unit, ("whole", "whole"))


def goals_to_list(outcome: Outcome) -> list[dict[str, Any]]:
    """Return what is claimed of every goal as plain data; nothing without a plan."""
    return claims_to_list(outcome.claims)


def claims_to_list(claims: Sequence[GoalClaim]) -> list[dict[str, Any]]:
    """Return claims as plain data: value and bound in ``unit``, the gap, and whether the value is proved best."""
    return [
        {
            "goal": str(claim.goal),
            "unit": claim.goal.unit,
            "value": claim.value,
            "bound": claim.bound,
            "gap": claim.gap,
            "status": str(claim.status),
        }
        for claim in claims
    ]


def scope_to_dict(instance: Instance) -> dict[str, Any]:
    """Return among which plans a claim about the instance holds, as plain data with its words."""
    scope = scope_of(instance)
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(scope).items()}
    limits = {str(one.goal): one.at_most for one in scope.at_most}
    return plain | {"at_most": limits, "words": scope_parts(scope)}
