"""Whether it matters to a stage how many stages come behind it, beside the devices that they take."""

from __future__ import annotations

from formulation.problem.instance import Instance
from formulation.schedules.keeps import Keeps

__all__ = ["slots_matter"]


def slots_matter(instance: Instance) -> bool:
    """Tell whether what a stage may hold depends on its slot: memory counts and not all stages keep as much."""
    last = min(len(instance.layers), instance.devices) - 1
    return instance.constraints.memory and Keeps.in_slot(instance.training, 0) != Keeps.in_slot(
        instance.training, last
    )
