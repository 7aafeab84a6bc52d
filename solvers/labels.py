"""Make certificates: labels that prove a bound for the line of devices (``formulation.certificate``).

The label of a group is the furthest layer at which a stage on it can stop within the threshold, if the groups
before it may stop anywhere up to their own labels. Labels come from the tables of the dynamic programme; what
they prove does not depend on them, as the checker reads no table.
"""

from __future__ import annotations

import numpy as np

from formulation.certificate import Certificate, certifiable, fingerprint
from formulation.groups import line_places, possible_groups
from formulation.instance import Instance
from formulation.plan import Plan
from formulation.tables import Tables, build_tables
from solvers.hybrid import StageTimes, stage_times

Place = tuple[int, int]


def certify(instance: Instance, plan: Plan, objective: int) -> Certificate:
    """Return the strongest certificate that labels give for a plan of this objective.

    The bound is the largest for which the labels stay before the end of the model, at most the objective: found
    by bisection. Raises ValueError, with the reason, where labels prove nothing about the instance.
    Cost: some 40 passes over groups and layers.
    """
    reason = certifiable(instance)
    if reason is not None:
        raise ValueError(reason)
    times = stage_times(build_tables(instance, possible_groups(instance)))
    places = line_places(instance)
    total = len(instance.layers)
    low, high = 0, objective
    best = labels_at(times, places, -1)
    while low < high:
        bound = high if low == 0 and high == objective else (low + high + 1) // 2
        labels = labels_at(times, places, bound - 1)
        if max(labels.values()) < total:
            low, best = bound, labels
        else:
            high = bound - 1
    return Certificate(fingerprint(instance), plan, objective, low, best)


def labels_at(times: StageTimes, places: list[Place], threshold_ns: int) -> dict[Place, int]:
    """Return the label of every place. Cost: O(places x (layers + places before))."""
    tables = times.tables
    total = len(tables.instance.layers)
    first_layer = np.arange(total)
    # Of stages that start at i, those of up to ends[k, i] layers fit; a stop at i itself means that none does.
    ends = [first_layer + (kind <= threshold_ns).sum(axis=1) for kind in times.time]
    ending: dict[int, list[int]] = {}
    for index, place in enumerate(places):
        ending.setdefault(place[1], []).append(index)
    labels: dict[Place, int] = {}
    for index, place in enumerate(places):
        starts = _starts(tables, places, labels, ending.get(place[0], []), index, threshold_ns)
        stops = ends[tables.kind_of[index]][starts]
        # A place where nothing fits keeps label 0: then no stage stops there at all. Of several ways in which its
        # devices may work together the furthest counts.
        label = int(np.where(stops > np.flatnonzero(starts), stops, 0).max(initial=0))
        labels[place] = max(label, labels.get(place, 0))
    return labels


def _starts(
    tables: Tables, places: list[Place], labels: dict[Place, int], before: list[int], index: int, threshold_ns: int
) -> np.ndarray:
    """Tell for every layer whether a stage on this place may start at it."""
    starts = np.zeros(len(tables.instance.layers), dtype=bool)
    if places[index][0] == 0:
        starts[0] = True
    for other in before:
        link = tables.link_index(other, index)
        crossing = (tables.activation[link] + tables.gradient[link])[: len(starts)] <= threshold_ns
        reached = labels[places[other]]
        starts[1 : reached + 1] |= crossing[1 : reached + 1]
    return starts
