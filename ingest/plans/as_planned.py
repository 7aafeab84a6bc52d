"""What a plan chose that its scenario leaves open: the order of the layers, of the passes, and micro-batches.

A plan file lists the layers of every stage by name. Where they are all layers of the model, each once, and every
producer still comes before its consumers, their order is as good as the traced one: the plan is one of the same
problem with its layers in that order. Where a scenario lets the number of micro-batches, the schedule, or how many
stages a group holds be chosen, a plan says it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from formulation.problem.instance import Instance


def choices_to_dict(instance: Instance) -> dict[str, Any]:
    """Return what a file says of choices beside the stages: what of the training could be chosen, by its key."""
    training = instance.training
    return {name: getattr(training, name) for name in training.left_open}


def as_planned(data: object, instance: Instance) -> Instance:
    """Return the instance with what a plan's data chose; as it is, where it leaves nothing of that open."""
    return _in_its_order(data, _with_its_training(data, instance))


def _with_its_training(data: object, instance: Instance) -> Instance:
    chosen = instance.training.chosen(data) if isinstance(data, Mapping) else None
    if chosen in (None, instance.training):
        return instance
    return replace(instance, training=chosen)


def _in_its_order(data: object, instance: Instance) -> Instance:
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
