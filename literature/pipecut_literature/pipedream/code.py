"""PipeDream's optimiser as its program computes it (``optimizer/optimizer_graph_hierarchical.py``).

For states k before j (see :mod:`pipecut_literature.pipedream.states`), r replicas, bandwidth B, and C, W, a the
compute time, weights and output of a state::

    T_first(j, r)    = (C_j + 4 (r-1) W_j / (B r h)) / r                       h: machines of the level below
    T_later(k, j, r) = max( ((C_j - C_k) + 4 (r-1) (W_j - W_k) / (B r)) / r,
                            2 a_k / (B r c),   2 a_j / (B r c) unless j is the last )
    A(j, m)          = min( T_first(j, m),  min over k, r < m of max( A(k, m - r), T_later(k, j, r) ) )

The first stage is charged no transfer. c is the compression of activations; with ``compression=None``, the
program's default, *no* transfer between stages is charged at all. At a level above the first, "compute time" of
a stage is the best period of the level below, and h divides the all-reduce of an unsplit stage only. The paper
takes the larger of compute and all-reduce with factor 2(m-1) instead: :mod:`pipecut_literature.pipedream.paper`.

Memory: a stage with r replicas, the M-th machine included, must keep ceil((n - M) / r) times its activations and
weights below the limit, so the last stage is never limited (the program divides exactly before rounding up).

Ties: the program meets the states before j in the order of a Python set, so any optimal plan may come out of
it. Here the smallest k, then the smallest r, wins, and an unsplit stage before both.
Not modelled: ``--use_fewer_machines`` and ``--num_machines_in_first_level``.

Cost: levels above the first need the period of all pairs of states, O(states^3 n^2); one level O(states^2 n^2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.limits import NEVER, Deadline, in_time
from pipecut_literature.common.downsets import NothingFitsError
from pipecut_literature.pipedream.profile import ProfiledModel
from pipecut_literature.pipedream.states import States, antichain_states

Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MachineLevel:
    """One level of the cluster, lowest first: how many machines of the level below, and bytes/s between them."""

    machines: int
    bytes_per_second: float

    def __post_init__(self) -> None:
        if self.machines < 1 or not 0 < self.bytes_per_second < math.inf:
            raise ValueError(f"{self}: expected a machine and a bandwidth above 0")


@dataclass(frozen=True, slots=True)
class Options:
    """The program's switches: compression of activations (None: transfers are free), replicas, memory in bytes."""

    compression: float | None = 1.0
    straight: bool = False
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class PipeDreamStage:
    """States ``first`` up to, not including, ``stop`` on ``replicas`` machines; ``inner`` is their inside."""

    first: int
    stop: int
    replicas: int
    inner: tuple[PipeDreamStage, ...] = ()


@dataclass(frozen=True, slots=True)
class PipeDreamPlan:
    """Seconds per minibatch of the plan, of one machine, and of data parallelism alone; ``states`` searched."""

    stages: tuple[PipeDreamStage, ...]
    period_s: float
    one_machine_s: float
    data_parallel_s: float
    states: int

    @property
    def configuration(self) -> str:
        """Replicas of the top-level stages, as the paper writes them: ``9-5-1-1``."""
        return "-".join(str(stage.replicas) for stage in self.stages)


def optimise(
    profile: ProfiledModel, levels: Sequence[MachineLevel], options: Options = Options()
) -> PipeDreamPlan:
    """Plan a profile as PipeDream's program does.

    Raises NothingFitsError, and TooManyDownsetsError for a profile with too many states.
    """
    return optimise_states(antichain_states(profile), levels, options)


def optimise_states(
    states: States, levels: Sequence[MachineLevel], options: Options = Options(), deadline: Deadline = NEVER
) -> PipeDreamPlan:
    """Run the recurrence over given states; with all downsets and true cuts it is exact in its own model.

    Raises StoppedError after the deadline.
    """
    solved: list[_Level] = []
    compute, below = _differences(states.compute_s, np.inf), 1
    for level in levels:
        top = len(solved) == len(levels) - 1
        starts = 1 if top else len(states) + 1
        solved.append(_Level(states, compute, level, below, options, starts, deadline))
        compute, below = solved[-1].period[:, :, level.machines], level.machines
    if not levels:
        raise ValueError("expected at least one level of machines")
    period = float(compute[0, -1])
    if math.isinf(period):
        raise NothingFitsError("no plan fits into the memory of the machines")
    return PipeDreamPlan(
        _walk(solved, 0, len(states)),
        period,
        float(states.compute_s[-1]),
        _data_parallel(states, levels),
        len(states),
    )


