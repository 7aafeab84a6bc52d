"""The best cuts for a given row of device groups: how proposals of a coarse network become good plans.

For one bottleneck limit a dynamic programme over cuts finds the least latency; the limit is lowered from plan to
plan. A heuristic as a whole: it stops after ``MAX_LIMITS`` limits.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.solvers.dynamic.iteration_time.blocks import StageSpans

MAX_LIMITS = 24
COARSE_STEP = 0.97
"""How much the limit falls from one plan to the next before the neighbourhood of the best is looked at."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The objective is ``latency * of_latency + bottleneck * of_bottleneck``."""

    of_latency: int
    of_bottleneck: int

    def value(self, latency_ns: int, bottleneck_ns: int) -> int:
        """Return the objective."""
        return self.of_latency * latency_ns + self.of_bottleneck * bottleneck_ns


@dataclass(frozen=True, slots=True)
class Cutting:
    """Cuts 0 .. N of a plan, its latency and its bottleneck by the tables."""

    cuts: tuple[int, ...]
    latency_ns: int
    bottleneck_ns: int


def best_cuts(spans: StageSpans, groups: tuple[Group, ...], weights: Weights, below: int) -> Cutting | None:
    """Return cuts whose objective is below a value, as good as the search finds; None if it finds none.

    Cost: O(stages x layers**2) in numpy for each of at most MAX_LIMITS limits.
    """
    times, crossings = _tables(spans, groups)
    best: Cutting | None = None
    limit = FORBIDDEN - 1
    near = False
    for _ in range(MAX_LIMITS):
        found = _cut(times, crossings, limit)
        promising = found is not None and weights.value(found.latency_ns, 0) < below
        if found is not None and promising:
            value = weights.value(found.latency_ns, found.bottleneck_ns)
            if value < below:
                best, below = found, value
            limit = found.bottleneck_ns - 1 if near else int(found.bottleneck_ns * COARSE_STEP)
        elif near or best is None or not weights.of_bottleneck:
            break
        else:
            near, limit = True, best.bottleneck_ns - 1
    return best


def _tables(spans: StageSpans, groups: tuple[Group, ...]) -> tuple[list[Times], list[Times]]:
    """Return the times of the stages and of the boundaries behind them, from the front."""
    tables = spans.limits.times.tables
    numbers = [tables.groups.index(group) for group in groups]
    times: list[Times] = []
    cuts = np.arange(spans.total + 1)
    for at, number in enumerate(numbers):
        kind, rank = tables.kind_of[number], spans.rank(len(groups) - 1 - at)
        fits = cuts[None, :] <= spans.room[rank, kind, : spans.total, None]
        times.append(np.where(fits, spans.time[kind], FORBIDDEN))
    links = [tables.link_index(one, other) for one, other in itertools.pairwise(numbers)]
    return times, [spans.crossing[link] for link in links]


def _cut(times: list[Times], crossings: list[Times], limit_ns: int) -> Cutting | None:
    """Return the cuts of least latency with stages and boundaries of at most the limit."""
    total = times[0].shape[1] - 1
    behind = np.full(total + 1, FORBIDDEN)
    behind[total] = 0
    choices: list[Times] = []
    for at in range(len(times) - 1, -1, -1):
        if at < len(crossings):
            behind = np.where(crossings[at] <= limit_ns, behind + crossings[at], FORBIDDEN)
        ways = np.where(times[at] <= limit_ns, times[at] + behind, FORBIDDEN)
        choices.append(ways.argmin(axis=1))
        least = np.minimum(ways.min(axis=1), FORBIDDEN)
        behind = np.append(least, FORBIDDEN)
    if behind[0] >= FORBIDDEN:
        return None
    cuts, bottleneck = [0], 0
    for at, choice in enumerate(reversed(choices)):
        cuts.append(int(choice[cuts[-1]]))
        bottleneck = max(bottleneck, int(times[at][cuts[-2], cuts[-1]]))
        if at < len(crossings):
            bottleneck = max(bottleneck, int(crossings[at][cuts[-1]]))
    return Cutting(tuple(cuts), int(behind[0]), bottleneck)
