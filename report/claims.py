"""What a claim is about, in words: the objective under the goal of the instance, and numbers of every goal.

What stages are in words, and which of them is the bottleneck: for the terminal and for pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pipecut.formulation.costs.amounts import counted
from pipecut.formulation.outcome import GoalClaim, Outcome
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.options import BoundaryCharge, Combine
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.scope import scope_of, scope_parts
from pipecut.formulation.searched import not_searched, searched

if TYPE_CHECKING:
    from pipecut.formulation.costs.prices import StageCost
    from pipecut.formulation.problem.plan import Stage

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
    said = {"searched": searched(instance), "not_searched": not_searched(instance)}
    return plain | {"at_most": limits, "words": scope_parts(scope)} | said


def boundaries_paid(instance: Instance) -> bool:
    """Tell whether boundaries have a time of their own beside those of stages."""
    return instance.cost.boundary_charge is BoundaryCharge.LINK


def slowest(instance: Instance, costs: Sequence[StageCost]) -> tuple[list[bool], list[bool]]:
    """Tell of every stage, and of the boundary before it, whether it has part in the largest time.

    That is the time of a group, with all stages that it holds, or of a link between groups; none has a part where
    the objective is a sum.
    """
    training, total = instance.training, len(costs)
    works, sends = [0] * total, [0] * total
    for rank in range(training.ranks(total)):
        held, before = training.stages_of(rank, total), training.boundaries_of(rank, total)
        for at in held:
            works[at] = sum(costs[one].total_ns for one in held)
        for at in before:
            sends[at] = sum(costs[one].boundary_ns for one in before)
    paid, summed = boundaries_paid(instance), instance.cost.combine is Combine.SUM
    most = max(works + sends if paid else works, default=0)  # what is no plan has no costs
    return [one == most and not summed for one in works], [one == most and paid and not summed for one in sends]


def slowest_in_words(instance: Instance) -> tuple[str, str]:
    """Return what the largest time is called, and what it means for the first goal."""
    goal = instance.goals[0]
    if goal is Goal.STEP_TIME:
        return "slowest", "the largest time for a micro-batch; a step also fills, drains and waits"
    if goal is Goal.PERIOD:
        return "slowest", "the largest time for a micro-batch; transfers may hide, or be waited for"
    if goal is Goal.ITERATION_TIME and instance.training.schedule is Schedule.NAIVE:
        return "slowest", "the largest time; micro-batches go one after another, so that all times count alike"
    return "bottleneck", "the bottleneck: a micro-batch cannot leave the pipeline more often than this"


def split_in_words(instance: Instance, stage: Stage) -> str:
    """Say how the layers that choose a form are split, the commonest way first; nothing where none is."""
    if stage.group.tensor_parallel_degree == 1:
        return ""
    chosen = Counter(
        form
        for layer, form in zip(stage.span.layers, stage.forms, strict=False)
        if layer < len(instance.layers) and instance.layers[layer].split is not Split.FOLLOW
    )
    ways = [(stage.in_words(form), number) for form, number in chosen.most_common()]
    if len(ways) < 2:
        return "".join(f"split by {way}" for way, _ in ways)
    return "split by " + " and ".join(f"{way} ({counted(number, 'layer')})" for way, number in ways)
