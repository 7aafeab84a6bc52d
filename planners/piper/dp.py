"""Piper's planner (Tarnawski et al., NeurIPS 2021; msr-fiddle/piper ``algo.cpp``).

It chooses stages, replicas, tensor parallelism and recomputation of a layer graph at once.
``U`` runs over the *upsets* of the graph (what later stages hold), k over devices, s over summed replicas::

    dp(U, k, s) = min over upsets V inside U, degrees t, replicas d (d divides N)  of
                  max( dp(V, k - d t, s - d),  TPS(U - V, t, d, ceil(s / d)) )          dp({}, k, s) = 0

``TPS(S, t, d, y)`` is the least time of stage S with y micro-batches in flight that fits into memory: a knapsack
over the alternatives of its layers (:mod:`planners.piper.knapsack`; costs: :mod:`planners.piper.price`).
k and s are upper limits. The program solves the knapsack greedily, so its plans are not always optimal in its own
model; ``Knapsack.EXACT`` makes them so, with everything else unchanged.

A first run, in which a stage recomputes everything or nothing, bounds the value; the greedy one drops every stage
that takes longer. The exact one is bounded by that from above and by the fractional knapsack from below.

Ties follow the program: see :func:`_walk`. It ignores improvements below 1e-9 s while it fills its table, which is
not reproduced. Cost: pairs of upsets times numbers of replicas, times devices^2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planners.common.downsets import downsets, masks, subsets
from planners.common.errors import NothingFitsError
from planners.piper.knapsack import Knapsack, Range, StageAlternatives
from planners.piper.price import RECOMPUTE, PiperPlan, PiperStage
from planners.piper.problem import PiperProblem

__all__: list[str] = []

Reals = NDArray[np.float64]
SLACK = 1e-9
"""Seconds below which the program takes two values for equal."""
UPSETS = 40_000
"""Upsets that the program is ready to enumerate."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the planner may use; the published comparison leaves out one at a time."""

    data_parallel: bool = True
    tensor_parallel: bool = True
    recompute: bool = True


def optimise(
    problem: PiperProblem, knapsack: Knapsack = Knapsack.GREEDY, allowed: Allowed = Allowed(), limit: int = UPSETS
) -> PiperPlan:
    """Plan as Piper does.

    Raises NothingFitsError, TooManyDownsetsError beyond ``limit`` upsets, and ValueError for a layer with more
    than two alternatives of one degree (the program refuses those too).
    """
    if knapsack is Knapsack.FRACTIONAL:
        raise ValueError("parts of layers make no plan; choose another knapsack")
    search = _Search(problem, allowed, limit)
    table = search.fill(Knapsack.ALL_OR_NOTHING, Range())
    if np.isinf(table[-1].min()):
        raise NothingFitsError(f"no plan fits into {problem.memory_bytes:.0f} bytes a device")
    if knapsack in (Knapsack.GREEDY, Knapsack.EXACT):
        table = search.fill(Knapsack.GREEDY, Range(bound=_above(table)))
    if knapsack is Knapsack.EXACT:
        relaxed = float(search.fill(Knapsack.FRACTIONAL, Range(bound=_above(table)))[-1].min())
        table = search.fill(Knapsack.EXACT, Range(relaxed, _above(table)))
    return PiperPlan(tuple(_walk(search, table, knapsack)), float(table[-1].min()))


def _above(table: Reals) -> float:
    """Return a bound just above the best value known: the walk accepts everything within the slack of it."""
    return float(table[-1].min()) * (1 + SLACK) + 2 * SLACK


