"""Alpa's inter-operator dynamic programme (Zheng et al., OSDI 2022, section 5): the least time of a whole step.

Stages of times t_1, ..., t_S and B micro-batches take (eq. 2 of the paper)::

    T  =  sum of t_i  +  (B - 1) * max of t_j

For each candidate t_max the sum is made least over stages no slower than t_max, on submeshes that use up all D
devices (eq. 3, without the number of stages, which the paper needs for its memory test only)::

    F(N, 0) = 0      F(i, d) = least over k > i and submeshes of n <= d devices with t(i, k, n) <= t_max of
                               t(i, k, n) + F(k, d - n)

and T is the least of ``F(0, D) + (B - 1) t_max`` (eq. 4). Submeshes are 1, 2, 4, ... devices of one server, all of
a server, or several whole servers. Candidates are the times of stages, more than ``epsilon`` apart; they are
thinned out from the largest, so that every time lies at most epsilon below a candidate and the gap of at most
B * epsilon, which the paper states, holds. (Its program thins them from the smallest, and may lose the optimum.)
The paper tries candidates in rising order until B * t_max exceeds the best T. Here ranges of them are halved: none
gives less than F of the largest plus (B - 1) times the smallest of its range, so most ranges fall away at once.

Alpa compiles and measures each stage on each submesh; here its time is that of pipecut's own tables
(:mod:`solvers.reference.algorithm_1`) with the slowest class of device, over the slowest link inside servers,
or of the whole cluster for several servers. Transfers between stages are left out, as the paper does. Where
servers have different numbers of devices the cluster counts as one server over its slowest link. Stages take the
next devices of the line; Alpa places large submeshes first, so that none straddles servers, which a line cannot
say.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.limits import NEVER, Deadline, in_time
from pipecut.formulation.outcome import Limits, Outcome, begin
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.plan import Span
from pipecut.formulation.problem.units import slowest
from pipecut.solvers.reference.flat_cluster import FlatView, flat_view, lay_on_line, slowest_link
from pipecut.solvers.search.stoppable import distinct, stoppable
from pipecut.solvers.search.support import blind_to
from pipecut_literature.common.priced import priced

NAME = "alpa"

accepts = blind_to("memory", "devices")
"""What the planner makes of an instance (``solvers.search.support``)."""
EPSILON_NS = 1_000
"""The paper's epsilon, 10**-6 s."""


@stoppable(NAME)
def solve(instance: Instance, limits: Limits | None = None, epsilon_ns: int = EPSILON_NS) -> Outcome:
    """Return Alpa's plan, priced by the evaluator (proof FEASIBLE); the notes say what Alpa believes of a step.

    UNKNOWN if stopped. Raises ValueError for a negative epsilon, and as
    :func:`solvers.reference.algorithm_1.StageTimes.of` does. Cost: O(devices x submeshes x layers**2) numpy
    operations for each candidate that is tried.
    """
    if epsilon_ns < 0:
        raise ValueError(f"epsilon is {epsilon_ns} ns, expected 0 or more")
    deadline = begin(limits).deadline
    views = submeshes(instance, deadline)
    times = {n: view.times.time[view.kinds[n]] for n, view in views.items()}
    believed, stages = least_step(times, instance.devices, instance.training.micro_batches, epsilon_ns, deadline)
    plan = lay_on_line(instance, [views[n].stage(span, n) for span, n in stages])
    return priced(NAME, instance, plan, accepts, believed=("the recurrence expects a step of", believed))


def submeshes(instance: Instance, deadline: Deadline = NEVER) -> dict[int, FlatView]:
    """Return, by number of devices, the view that prices a stage on a submesh of so many devices."""
    whole, sizes = instance.devices, {server.devices for server in instance.servers}
    if len(sizes) > 1 or len(instance.servers) == 1:
        view = flat_view(instance, whole, slowest_link(instance), deadline)
        return {n: view for n in (*_powers(whole), whole)}
    inside = sizes.pop()
    links = [server.link for server in instance.servers if server.link is not None]
    within = flat_view(instance, inside, slowest(tuple(links)) if links else None, deadline)
    across = flat_view(instance, whole, slowest_link(instance), deadline)
    several = range(2 * inside, whole + 1, inside)
    return {n: within for n in (*_powers(inside), inside)} | {n: across for n in several}


