"""What a stage keeps by how many stages come behind it, and whether that matters beside the devices they take."""

from __future__ import annotations

from formulation.problem.instance import Instance
from formulation.schedules.keeps import Keeps


def slots_matter(instance: Instance) -> bool:
    """Tell whether what a stage may hold depends on its slot: memory counts and not all stages keep as much."""
    last = min(len(instance.layers), instance.devices) - 1
    return instance.constraints.memory and Keeps.in_slot(instance.training, 0) != Keeps.in_slot(
        instance.training, last
    )


def rules_by_slot(instance: Instance, slots: int) -> tuple[Keeps | None, ...]:
    """Return what a stage keeps in each of so many slots, the same in all where it does not matter.

    None where memory is not limited.
    """
    if not instance.constraints.memory:
        return (None,) * slots
    matter = slots_matter(instance)
    return tuple(Keeps.in_slot(instance.training, slot if matter else 0) for slot in range(slots))