class _Degree:
    """The layers as arrays for one tensor-parallel degree; the last axis holds the two alternatives."""

    def __init__(self, problem: PiperProblem, degree: int, recompute: bool) -> None:
        self.degree, self.problem = degree, problem
        rows = [
            [one for one in layer.alternatives.get(degree, ()) if recompute or one.name != RECOMPUTE]
            for layer in problem.layers
        ]
        if any(len(row) > 2 for row in rows):
            raise ValueError(f"degree {degree}: a layer has more than two alternatives, the most that Piper plans")
        self.missing = sum(1 << node for node, row in enumerate(rows) if not row)
        pairs = [(row[0], row[-1]) if row else None for row in rows]
        self.names = [("", "") if pair is None else (pair[0].name, pair[1].name) for pair in pairs]
        self.numbers = np.zeros((4, len(rows), 2))
        for node, pair in enumerate(pairs):
            for column, one in enumerate(pair or ()):
                numbers = one.time_s, one.parameter_bytes, one.in_flight_bytes, one.fixed_bytes
                self.numbers[:, node, column] = numbers
        self.ends = np.array([(a, b) for a, b, _ in problem.edges], dtype=np.int64).reshape(-1, 2)
        size = [size for _, _, size in problem.edges]
        into = [
            [0.0, 0.0] if pairs[b] is None else [one.bytes_in[a] for one in pairs[b] or ()] for a, b in self.ends
        ]
        out = [
            [0.0, 0.0] if pairs[a] is None else [one.bytes_out[b] for one in pairs[a] or ()] for a, b in self.ends
        ]
        self.into = 2 * (np.array(size)[:, None] + np.array(into).reshape(-1, 2))
        self.out = 2 * (np.array(size)[:, None] + np.array(out).reshape(-1, 2))

    def floors(self, member: NDArray[np.bool_]) -> tuple[Reals, Reals]:
        """Return for each set of layers the least compute time, and least memory with 1 and with 2 in flight."""
        time, _, flying, fixed = self.numbers
        memory = [(flying * in_flight + fixed).min(axis=1) for in_flight in (1, 2)]
        sets = member.astype(np.float64)
        return sets @ time.min(axis=1), sets @ np.stack(memory, axis=1)

    def stage(self, inside: NDArray[np.bool_], replicas: Reals) -> StageAlternatives:
        """Return times and memory of the stage of these layers, for each number of replicas."""
        moved = np.zeros(self.numbers.shape[1:])
        source, target = inside[self.ends[:, 0]], inside[self.ends[:, 1]]
        np.add.at(moved, self.ends[target & ~source, 1], self.into[target & ~source])
        np.add.at(moved, self.ends[source & ~target, 0], self.out[source & ~target])
        time, weights, flying, fixed = self.numbers[:, inside]
        d = replicas[:, None, None]
        # In the program's order of operations, so that equal ratios stay equal.
        moved = moved[inside] / d + 4 * (d - 1) * weights / d / self.problem.micro_batches
        return StageAlternatives(moved / self.problem.bytes_per_second + time / d, flying, fixed)


