"""What the last pass of a step waited for: a longest path through the passes of a pipeline, counted.

A step takes as long as the longest of its paths: sums of passes and transfers, each of which waits for the one
before it. With the passes of a plan in place of those that the path was found with, its sum can only be below what
that plan takes, as a path is a path for every plan of so many stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.problem.training import Schedule, Training
from pipecut.solvers.step_time.bounds.columns import Formula

FORWARD, BACKWARD, ACTIVATION, GRADIENT, SYNC = range(5)
ROWS = 5
COUNTED, SENT = [FORWARD, BACKWARD, SYNC], [ACTIVATION, GRADIENT]


@dataclass(frozen=True, slots=True, eq=False)
class PassPath:
    """``often[row, s]``: how often the path goes through that of stage s (transfers: of the boundary behind it).

    ``visits[s]``: a pair (m, k) for each time that it goes into the stages from s on with micro-batch m and comes
    out of them with the gradient of k; k is the number of micro-batches where it ends in them. ``passes``: row,
    stage and micro-batch of each pass, in order; none where they depend on warm-ups that are chosen.
    """

    length: float
    often: NDArray[np.int64]
    visits: tuple[tuple[tuple[int, int], ...], ...]
    passes: tuple[tuple[int, int, int], ...] = ()


def warm_ups(training: Training, stages: int) -> list[int]:
    """Return by stage the forward passes before its first pair of a forward and a backward pass."""
    if training.schedule is Schedule.GPIPE:
        return [training.micro_batches] * stages
    if training.schedule is Schedule.NAIVE:
        return [0] * stages
    return [many - 1 for many in training.warm_ups(stages)]


def longest_path(training: Training | Formula, passes: NDArray[np.float64]) -> PassPath:
    """Return a longest path of a step with these passes, ``passes[row, stage]``, under a schedule with a flush.

    Where every stage chooses its warm-up, of those that there are with any of them (:func:`_path_of_any`). By a
    formula what it counts is the path.

    Cost: stages times micro-batches.
    """
    if isinstance(training, Formula):
        return _path_of_formula(training, passes)
    rows: list[list[float]] = passes.tolist()
    if training.chooses_warm_ups:
        return _path_of_any(rows, training.micro_batches)
    warm, micro_batches = warm_ups(training, len(rows[0])), training.micro_batches
    return _Trace(rows, warm, micro_batches, *_ends(rows, warm, micro_batches)).path()


def _path_of_any(rows: list[list[float]], count: int) -> PassPath:
    """Return a longest of the paths that there are whatever the warm-ups.

    A stage can begin once the first micro-batch has come through all stages before it, does all its passes one
    after another in any order, the backward pass of the last micro-batch last, and this one's gradient then goes
    back to a stage before it, or stays, and is synchronised there.
    """
    pairs = [one + other for one, other in zip(rows[FORWARD], rows[BACKWARD], strict=True)]
    there = [0.0, *accumulate(map(sum, zip(rows[FORWARD], rows[ACTIVATION], strict=True)))]
    back = [0.0, *accumulate(map(sum, zip(rows[BACKWARD], rows[GRADIENT], strict=True)))]
    length, busy, last = max(
        (there[busy] + count * pairs[busy] + back[busy] - back[last] + rows[SYNC][last], busy, last)
        for busy in range(len(pairs))
        for last in range(busy + 1)
    )
    often = np.zeros((ROWS, len(pairs)), dtype=np.int64)
    often[[FORWARD, ACTIVATION], :busy] = often[[BACKWARD, GRADIENT], last:busy] = 1
    often[[FORWARD, BACKWARD], busy] = count
    often[SYNC, last] = 1
    visits = [
        ((0, count - 1 if stage > last else count),) if 0 < stage <= busy else () for stage in range(len(pairs))
    ]
    return PassPath(length, often, tuple(visits))


def _path_of_formula(formula: Formula, passes: NDArray[np.float64]) -> PassPath:
    """Return all stages and boundaries ``once``, and the slowest of them as many times more as it counts."""
    often = np.full(passes.shape, formula.once, dtype=np.int64)
    parts = np.stack([passes[[FORWARD, BACKWARD]].sum(axis=0), passes[[ACTIVATION, GRADIENT]].sum(axis=0)])
    parts[1, -1] = 0  # nothing lies behind the last stage
    boundary, slowest = np.unravel_index(int(parts.argmax()), parts.shape)
    often[[ACTIVATION, GRADIENT] if boundary else [FORWARD, BACKWARD], slowest] = formula.often
    often[[ACTIVATION, GRADIENT], -1] = often[SYNC] = 0
    return PassPath(float((often * passes).sum()), often, ((),) * passes.shape[1])


Ends = list[list[float]]


def _ends(rows: list[list[float]], warm: list[int], count: int) -> tuple[Ends, Ends]:
    """Return by stage and micro-batch when forward and backward passes end."""
    stages = range(len(warm))
    free = [0.0 for _ in stages]
    down: Ends = [[] for _ in stages]
    up: Ends = [[] for _ in stages]

    def forward(stage: int, micro_batch: int) -> None:
        arrived = down[stage - 1][micro_batch] + rows[ACTIVATION][stage - 1] if stage else 0
        free[stage] = max(free[stage], arrived) + rows[FORWARD][stage]
        down[stage].append(free[stage])

    for stage in stages:
        for micro_batch in range(warm[stage]):
            forward(stage, micro_batch)
    for pair in range(count):
        for stage in stages:
            if pair + warm[stage] < count:
                forward(stage, pair + warm[stage])
        for stage in reversed(stages):
            arrived = up[stage + 1][pair] + rows[GRADIENT][stage] if stage + 1 < len(warm) else 0
            free[stage] = max(free[stage], arrived) + rows[BACKWARD][stage]
            up[stage].append(free[stage])
    return down, up


@dataclass(slots=True)
class _Trace:
    """The way back along a longest path, from the end of the step to its first pass."""

    rows: list[list[float]]
    warm: list[int]
    count: int
    down: Ends
    up: Ends

    def path(self) -> PassPath:
        stages = len(self.warm)
        often = np.zeros((ROWS, stages), dtype=np.int64)
        visits: list[list[tuple[int, int]]] = [[] for _ in range(stages)]
        ends = [own[-1] + sync for own, sync in zip(self.up, self.rows[SYNC], strict=True)]
        stage = ends.index(max(ends))
        often[SYNC, stage] = 1
        out = [self.count] * stages
        node: tuple[int, int, int] | None = (BACKWARD, stage, self.count - 1)
        passes: list[tuple[int, int, int]] = []
        while node is not None:
            row, stage, micro_batch = node
            passes.append(node)
            often[row, stage] += 1
            node = self._before(*node)
            if node is not None and node[1] > stage:
                often[GRADIENT, stage] += 1
                out[node[1]] = micro_batch
            if node is not None and node[1] < stage:
                often[ACTIVATION, node[1]] += 1
                visits[stage].append((micro_batch, out[stage]))
        return PassPath(max(ends), often, tuple(map(tuple, visits)), tuple(reversed(passes)))

    def _before(self, row: int, stage: int, micro_batch: int) -> tuple[int, int, int] | None:
        """Return the pass that one waited for: the one before it on its device, or its tensor from next door."""
        own = self._on_device(row, stage, micro_batch)
        next_door = stage - 1 if row == FORWARD else stage + 1
        if not 0 <= next_door < len(self.warm):
            return own
        ends = self.down if row == FORWARD else self.up
        sent = self.rows[ACTIVATION][next_door] if row == FORWARD else self.rows[GRADIENT][stage]
        arrived = ends[next_door][micro_batch] + sent
        if own is not None and (self.down if own[0] == FORWARD else self.up)[stage][own[2]] >= arrived:
            return own
        return row, next_door, micro_batch

    def _on_device(self, row: int, stage: int, micro_batch: int) -> tuple[int, int, int] | None:
        """Return the pass before one on its device."""
        warm = self.warm[stage]
        if row == BACKWARD:
            ahead = micro_batch + warm
            return (FORWARD, stage, ahead) if ahead < self.count else self._last_done(stage, micro_batch)
        if micro_batch > warm:
            return BACKWARD, stage, micro_batch - warm - 1
        return (FORWARD, stage, micro_batch - 1) if micro_batch else None

    def _last_done(self, stage: int, micro_batch: int) -> tuple[int, int, int]:
        if micro_batch:
            return BACKWARD, stage, micro_batch - 1
        return FORWARD, stage, self.count - 1
