"""Values that no plan exceeds: where a search may start from above, without any plan."""

from __future__ import annotations

import numpy as np

from formulation.costs.tables import Tables
from formulation.problem.magnitude import FORBIDDEN, most_bytes
from formulation.problem.options import Goal

__all__ = ["ceiling", "ceiling_ns"]


def ceiling_ns(tables: Tables) -> int:
    """Return a time that no bottleneck exceeds: everything at its dearest, one after another."""
    real = np.where(tables.inside < FORBIDDEN, tables.inside, 0)
    return int(
        tables.compute.max(axis=0).sum()
        + real.max(axis=(0, 2)).sum()
        + tables.between.max(axis=(0, 2, 3)).sum()
        + (tables.activation + tables.gradient).max(axis=0, initial=0).sum()
    )


def ceiling(tables: Tables, goal: Goal) -> int:
    """Return a value of a goal that no plan exceeds."""
    instance = tables.instance
    time, steps = ceiling_ns(tables), instance.training.micro_batches
    devices = sum(server.devices for server in instance.servers)
    return {
        Goal.BOTTLENECK: time,
        Goal.ITERATION_TIME: steps * time,
        Goal.COST: sum(server.devices * server.device_class.price_per_hour for server in instance.servers),
        Goal.MEMORY: most_bytes(instance),
        Goal.DEVICES: devices,
        Goal.STAGES: min(devices, len(instance.layers)),
    }[goal]
