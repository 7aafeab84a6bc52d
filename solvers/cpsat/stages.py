"""The accelerated model: whole stages from the tables of the dynamic programme, instead of layers and forms.

With the threshold T fixed, "a stage of kind c can hold layers i to j" is read from the least stage times over all
forms (``solvers.hybrid``), so the model needs no variable for the form of a layer; the forms of the plan that is
found are filled in afterwards. Two families replace ``forms`` and ``stage_time``:

(5') ``stage_table``: a slot of kind c that starts at layer i ends at ``E(c, i)`` at the latest, exactly;
(8') ``labels``: a stage that starts at device p of the line starts at a layer that the first p devices can reach
     and from which the others can end (a dynamic programme that takes the fastest link at every boundary).

The bound leans on ``solvers.hybrid``; the layered model (``solvers.cpsat.model``) does not. A test shows that both
agree. Only where links pay for boundaries, the slowest stage counts and memory is not limited.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from formulation.groups import line, line_places
from formulation.options import BoundaryCharge, Combine
from formulation.tables import Tables, Times
from solvers.cpsat.clocks import post_boundary_time
from solvers.cpsat.families import Family, Posted, post_cover, post_devices, post_line
from solvers.cpsat.variables import Variables
from solvers.hybrid import StageTimes


def applies(tables: Tables) -> bool:
    """Tell whether a stage is its own affair: its time is, only the slowest counts, and memory is not limited."""
    cost = tables.instance.cost
    return (
        not tables.instance.constraints.memory
        and cost.boundary_charge is BoundaryCharge.LINK
        and cost.combine is Combine.MAX
    )


def stage_families(times: StageTimes) -> tuple[Family, ...]:
    """Return the families of the accelerated model."""
    return (
        Family(1, "cover", post_cover),
        Family(2, "devices", post_devices),
        Family(3, "line", post_line),
        Family(5, "stage_table", _stage_table(times)),
        Family(6, "boundary_time", post_boundary_time),
        Family(8, "labels", _labels(times)),
    )


def furthest(times: StageTimes, kind: int, threshold_ns: int) -> Times:
    """Return ``E(kind, i)`` for i = 0..N: the furthest layer index at which a stage from i on may stop.

    Stage times never fall when a layer is added at the end; ``count`` relies on that.
    """
    fits = times.time[kind] <= threshold_ns
    first = np.arange(len(fits))
    return np.append(first + fits.sum(axis=1), len(fits))


def _stage_table(times: StageTimes) -> Callable[[Variables], Posted]:
    def post(v: Variables) -> Posted:
        for c in range(len(v.tables.kinds)):
            ends = furthest(times, c, v.threshold_ns)
            widest = np.maximum.accumulate(ends)
            for i in range(v.layers):
                if widest[i] < min(int(widest[i + 1]), v.layers):
                    yield from _end(v, c, i, int(widest[i]), exact=False)
                if ends[i] < widest[i]:
                    yield from _end(v, c, i, int(ends[i]), exact=True)

    return post


def _end(v: Variables, kind: int, start: int, end: int, *, exact: bool) -> Posted:
    """Forbid slots of this kind that start at (``exact``) or up to a layer to stop after ``end``."""
    for k in range(v.slots):
        clause = [~v.starts[k][start], ~v.kind[k][kind], v.starts_by(k - 1, end)]
        if exact and start > 0:
            clause.append(v.starts[k][start - 1])
        yield (k, kind, start), v.model.add_bool_or(clause)


def _labels(times: StageTimes) -> Callable[[Variables], Posted]:
    def post(v: Variables) -> Posted:
        ends = line_places(v.tables.instance)
        latest, earliest = _reach(v, times, ends)
        for g, (first, _) in enumerate(ends):
            for k in range(v.slots):
                if latest[first] < v.layers - 1:
                    yield (k, g, 0), v.model.add_implication(v.runs[k][g], v.starts[k][latest[first]])
                if earliest[first] > 0:
                    yield (k, g, 1), v.model.add_implication(v.runs[k][g], ~v.starts[k][earliest[first] - 1])

    return post


def _reach(v: Variables, times: StageTimes, ends: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return by device position the furthest layer reached before it, the earliest one that the rest can do.

    ``before[p, i]``: stages on exactly the first p devices can do the layers before i; ``after[p, i]``: stages
    from device p on can do the others. A boundary at p is at least as slow as the link from device p - 1 to p.
    Cost: O(groups x layers**2) operations on bits.
    """
    devices, total = v.tables.instance.devices, v.layers
    crossed = _crossed(v)
    before = np.zeros((devices + 1, total + 1), dtype=bool)
    after = np.zeros((devices + 1, total + 1), dtype=bool)
    before[0, 0] = True
    after[:, total] = True
    fits = [kind <= v.threshold_ns for kind in times.time]
    arcs = sorted((first, stop, v.tables.kind_of[g]) for g, (first, stop) in enumerate(ends))
    for first, stop, kind in arcs:
        before[stop] |= fits[kind][before[first, :-1]].any(axis=0) & crossed[stop]
    for first, stop, kind in reversed(arcs):
        after[first, :-1] |= fits[kind][:, after[stop]].any(axis=1) & crossed[first, :-1]
    possible = before & after
    latest = [int(np.flatnonzero(row)[-1]) if row.any() else 0 for row in possible]
    earliest = [int(np.flatnonzero(row)[0]) if row.any() else total for row in possible]
    return latest, earliest


def _crossed(v: Variables) -> NDArray[np.bool_]:
    """Tell by device position and cut whether the fastest link there carries the boundary in time."""
    tables, total = v.tables, v.layers
    servers = line(tables.instance)
    both = tables.activation + tables.gradient
    crossed = np.ones((len(servers) + 1, total + 1), dtype=bool)
    for position, (one, other) in enumerate(itertools.pairwise(servers), start=1):
        link = tables.instance.links[one][other]
        if link is not None:
            crossed[position] = both[tables.links.index(link)] <= v.threshold_ns
    return crossed
