"""Between what values an objective lies, and what the limits of an instance say of its stages."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import formulation.costs.lower_bound
from formulation.costs.ceiling import ceiling
from formulation.costs.tables import Tables
from formulation.problem.constraints import Goal
from formulation.problem.options import Combine
from formulation.problem.training import Schedule
from solvers.cpsat.valid import Floors


def thresholds_of(tables: Tables, threshold: int | None) -> dict[Goal, int]:
    """Return what plans may have at most of every goal: the user's limits, and ``threshold`` of the first goal.

    A limit that no plan can reach is lowered to what plans can have: the model counts in 64 bits.
    """
    instance = tables.instance
    limits = {one.goal: min(one.at_most, ceiling(tables, one.goal)) for one in instance.constraints.at_most}
    if threshold is not None:
        first = instance.goals[0]
        limits[first] = min(threshold, limits.get(first, threshold))
    return limits


def stage_threshold_ns(tables: Tables, limits: Mapping[Goal, int]) -> int:
    """Return what every stage and boundary takes at most: an iteration has a place for M of the slowest."""
    found = [ceiling(tables, Goal.BOTTLENECK)]
    if Goal.BOTTLENECK in limits:
        found.append(limits[Goal.BOTTLENECK])
    if Goal.ITERATION_TIME in limits:
        found.append(limits[Goal.ITERATION_TIME] // tables.instance.training.micro_batches)
    return min(found)


def lower_bound(tables: Tables, limits: Floors) -> int:
    """Return a value that no objective can undercut: the solver-free one, or more where the tables know more."""
    return max(formulation.costs.lower_bound.lower_bound(tables.instance), _by_tables(tables, limits))


def _by_tables(tables: Tables, limits: Floors) -> int:
    """Return a lower limit of times from areas and single layers with their communication; 0 for other goals."""
    goal, training = tables.instance.goals[0], tables.instance.training
    if goal is Goal.BOTTLENECK:
        return lower_bound_ns(tables, limits)
    if goal is not Goal.ITERATION_TIME:
        return 0
    pace, latency = lower_bound_ns(tables, limits), _latency_floor_ns(limits)
    if training.schedule is Schedule.NAIVE:
        return training.micro_batches * latency
    if not training.schedule.flushes:
        return training.micro_batches * pace
    return max(latency, pace) + (training.micro_batches - 1) * pace


def lower_bound_ns(tables: Tables, limits: Floors) -> int:
    """Return a time that no bottleneck can undercut."""
    if tables.instance.cost.combine is Combine.SUM:
        return _latency_floor_ns(limits)
    alone = max(int(np.diff(prefix).min(axis=0).max()) for prefix in limits.sums)
    return max(alone, -(-limits.unit_ns * int(limits.area[-1]) // int(limits.offer[-1])))


def _latency_floor_ns(limits: Floors) -> int:
    """Return what all layers one after another take at least."""
    return int(max(np.diff(prefix).min(axis=0).sum() for prefix in limits.sums))
