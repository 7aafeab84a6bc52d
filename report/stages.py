"""What stages are in words, and which of them is the bottleneck: for the terminal and for pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from formulation.costs.amounts import plural
from formulation.problem.layers import Split
from formulation.problem.modes import SPLITS
from formulation.problem.options import BoundaryCharge, Combine

if TYPE_CHECKING:
    from formulation.costs.prices import StageCost
    from formulation.problem.instance import Instance
    from formulation.problem.plan import Stage

__all__ = ["boundaries_paid", "slowest_ns", "split_in_words"]


def boundaries_paid(instance: Instance) -> bool:
    """Tell whether boundaries have a time of their own beside those of stages."""
    return instance.cost.boundary_charge is BoundaryCharge.LINK


def slowest_ns(instance: Instance, costs: Sequence[StageCost]) -> int | None:
    """Return the largest time of a stage or boundary; None where the objective is the sum of them."""
    if not costs or instance.cost.combine is Combine.SUM:
        return None
    paid = boundaries_paid(instance)
    return max(max(cost.total_ns, cost.boundary_ns if paid else 0) for cost in costs)


def split_in_words(instance: Instance, stage: Stage) -> str:
    """Say how the layers that choose a form are split, the commonest way first; nothing where none is."""
    if stage.group.tensor_parallel_degree == 1:
        return ""
    chosen = Counter(
        form
        for layer, form in zip(stage.span.layers, stage.forms, strict=False)
        if layer < len(instance.layers) and instance.layers[layer].split is not Split.FOLLOW
    )
    ways = [(SPLITS.get(form, f"form {form}"), number) for form, number in chosen.most_common()]
    if len(ways) < 2:
        return "".join(f"split by {way}" for way, _ in ways)
    return "split by " + " and ".join(f"{way} ({_layers(number)})" for way, number in ways)


def _layers(number: int) -> str:
    return f"{number} {plural(number, 'layer')}"
