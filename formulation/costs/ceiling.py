"""Values that no plan exceeds: where a search may start from above, without any plan."""

from __future__ import annotations

import numpy as np

from formulation.costs.tables import Tables
from formulation.problem.constraints import Goal
from formulation.problem.instance import FORBIDDEN, longest_run_ns, most_bytes


def _longest_ns(tables: Tables) -> int:
    """Return a time that no bottleneck exceeds: everything at its dearest, one after another."""
    real = np.where(tables.inside < FORBIDDEN, tables.inside, 0)
    return int(
        (tables.compute[:, :, None] + real).max(axis=(0, 2)).sum()
        + sum(int(copy.max()) for copy in tables.copies.values())
        + tables.between.max(axis=(0, 2, 3)).sum()
        + (tables.activation + tables.gradient).max(axis=0, initial=0).sum()
    )


def ceiling(tables: Tables, goal: Goal) -> int:
    """Return a value of a goal that no plan exceeds."""
    instance = tables.instance
    time, steps = _longest_ns(tables), instance.training.micro_batches
    devices = sum(server.devices for server in instance.servers)
    return {
        Goal.BOTTLENECK: time,
        Goal.ITERATION_TIME: steps * time,
        Goal.STEP_TIME: longest_run_ns(instance, steps),
        Goal.PERIOD: longest_run_ns(instance, 1),
        Goal.COST: sum(server.devices * server.device_class.price_per_hour for server in instance.servers),
        Goal.MEMORY: most_bytes(instance),
        Goal.DEVICES: devices,
        Goal.STAGES: min(instance.training.chunks * devices, len(instance.layers)),
    }[goal]
