"""A first plan, so that a search never starts empty-handed: simple, fast, and owed to no dynamic programme.

Two candidates: the whole model on the first device, and stages of one device each, packed greedily along the
line under the smallest threshold for which packing succeeds (found by bisection). Where neither keeps the rules,
and for the time of a step, plans of equal groups in equal modes (``solvers.search.balanced``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from formulation.costs.tables import Tables
from formulation.evaluate import evaluate
from formulation.problem.constraints import Goal
from formulation.problem.groups import Group, line
from formulation.problem.instance import Instance
from formulation.problem.modes import ONE_COPY, modes
from formulation.problem.plan import Plan, Span, Stage
from solvers.search.balanced import balanced_plans

BALANCED, KEPT = 8, 4
"""How many plans of equal groups are priced at most, and of those that keep the rules."""


def first_plan(tables: Tables) -> Plan | None:
    """Return the best candidate that keeps every rule; None if none does (memory may forbid all of them).

    Cost: O(devices x layers) for each of some 40 thresholds.
    """
    instance = tables.instance
    candidates = [_plan(instance, [0, len(instance.layers)])]
    packed = _packed(tables)
    if packed is not None:
        candidates.append(_plan(instance, packed))
    kept = list(_priced(instance, candidates))
    if not kept or instance.goals[0] in (Goal.ITERATION_TIME, Goal.STEP_TIME):
        balanced = itertools.islice(balanced_plans(instance), BALANCED)
        kept += itertools.islice(_priced(instance, balanced), KEPT)
    return min(kept, key=lambda pair: pair[0], default=(0, None))[1]


def _priced(instance: Instance, plans: Iterable[Plan]) -> Iterator[tuple[int, Plan]]:
    """Yield the plans that keep every rule, with their values."""
    for plan in plans:
        found = evaluate(instance, plan)
        if found.feasible and found.objective is not None:
            yield found.objective, plan


def _plan(instance: Instance, cuts: list[int]) -> Plan:
    mode = next(iter(modes(instance, 1)), ONE_COPY)
    stages = [
        Stage(Span(first, stop), Group.on_line(instance, index, 1, mode), (0,) * (stop - first))
        for index, (first, stop) in enumerate(itertools.pairwise(cuts))
    ]
    return Plan(tuple(stages))


def _packed(tables: Tables) -> list[int] | None:
    """Return cut points 0 .. N of the best greedy packing, or None if the first device takes all anyway."""
    classes = [tables.instance.class_index(server) for server in line(tables.instance)]
    work = [
        np.add(tables.instance.forward_ns[one], tables.instance.backward_ns[one]).astype(np.int64)
        for one in range(len(tables.instance.device_classes))
    ]
    prefix = [np.concatenate([[0], np.cumsum(row)]) for row in work]
    alone = [Group.on_line(tables.instance, at, 1) for at in range(tables.instance.devices)]
    links = [Group.link_between(tables.instance, *pair) for pair in itertools.pairwise(alone)]
    both = tables.activation + tables.gradient
    crossing = [both[tables.links.index(link)] for link in links if link is not None] + [
        np.zeros(len(prefix[0]), dtype=np.int64)
    ]
    low, high, best = 0, int(max(row[-1] for row in prefix)), None
    while low < high:
        middle = (low + high) // 2
        cuts = _pack([prefix[one] for one in classes], crossing, middle)
        if cuts is None:
            low = middle + 1
        else:
            high, best = middle, cuts
    return best


def _pack(rows: list[np.ndarray], crossing: list[np.ndarray], threshold_ns: int) -> list[int] | None:
    """Fill device after device up to the threshold, ending each stage at the last cut that is cheap enough."""
    total = len(crossing[0]) - 1
    cuts = [0]
    for row, boundary in zip(rows, crossing, strict=True):
        cheap = np.flatnonzero(boundary <= threshold_ns)
        furthest = int(np.searchsorted(row, row[cuts[-1]] + threshold_ns, side="right")) - 1
        reachable = cheap[: np.searchsorted(cheap, furthest, side="right")]
        cut = int(reachable[-1]) if len(reachable) else 0
        if cut <= cuts[-1]:
            return None
        cuts.append(cut)
        if cut == total:
            return cuts
    return None