class _Search:
    """Upsets, degrees and the settings of a stage; fills the table of the recurrence."""

    def __init__(self, problem: PiperProblem, allowed: Allowed, limit: int) -> None:
        self.problem = problem
        successors = masks(len(problem.layers), [(a, b) for a, b, _ in problem.edges])
        self.upsets, below = downsets(successors, limit)
        self.member = np.array([[one >> node & 1 for node in range(len(successors))] for one in self.upsets]) == 1
        self.inside = [subsets(index, below) for index in range(len(self.upsets))]
        self.sums = min(problem.micro_batches, problem.devices)
        offered = {degree for layer in problem.layers for degree in layer.alternatives}
        self.degrees = [
            _Degree(problem, degree, allowed.recompute)
            for degree in sorted(offered)
            if degree <= problem.devices and (allowed.tensor_parallel or degree == 1)
        ]
        self.floors = {degree.degree: degree.floors(self.member) for degree in self.degrees}
        self.settings = {degree.degree: self._settings(degree.degree, allowed) for degree in self.degrees}

    def _settings(self, degree: int, allowed: Allowed) -> tuple[Reals, NDArray[np.int64], Reals]:
        """Return the numbers of replicas d, and for each case its row in them and its micro-batches in flight."""
        most = min(self.sums, self.problem.devices // degree) if allowed.data_parallel else 1
        replicas = [d for d in range(1, most + 1) if self.problem.micro_batches % d == 0]
        counts = [-(-self.sums // d) for d in replicas]
        in_flight = np.concatenate([np.arange(1.0, count + 1) for count in counts])
        return np.array(replicas, dtype=np.float64), np.repeat(np.arange(len(counts)), counts), in_flight

    def stage_times(
        self, larger: int, smaller: int, kind: Knapsack, matters: Range
    ) -> Iterator[tuple[_Degree, int, Reals]]:
        """Yield degree, replicas d and the times by s (0 to the most) of the stage between two upsets."""
        stage = self.upsets[larger] & ~self.upsets[smaller]
        inside = self.member[larger] & ~self.member[smaller]
        for degree in self.degrees:
            replicas, row, in_flight = self.settings[degree.degree]
            if degree.missing & stage or self._hopeless(
                degree.degree, larger, smaller, matters.bound * replicas[-1]
            ):
                continue
            times, _ = degree.stage(inside, replicas).best(
                kind, row, in_flight, self.problem.memory_bytes, matters
            )
            for place in np.unique(row[times < matters.bound]):
                d = int(replicas[place])
                yield degree, d, np.concatenate([[np.inf], times[row == place]])[-(-np.arange(self.sums + 1) // d)]

    def _hopeless(self, degree: int, larger: int, smaller: int, most_s: float) -> bool:
        """Tell cheaply that a stage takes too long on the most replicas, or too much memory on any number of them.

        With later stages behind it, at least two micro-batches are in flight.
        """
        times, memory = self.floors[degree]
        needed = memory[larger] - memory[smaller]
        return bool(
            times[larger] - times[smaller] > most_s * (1 + SLACK)
            or needed[1 if smaller else 0] > self.problem.memory_bytes * (1 + SLACK)
        )

    def fill(self, kind: Knapsack, matters: Range) -> Reals:
        """Return dp[upset, k, s]; entries that reach the bound are infinite. The last row is for all layers."""
        devices = self.problem.devices
        order = sorted(range(len(self.upsets)), key=lambda index: (self.upsets[index].bit_count(), index))
        table = np.full((len(self.upsets) + 1, devices + 1, self.sums + 1), np.inf)
        table[0] = 0.0
        for larger in order[1:]:
            here = table[larger]
            for smaller in self.inside[larger]:
                rest = float(table[smaller, -1, -1])
                if rest >= matters.bound:
                    continue
                wanted = Range(max(rest, matters.floor), matters.bound)
                for degree, d, times in self.stage_times(larger, smaller, kind, wanted):
                    used = d * degree.degree
                    before = table[smaller, : devices + 1 - used, : self.sums + 1 - d]
                    np.minimum(here[used:, d:], np.maximum(before, times[d:]), out=here[used:, d:])
            np.minimum.accumulate(here, axis=0, out=here)
            np.minimum.accumulate(here, axis=1, out=here)
        table[-1] = table[order[-1]]
        return table


def _walk(search: _Search, table: Reals, kind: Knapsack) -> Iterator[PiperStage]:
    """Yield the stages from the first on, with ties as in the program.

    Fewest devices, then fewest replicas; then the first upset, degree and number of replicas, in its order of
    search, that explain the value within its slack.
    """
    best = table[-1].min()
    devices, sums = (int(place) for place in np.argwhere(table[-1][:, 1:] < best + SLACK)[0] + (0, 1))
    current = search.upsets.index((1 << len(search.problem.layers)) - 1)
    while current:
        value = table[current, devices, sums]
        current, devices, sums, stage = _explain(search, table, kind, (current, devices, sums), value)
        yield stage


def _explain(
    search: _Search, table: Reals, kind: Knapsack, at: tuple[int, int, int], value: float
) -> tuple[int, int, int, PiperStage]:
    """Find the stage behind one entry of the table and where the walk goes on."""
    current, devices, sums = at
    for smaller in search.inside[current]:
        for degree, d, times in search.stage_times(current, smaller, kind, Range(value, value + 2 * SLACK)):
            left = devices - d * degree.degree, sums - d
            # No entry is below the least value, so "not above" is the program's "equal".
            if min(left) < 0 or max(table[smaller, left[0], left[1]], times[sums]) >= value + SLACK:
                continue
            inside = search.member[current] & ~search.member[smaller]
            in_flight = np.array([float(-(-sums // d))])
            _, second = degree.stage(inside, np.array([float(d)])).best(
                kind, np.array([0]), in_flight, search.problem.memory_bytes, Range(value)
            )
            layers = tuple(int(node) for node in np.flatnonzero(inside))
            names = tuple(degree.names[node][int(one)] for node, one in zip(layers, second[0], strict=True))
            return smaller, *left, PiperStage(layers, d, degree.degree, names)
    raise ValueError(f"no stage explains {value} s; is the table complete?")
