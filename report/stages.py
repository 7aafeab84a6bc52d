"""What stages are in words, and which of them is the bottleneck: for the terminal and for pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from formulation.costs.amounts import plural
from formulation.problem.constraints import Goal
from formulation.problem.layers import Split
from formulation.problem.options import BoundaryCharge, Combine
from formulation.problem.training import Schedule

if TYPE_CHECKING:
    from formulation.costs.prices import StageCost
    from formulation.problem.instance import Instance
    from formulation.problem.plan import Stage


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
    return "split by " + " and ".join(f"{way} ({_layers(number)})" for way, number in ways)


def _layers(number: int) -> str:
    return f"{number} {plural(number, 'layer')}"
