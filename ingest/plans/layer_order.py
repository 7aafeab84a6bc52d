"""The order of the layers that a plan cuts: it may run branches of a model in another order than the traced one.

A plan file lists the layers of every stage by name. Where they are all layers of the model, each once, and every
producer still comes before its consumers, their order is as good as the traced one: the plan is one of the same
problem with its layers in that order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from formulation.problem.instance import Instance

__all__ = ["in_order_of"]


def in_order_of(data: object, instance: Instance) -> Instance:
    """Return the instance in the order of a plan's data; as it is, where the plan does not list another one."""
    listed = list(_listed(data))
    index = {layer.name: at for at, layer in enumerate(instance.layers)}
    order = [index.get(name, -1) if isinstance(name, str) else -1 for name in listed]
    if order == list(range(len(order))) or sorted(order) != list(range(len(index))):
        return instance
    try:
        return replace(instance, model=instance.model.in_order(order))
    except ValueError:
        # Not an order of this model: what is wrong with the plan is said by whoever reads it.
        return instance


def _listed(data: object) -> Iterator[object]:
    stages = data.get("stages") if isinstance(data, Mapping) else None
    for stage in stages if isinstance(stages, list) else ():
        layers = stage.get("layers") if isinstance(stage, Mapping) else None
        yield from layers if isinstance(layers, list) else (None,)