def _differences(sums: Reals, nothing: float) -> Reals:
    """Return ``[i, j]``: the sum over states i to j, ``nothing`` where j < i; row i starts behind state i - 1."""
    start = np.concatenate([[0.0], sums])
    table = sums[None, :] - start[:, None]
    return np.where(np.arange(len(sums))[None, :] >= np.arange(len(start))[:, None], table, nothing)


class _Level:
    """One level solved for the first ``starts`` start states.

    ``period[i, j, m]`` is the least period of states i to j on m machines; ``split[i, j, m]`` the state before
    its last stage and the replicas of that stage, -1 where the stage is not split.
    """

    def __init__(
        self,
        states: States,
        compute: Reals,
        level: MachineLevel,
        below: int,
        options: Options,
        starts: int,
        deadline: Deadline,
    ) -> None:
        size, machines = len(states), level.machines
        widest = 1 if options.straight else machines
        self.level, self.options, self.states = level, options, states
        weights = _differences(states.weight_bytes, 0.0)
        self.stash = _differences(states.stash_bytes, 0.0) + weights
        self.period = np.full((starts, size, machines + 1), np.inf)
        for used in range(1, widest + 1):
            reduce = 4 * (used - 1) * weights / (level.bytes_per_second * used) / below
            fits = self._fits(used, used)
            self.period[:, :, used] = np.where(fits, (compute + reduce) / used, np.inf)[:starts]
        self.split = np.full((starts, size, machines + 1, 2), -1)
        later = [self._later(compute, weights, replicas) for replicas in range(1, widest + 1)]
        for start in in_time(range(min(starts, size)), deadline):
            self._fill(start, later)

    def _fits(self, used: int, replicas: int) -> NDArray[np.bool_]:
        """Tell for each stage ``[i, j]`` whether it fits when it takes the ``used``-th machine."""
        if self.options.memory_bytes is None:
            return np.full(self.stash.shape, True)
        return math.ceil((self.level.machines - used) / replicas) * self.stash <= self.options.memory_bytes

    def _later(self, compute: Reals, weights: Reals, replicas: int) -> Reals:
        """Return T_later[k, j]; infinite unless state k comes before state j."""
        speed = self.level.bytes_per_second * replicas
        before = self.states.before
        times = (np.where(before, compute[1:], np.inf) + 4 * (replicas - 1) * weights[1:] / speed) / replicas
        if self.options.compression is not None:
            moved = 2.0 * self.states.output_bytes / speed / self.options.compression
            out = np.where(np.arange(len(moved)) < len(moved) - 1, moved, 0.0)
            times = np.maximum(np.maximum(times, moved[:, None]), out[None, :])
        return times

    def _fill(self, start: int, later: list[Reals]) -> None:
        """Run the recurrence for pipelines whose first layer is the one behind state ``start - 1``."""
        allowed = self.states.before
        if start:
            # The program skips splits inside what lies before the start, and no others.
            allowed = allowed & ~self.states.before[:, start - 1][:, None]
        for used in range(2, self.level.machines + 1):
            best = np.full(allowed.shape, np.inf)
            width = np.zeros(allowed.shape, dtype=np.int64)
            for replicas, times in enumerate(later[: used - 1], 1):
                found = np.maximum(self.period[start, :, used - replicas][:, None], times)
                found = np.where(allowed & self._fits(used, replicas)[1:], found, np.inf)
                width = np.where(found < best, replicas, width)
                best = np.minimum(found, best)
            at = best.argmin(axis=0)
            columns = np.arange(len(at))
            better = (best[at, columns] < self.period[start, :, used]) & (columns > start)
            self.period[start, better, used] = best[at, columns][better]
            self.split[start, better, used] = np.stack([at, width[at, columns]], axis=1)[better]


def _walk(solved: Sequence[_Level], first: int, stop: int) -> tuple[PipeDreamStage, ...]:
    """Follow the splits of the top level from the back, and those of the level below inside each stage."""
    if not solved:
        return ()
    level, machines, stages = solved[-1], solved[-1].level.machines, []
    while True:
        before, replicas = (int(value) for value in level.split[first, stop - 1, machines])
        begin = first if before < 0 else before + 1
        wide = machines if before < 0 else replicas
        stages.append(PipeDreamStage(begin, stop, wide, _walk(solved[:-1], begin, stop)))
        if before < 0:
            return tuple(reversed(stages))
        stop, machines = begin, machines - replicas


def _data_parallel(states: States, levels: Sequence[MachineLevel]) -> float:
    """Return the period of one stage on all machines of all levels."""
    period, below, weights = float(states.compute_s[-1]), 1, float(states.weight_bytes[-1])
    for level in levels:
        speed = level.bytes_per_second * level.machines
        period = (period + 4 * (level.machines - 1) * weights / speed / below) / level.machines
        below = level.machines
    return period
