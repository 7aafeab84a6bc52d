"""Paths weighed against the plans of a layout: a mixture of paths that takes long in every plan.

One side weighs paths, the other answers with the plan of which the mixture takes least
(``solvers.chunks.path_sums``); each plan brings the paths that take long in it, as in
``solvers.step_time.bounds.game``. Weights are kept near the best ones so far, or they would swing from plan to
plan (Wentges, International Transactions in Operational Research 4, 1997). With any whole weights, the step of
every plan takes at least the least sum divided by the sum of weights, as no path takes longer than the step. So
weights decide how good the bound is, not whether it holds. Runs that are only in plans that take too long by
some mixture are left out on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.executed import PipelinePasses
from pipecut.formulation.limits import Deadline, in_time
from pipecut.solvers.chunks.case import Case, overlapped
from pipecut.solvers.chunks.pass_chains import critical_path
from pipecut.solvers.chunks.path_sums import FAR, TIMES, PathSums
from pipecut.solvers.chunks.runs import Numbers
from pipecut.solvers.step_time.bounds.game import equilibrium

# Weights are whole numbers that add up to about so many.
MOST_WEIGHT = 1 << 14
# So near to each other, in parts of one, the two sides stop.
CLOSE = 1e-4
# After so many turns without a better bound, too.
STALE = 30
# So many mixtures are told, the best ones.
MIXTURES = 6
# So much weights stay what the best ones are.
NEAR = 0.5
Shares = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Weighed:
    """No plan of a layout is below ``bound``, as far as weights tell.

    ``rows`` are the mixtures that gave the best bounds, the best first, and behind them the paths with weight in
    them, as often as each goes through everything; ``units`` are what each row is to be divided by. ``plans``
    answered. ``sums`` have the runs that are in some plan that counts. ``own`` has of every rank the row of a path
    through most of its passes, and its stages.
    """

    bound: int
    sums: PathSums
    rows: Numbers
    units: Numbers
    plans: tuple[tuple[int, ...], ...]
    own: tuple[tuple[int, tuple[int, ...]], ...]


def weighed(
    case: Case, sums: PathSums, begin: list[tuple[int, ...]], upper: int, turns: int, deadline: Deadline
) -> Weighed:
    """Weigh the paths of a layout. ``begin`` are plans to begin with; only plans below ``upper`` count.

    Raises StoppedError after the deadline. Cost: turns times the sums over all runs of all stages.
    """
    known, bound, stale, mixtures = _Known(case, sums), 0, 0, list[_Mixture]()
    for plan in begin:
        known.add(plan)
    rows = np.array(known.paths)
    units = np.ones(len(rows), dtype=np.int64)
    sums = sums.within(rows, units, sums.behind(rows), upper)
    for _ in in_time(range(turns), deadline):
        weights = known.weigh(upper)
        often, unit = weights @ np.array(known.paths), int(weights.sum())
        behind = sums.behind(often[None])
        value = min(upper, -(-int(behind[0, 0, 0]) // unit))
        mixtures.append(_Mixture(value, unit, often, weights))
        if value > bound:
            known.keep()
        stale = 0 if value > bound * (1 + CLOSE) else stale + 1
        bound = max(bound, value)
        if bound >= upper:
            break
        plan = sums.plan(often[None], behind)
        sums = sums.within(often[None], np.array([unit]), behind, upper)
        if stale >= STALE or not known.add(plan) or known.middle() <= bound * (1 + CLOSE):
            break
    return _told(known, bound, sums, sorted(mixtures, key=lambda one: -one.value)[:MIXTURES])


@dataclass(frozen=True, slots=True, eq=False)
class _Mixture:
    """What a mixture of paths with some weights is worth: its least sum divided by ``unit``, their sum."""

    value: int
    unit: int
    often: Numbers
    weights: Numbers


def _told(known: _Known, bound: int, sums: PathSums, best: list[_Mixture]) -> Weighed:
    """Return what is known, with the paths that have weight in the best mixtures, and one of each rank."""
    many, paths = len(known.ranks), known.paths
    used = sorted({*range(many), *(at for one in best for at in np.flatnonzero(one.weights).tolist())})
    rows = [*(one.often for one in best), *(paths[at] for at in used)]
    units = [*(one.unit for one in best), *(1 for _ in used)]
    own = tuple((len(best) + at, known.case.own(rank)) for at, rank in enumerate(known.ranks))
    whole = np.array(rows, dtype=np.int64), np.array(units, dtype=np.int64)
    return Weighed(bound, sums, *whole, tuple(known.plans), own)


class _Known:
    """The paths that are weighed, and the plans that were answered, each as what everything takes in it.

    The first paths are those of every rank that goes through most of its passes.
    """

    def __init__(self, case: Case, sums: PathSums) -> None:
        self.case, self.sums, self.all = case, sums, case.often
        own = self.all[:, : (TIMES - 1) * case.stages].sum(axis=1)
        busy = np.array(case.busy)
        self.ranks = sorted(set(case.busy))
        first = [int(np.where(busy == rank, own, -1).argmax()) for rank in self.ranks]
        self.rows = {row.tobytes(): row for row in self.all[first]}
        self.plans: dict[tuple[int, ...], Numbers] = {}
        self._best = self._parts = np.full(len(self.rows), 1 / len(self.rows))
        self._shares, self._answered = np.zeros(0), False

    @property
    def paths(self) -> list[Numbers]:
        """The paths that are weighed."""
        return list(self.rows.values())

    def add(self, plan: tuple[int, ...]) -> bool:
        """Take a plan, with the paths that take longest in it; tell whether it, or one of them, is new."""
        new = plan not in self.plans
        if new:
            self.plans[plan] = spent = self._spent(plan)
            self._take(spent)
        return self._take(self._mean()) or new

    def keep(self) -> None:
        """Keep the weights that were tried last as the best ones."""
        self._best = self._parts

    def middle(self) -> float:
        """Return how long the longest path takes in the mean of the plans, as they were mixed."""
        mean = self._mean()
        return float(max((self.all @ mean).max(), (np.array(self.paths) @ mean).max()))

    def weigh(self, upper: int) -> Numbers:
        """Return whole weights of the paths: between the best so far and the best against the plans so far."""
        rows, best = np.array(self.paths), np.zeros(len(self.rows))
        best[: len(self._best)] = self._best
        self._parts = best
        if self._answered:
            payoff = rows.astype(np.float64) @ np.array(list(self.plans.values()), dtype=np.float64).T
            parts, self._shares = equilibrium(payoff)
            self._parts = NEAR * best + (1 - NEAR) * parts
        self._answered = True
        unit = max(1, min(MOST_WEIGHT, (FAR >> 2) // max(1, upper)))
        weights = np.floor(unit * np.maximum(0, self._parts)).astype(np.int64)
        return weights if weights.any() else np.ones_like(weights)

    def _mean(self) -> Shares:
        plans = np.array(list(self.plans.values()), dtype=np.float64)
        return np.tensordot(self._shares, plans[: len(self._shares)], 1) if len(self._shares) else plans[0]

    def _spent(self, plan: tuple[int, ...]) -> Numbers:
        """Return what everything takes in a plan, at least, in the order of ``ChunkPath.often``."""
        ends, tables = pairwise(plan), self.sums.tables
        own = [np.min([one[:, i, j] for one in row], axis=0) for (i, j), row in zip(ends, tables, strict=True)]
        sent = [self.sums.sent[:, at, place] for at, place in enumerate(plan[1:-1])]
        return np.concatenate([np.array(own).T.reshape(-1), np.array(sent).T.reshape(-1)])

    def _take(self, spent: Numbers | Shares) -> bool:
        """Take the paths that are longest when everything takes so long, of those of any step and of this one."""
        before = len(self.rows)
        for row in (self.all[int((self.all @ spent).argmax())], self._critical(spent)):
            self.rows.setdefault(row.tobytes(), row)
        return len(self.rows) > before

    def _critical(self, spent: Numbers | Shares) -> Numbers:
        case, stages = self.case, self.case.stages
        whole = [int(one) for one in np.rint(spent)]
        parts = [tuple(whole[at * stages : (at + 1) * stages]) for at in range(TIMES)]
        sent = whole[TIMES * stages :]
        passes = PipelinePasses(
            parts[0],
            tuple(map(sum, zip(parts[1], parts[2], strict=True))),
            parts[3],
            tuple(sent[: stages - 1]),
            tuple(sent[stages - 1 :]),
            parts[2],
        )
        path = critical_path(case.instance.training, passes, overlapped=overlapped(case.instance))
        return np.array(path.often, dtype=np.int64)
