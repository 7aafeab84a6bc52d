"""The limits of an instance one by one, from its constraints; and the instance without some of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from formulation.constraints.devices.memory import enough_bytes, more_memory
from formulation.constraints.layers.no_cut import PLACES
from formulation.constraints.loosening import Limit, changed
from formulation.problem.instance import Instance

__all__: list[str] = []


def limits_of(instance: Instance) -> tuple[Limit, ...]:
    """Return every limit of an instance, those first that an explanation should rather do without."""
    values = sorted(instance.constraints.values, key=lambda one: one.rank)
    return tuple(limit for one in values for limit in one.loosenings(instance))


def without(instance: Instance, limits: Iterable[Limit]) -> Instance:
    """Return the instance without some of its limits."""
    gone = {(limit.kind, limit.entry) for limit in limits}
    new: dict[str, Any] = {}
    for one in instance.constraints.values:
        new |= one.without(gone, instance)
    if any(kind == PLACES for kind, _ in gone):
        instance = replace(instance, model=replace(instance.model, cuts=None))
    # How much memory devices have is a limit of the cluster, not of the constraints.
    classes = {str(name) for kind, name in gone if kind == "memory"}
    return more_memory(changed(instance, **new), classes, enough_bytes(instance))