def _powers(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to ``most``."""
    return [1 << power for power in range(most.bit_length())]


def least_step(
    times: Mapping[int, Times], devices: int, micro_batches: int, epsilon_ns: int, deadline: Deadline = NEVER
) -> tuple[int, list[tuple[Span, int]]]:
    """Return T in ns and the stages (layers, devices) of the least step, given stage times [i, k] by devices.

    T is that of the stages found, so at most the candidate's. Raises ValueError where no stages use all devices,
    and StoppedError after the deadline.
    """
    total = next(iter(times.values())).shape[0]
    upper = np.triu_indices(total, 1, total + 1)
    known = distinct(np.concatenate([table[upper] for table in times.values()]), deadline)
    candidates = thinned(known, epsilon_ns, deadline)
    best = _Best(micro_batches)
    ranges = [(0, len(candidates))]
    while ranges:
        low, high = ranges.pop()
        sums = _Sums(times, devices, candidates[high - 1], deadline)
        if sums.least >= FORBIDDEN:
            continue  # no plan is this fast, so none of a smaller candidate is
        best.take(sums.stages())
        if sums.least + (micro_batches - 1) * candidates[low] < best.step_ns:
            middle = (low + high - 1) // 2
            ranges += [part for part in ((low, middle), (middle, high - 1)) if part[0] < part[1]]
    if not best.stages:
        raise ValueError(f"no stages on submeshes of {sorted(times)} devices use all {devices} devices")
    return best.step_ns, [(span, n) for span, n, _ in best.stages]


def thinned(values: Sequence[int] | Times, epsilon_ns: int, deadline: Deadline = NEVER) -> list[int]:
    """Return rising values without those that lie at most epsilon below the next one that is kept."""
    kept = [int(value) for value in values[-1:]]
    stop = bisect_left(values, kept[-1] - epsilon_ns) if kept else 0
    while stop:
        deadline.check()
        kept.append(int(values[stop - 1]))
        stop = bisect_left(values, kept[-1] - epsilon_ns)
    return kept[::-1]


@dataclass(slots=True)
class _Best:
    """The least step so far, none at first: its time, and its stages as (layers, devices, ns)."""

    micro_batches: int
    step_ns: int = 0
    stages: tuple[tuple[Span, int, int], ...] = ()

    def take(self, stages: tuple[tuple[Span, int, int], ...]) -> None:
        """Keep these stages if their step is shorter."""
        spent = [cost for _, _, cost in stages]
        step = sum(spent) + (self.micro_batches - 1) * max(spent)
        if not self.stages or step < self.step_ns:
            self.step_ns, self.stages = step, stages


class _Sums:
    """F(i, d) for one t_max, by d: N + 1 values in ns each, FORBIDDEN where no stages fit."""

    def __init__(self, times: Mapping[int, Times], devices: int, most_ns: int, deadline: Deadline) -> None:
        self._allowed = {n: np.where(table <= most_ns, table, FORBIDDEN) for n, table in sorted(times.items())}
        total = next(iter(times.values())).shape[0]
        done = np.full(total + 1, FORBIDDEN, dtype=np.int64)
        done[total] = 0
        self._values = [done]
        for d in in_time(range(1, devices + 1), deadline):
            row = np.full(total + 1, FORBIDDEN, dtype=np.int64)
            for n in (n for n in self._allowed if n <= d):
                row[:total] = np.minimum(row[:total], self._onward(n, d).min(axis=1))
            self._values.append(row)
        self.least = int(self._values[devices][0])

    def stages(self) -> tuple[tuple[Span, int, int], ...]:
        """Return the stages of F(0, D) as (layers, devices, ns). Ties: fewer devices, then fewer layers."""
        found: list[tuple[Span, int, int]] = []
        first, left = 0, len(self._values) - 1
        while left:
            rows = [(n, self._onward(n, left)[first]) for n in self._allowed if n <= left]
            n, row = min(rows, key=lambda entry: int(entry[1].min()))
            stop = int(row.argmin())
            found.append((Span(first, stop), n, int(self._allowed[n][first, stop])))
            first, left = stop, left - n
        return tuple(found)

    def _onward(self, n: int, d: int) -> Times:
        """Return the time of a stage (i, k) on n of d devices with F of what follows, [i, k]."""
        return self._allowed[n] + self._values[d - n][None, :]
