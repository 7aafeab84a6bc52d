"""PipePar's planner (CSCWD 2021) as it was most probably meant: HPP, then SP as a true dynamic programme.

Algorithm 2 cannot run as printed (:mod:`solvers.reference.algorithm_2_as_printed` mends only that). Its names
and structure are those of PipeDream's optimizer, whose recurrence is therefore the plausible meaning
(docs/decisions/0001); in the suffix form that fits the listing's walk from the front:

    F(N, 0) = 0
    F(i, m) = least over k in i < k <= N and n in 1 .. m (n = m if k = N) of
              combine( Hybrid(i, k, n), X(k), F(k, m - n) )

``Hybrid`` are the stage times of Algorithm 1, ``X`` the boundary at ``k``, ``combine`` the maximum or the sum.
All m devices are used. F counts devices, so it sees neither where they stand nor that some are faster: it is
computed on a *flat view* of the cluster, then laid on the line, and the evaluator prices what comes of it.

One level: all devices are joined by the slowest link of the cluster. Two levels (the paper: "just divide several
times"; PipeDream's scheme): A1(i, j) = F of the span on the devices of one server over the link inside; then F
again, with servers as devices, A1(i, j) / k + communication among k servers as the time of a stage on k
servers, over the slowest link between servers. A stage on one server becomes the stages of A1; a stage on
several becomes one stage on all their devices, with the forms chosen among servers, as a plan has no way to
say "this pipeline, k times over".
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER, Deadline, in_time
from pipecut.formulation.outcome import Limits, Outcome, Proof, begin
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.options import BoundaryCharge, Combine, CostModel, StageTime
from pipecut.formulation.problem.plan import Span
from pipecut.formulation.problem.units import Link, slowest_of
from pipecut.solvers.reference import flat_cluster
from pipecut.solvers.reference.flat_cluster import CountedStage, FlatView, flat_view, lay_on_line, slowest_link
from pipecut.solvers.search.stoppable import stoppable
from pipecut.solvers.search.support import blind_to

NAME = "pipepar"

accepts = blind_to("memory", "devices")
"""What the planner makes of an instance (``solvers.search.support``)."""


@stoppable(NAME)
def solve(instance: Instance, limits: Limits | None = None, levels: int | None = None) -> Outcome:
    """Return PipePar's plan with proof FEASIBLE and without a bound; the notes say what F believed.

    ``levels`` is 1 or 2; None takes 2 where :func:`suits_two_levels`. UNKNOWN if stopped. Raises ValueError for
    any other ``levels``, for 2 where servers are not alike, and as
    :func:`solvers.reference.algorithm_1.StageTimes.of` does. Cost: O(devices**2 x layers**2) numpy
    operations, and O(devices of a server**2 x layers**3) for the lower of two levels.
    """
    start = time.perf_counter()
    if levels is None:
        levels = 2 if suits_two_levels(instance) else 1
    if levels not in (1, 2):
        raise ValueError(f"levels is {levels}, expected 1 or 2")
    deadline = begin(limits).deadline
    believed, stages = _two_levels(instance, deadline) if levels == 2 else _one_level(instance, deadline)
    plan = lay_on_line(instance, stages)
    found = evaluate(instance, plan).objective
    expected = flat_cluster.believes("the recurrence expects", believed, instance, found)
    notes = flat_cluster.levels_in_words(levels), expected
    seconds = time.perf_counter() - start
    return Outcome(NAME, Proof.FEASIBLE, plan, found, None, seconds, notes, accepts(instance).unseen)


def suits_two_levels(instance: Instance) -> bool:
    """Tell whether there are several equal servers of several devices, with a wider link inside than between."""
    if len(instance.servers) == 1 or not _equal_servers(instance) or instance.servers[0].devices == 1:
        return False
    inside = [link.bits_per_second for link in _inner_links(instance)]
    return min(inside) > min(link.bits_per_second for link in _outer_links(instance))


class StageLevel:
    """One level of the recurrence: stages of 1 .. M devices of this level, ``F`` and the walk along its choices.

    ``compute[n]`` and ``communication[n]`` are the times of a stage of n devices, [i, j], N x (N + 1) (n = 0 is
    not used); ``activation`` and ``gradient`` those of a boundary, by cut point, N + 1 values; all int64 ns.
    """

    def __init__(
        self,
        cost: CostModel,
        compute: list[Times],
        communication: list[Times],
        boundary: tuple[Times, Times],
        deadline: Deadline = NEVER,
    ) -> None:
        self.devices = len(compute) - 1
        self._deadline = deadline
        self._compute, self._communication = compute, communication
        self._activation, self._gradient = boundary
        self._overlap = cost.stage_time is StageTime.OVERLAP
        self._join = np.maximum if cost.combine is Combine.MAX else np.add
        self._receiver_pays = cost.boundary_charge is BoundaryCharge.RECEIVER
        self._suffixes: dict[int, list[Times]] = {}

    def least(self, end: int) -> Times:
        """Return F of the spans (i, end) on all devices, for every i < end, as a span on its own."""
        suffixes = self._suffix(end)
        options = [
            self._onward(self._stage_ns(n, end, inner=False), suffixes[self.devices - n], end).min(axis=1)
            for n in in_time(range(1, self.devices + 1), self._deadline)
        ]
        return np.minimum.reduce(options)

    def walk(self, first: int, end: int) -> Iterator[tuple[Span, int]]:
        """Yield the stages (span, devices) of F(first, M): the walk. Ties: fewer devices, then fewer layers."""
        suffixes, at, left = self._suffix(end), first, self.devices
        while at < end:
            options = np.array(
                [
                    self._onward(self._stage_ns(n, end, inner=at > first)[at], suffixes[left - n], end)
                    for n in range(1, left + 1)
                ]
            )
            row, stop = np.unravel_index(int(options.argmin()), options.shape)
            yield Span(at, int(stop)), int(row) + 1
            at, left = int(stop), left - int(row) - 1

    def _suffix(self, end: int) -> list[Times]:
        """Return F(k, m) of the layers k .. end by m, each with end + 1 values; F(end, 0) = 0."""
        if end not in self._suffixes:
            stages = [self._stage_ns(n, end, inner=True) for n in range(1, self.devices)]
            done = np.full(end + 1, FORBIDDEN, dtype=np.int64)
            done[end] = 0
            values = [done]
            for m in in_time(range(1, self.devices), self._deadline):
                options = [self._onward(stages[n - 1], values[m - n], end).min(axis=1) for n in range(1, m + 1)]
                # One stage on all m devices always does, so F(k, m) is a real time for every k < end.
                values.append(np.append(np.minimum.reduce(options), FORBIDDEN))
            self._suffixes[end] = values
        return self._suffixes[end]

    def _onward(self, stage: Times, rest: Times, end: int) -> Times:
        """Combine stages [.., k] with the boundary at k and F(k, m - n)."""
        charge = np.zeros(end + 1, dtype=np.int64)
        if not self._receiver_pays:
            charge[:end] = (self._activation + self._gradient)[:end]
        return self._join(stage, self._join(charge, rest))

    def _stage_ns(self, n: int, end: int, *, inner: bool) -> Times:
        """Return the times of stages of n devices inside the span (0, end), [i, k], FORBIDDEN where k <= i.

        Where receivers pay, a stage pays gradients at k < end, and activations at i if that is an inner cut.
        """
        compute, moved = self._compute[n][:end, : end + 1], self._communication[n][:end, : end + 1]
        if self._receiver_pays:
            returning = self._gradient[: end + 1].copy()
            returning[end] = 0
            moved = moved + returning[None, :]
            if inner:
                moved = moved + self._activation[:end, None]
        times = np.maximum(compute, moved) if self._overlap else compute + moved
        return np.where(np.tri(end, end + 1, dtype=bool), FORBIDDEN, times)


def _one_level(instance: Instance, deadline: Deadline) -> tuple[int, list[CountedStage]]:
    """Return F(0, M) over the slowest link of the cluster, and its stages."""
    total = len(instance.layers)
    view = flat_view(instance, instance.devices, slowest_link(instance), deadline)
    level = _level(instance, view, [view.times.compute(kind) for kind in view.kinds])
    return int(level.least(total)[0]), [view.stage(span, n) for span, n in level.walk(0, total)]


def _two_levels(instance: Instance, deadline: Deadline) -> tuple[int, list[CountedStage]]:
    """Return F(0, V) over servers, each as fast as F over its devices, and the stages on devices."""
    if not _equal_servers(instance):
        raise ValueError("two levels count devices of a server: all servers must have the same number of devices")
    total, inside = len(instance.layers), instance.servers[0].devices
    view = flat_view(instance, inside, slowest_of(_inner_links(instance)), deadline)
    lower = _level(instance, view, [view.times.compute(kind) for kind in view.kinds])
    on_server = np.full((total, total + 1), FORBIDDEN, dtype=np.int64)
    for end in range(1, total + 1):
        on_server[:end, end] = lower.least(end)
    wide = flat_view(instance, len(instance.servers), slowest_of(_outer_links(instance)), deadline)
    upper = _level(instance, wide, [-(-on_server // max(k, 1)) for k in range(wide.devices + 1)])
    stages: list[CountedStage] = []
    for span, servers in upper.walk(0, total):
        if servers == 1:
            stages += [view.stage(inner, n) for inner, n in lower.walk(span.first, span.stop)]
        else:
            stages.append(replace(wide.stage(span, servers), devices=servers * inside))
    return int(upper.least(total)[0]), stages


def _level(instance: Instance, view: FlatView, compute: list[Times]) -> StageLevel:
    moved = [view.times.communication[kind] for kind in view.kinds]
    return StageLevel(instance.cost, compute, moved, (view.activation, view.gradient), view.tables.deadline)


def _equal_servers(instance: Instance) -> bool:
    return len({server.devices for server in instance.servers}) == 1


def _inner_links(instance: Instance) -> list[Link]:
    return [server.link for server in instance.servers if server.link is not None and server.devices > 1]


def _outer_links(instance: Instance) -> list[Link]:
    rows = enumerate(instance.links)
    return [link for one, row in rows for other, link in enumerate(row) if one != other and link is not None]
