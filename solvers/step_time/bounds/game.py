"""A game of paths against plans: weights of paths under which no plan has a small sum.

One side weighs paths, the other mixes plans; both answer the best of the other in turn until they meet, or the
best sum of all plans rises no further (von Neumann 1928; each side answers the other in turn, as of McMahan,
Gordon and Blum, ICML 2003). Weights decide how good a bound is, not whether it holds. Whatever plans have a sum
above the limit with any weights that were tried takes longer than the limit, so what is in such plans alone is
left out on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.problem.training import Training
from pipecut.solvers.step_time.bounds.columns import Formula
from pipecut.solvers.step_time.bounds.pass_sums import NEVER_NS, LeastPlan, Sums
from pipecut.solvers.step_time.bounds.paths import BACKWARD, FORWARD, ROWS, PassPath, longest_path
from pipecut.solvers.step_time.bounds.rays import most_worth

MOST_WEIGHT = 1 << 14
"""Weights are whole numbers that add up to about so many."""
CLOSE = 1e-3
"""So near to each other the two sides of the game stop."""
STALE = 4
"""After so many turns without a better bound, too."""
SLOW = 4
"""So much slower than the others stages are taken to be for the first paths."""
MOST_PATHS = 16
"""So many paths are kept for games with fewer plans."""
Shares = NDArray[np.float64]
Weights = tuple[tuple[int, PassPath], ...]
"""Paths, each with its whole weight."""


@dataclass(frozen=True, slots=True, eq=False)
class Game:
    """How a game ended: ``bound``, below which no plan of ``sums`` is, by paths with whole ``weights``.

    Sums of passes were parted as is best for stages of which ``values`` are known, by slot.

    ``more`` are paths that a game with fewer plans may begin with, and so are ``answers``, the plans that the
    other side mixed by these shares; ``best`` is the one of them all that takes least, about ``best_ns``.
    """

    sums: Sums
    bound: int
    weights: Weights
    values: tuple[Shares, ...]
    more: tuple[PassPath, ...]
    answers: tuple[tuple[float, LeastPlan], ...]
    best: LeastPlan
    best_ns: float

    @property
    def weight(self) -> int:
        """Sum of the weights."""
        return sum(weight for weight, _ in self.weights)

    @property
    def often(self) -> Times:
        """How often the paths go through each pass, together."""
        return _often(self.weights)

    def within(self, most_ns: int, training: Training | Formula, turns: int) -> Game | None:
        """Play on with what is left of the plans."""
        answers = [answer for _, answer in self.answers]
        return play(self.sums, training, most_ns, self.more, answers, turns)


def play(
    sums: Sums,
    training: Training | Formula,
    most_ns: int,
    paths: tuple[PassPath, ...] = (),
    answers: list[LeastPlan] | None = None,
    turns: int = 8,
    tried: list[Weights] | None = None,
) -> Game | None:
    """Play with the plans of these sums that take at most so long; None if there are none.

    ``paths`` and ``answers`` to begin with, if any; the weights of every turn are put into ``tried``. Raises
    StoppedError after the deadline. Cost: as many sums over all plans as there are turns, twice.
    """
    known, found = list(paths) or _first(training, len(sums.slots)), list(answers or ())
    shares, values = np.zeros(0), () if found else sums.typical()
    best, bound, valued, stale, lengths = (), -1, values, 0, list[float]()
    for _ in range(turns):
        parts, shares = _sides(known, found)
        weights = _whole(parts, known, most_ns)
        if tried is not None:
            tried.append(weights)
        often, unit = _often(weights), sum(weight for weight, _ in weights)
        costs = sums.costs(often, values := found[-1].values if found else values)
        behind = sums.behind(costs, unit * most_ns)
        least = sums.whole(behind)
        if least >= NEVER_NS:
            return None
        value = -(-least // unit)
        stale = 0 if value > bound * (1 + CLOSE) else stale + 1
        if value > bound:
            best, bound, valued = weights, value, values
        found.append(sums.plan(often, costs, behind))
        sums = sums.within(costs, unit * most_ns, sums.ahead(costs, unit * most_ns), behind)
        mean = found[-1].passes if len(found) == 1 else np.tensordot(shares, [one.passes for one in found[:-1]], 1)
        path, own = _path(training, mean), _path(training, found[-1].passes)
        lengths.append(own.length)
        if len(found) > 1 and (path.length <= bound * (1 + CLOSE) or stale >= STALE):
            break
        known += [path, own]
    mixed = [one for one in zip(shares.tolist(), found, strict=False) if one[0] > CLOSE]
    least = int(np.argmin(lengths))
    promising = found[len(found) - len(lengths) + least], lengths[least]
    return Game(sums, bound, best, valued, _kept(known, best), (*mixed, (CLOSE, found[-1])), *promising)


def _kept(known: list[PassPath], best: Weights) -> tuple[PassPath, ...]:
    """Return the paths that have weight, and those that were found last."""
    own = [path for _, path in best]
    others = [path for path in known if not any(path is one for one in own)]
    return (*own, *others[max(0, len(others) + len(own) - MOST_PATHS) :])


def _first(training: Training | Formula, stages: int) -> list[PassPath]:
    """Return paths to begin with: for every stage one that goes through all of its passes."""
    passes = np.zeros((stages, ROWS, stages))
    passes[:, [FORWARD, BACKWARD]] = 1
    passes[np.arange(stages), :, np.arange(stages)] *= SLOW
    return [_path(training, one) for one in passes]


def _path(training: Training | Formula, passes: Shares) -> PassPath:
    return longest_path(training, passes)


def _often(weights: Weights) -> Times:
    return np.asarray(sum(weight * path.often for weight, path in weights), dtype=np.int64)


def _whole(parts: Shares, known: list[PassPath], most_ns: int) -> Weights:
    """Return whole weights of the paths, such that sums up to the limit stay far from 64 bits."""
    unit = max(1, min(MOST_WEIGHT, (NEVER_NS >> 2) // max(1, most_ns)))
    weights = [(int(unit * max(0.0, part)), path) for part, path in zip(parts.tolist(), known, strict=True)]
    return tuple(one for one in weights if one[0]) or tuple((1, path) for path in known)


def _sides(known: list[PassPath], found: list[LeastPlan]) -> tuple[Shares, Shares]:
    """Return the best weights of paths against the plans found so far, and the best mixture of these."""
    if not found:
        return np.full(len(known), 1 / len(known)), np.zeros(0)
    often = np.array([path.often.reshape(-1) for path in known], dtype=np.float64)
    return equilibrium(often @ np.array([answer.passes.reshape(-1) for answer in found]).T)


def equilibrium(payoff: Shares) -> tuple[Shares, Shares]:
    """Return the best shares of rows, which want much, and of columns, which want little.

    With all payoffs above 0, columns that add up to most with at most 1 in every row are in the shares of the one
    side, and the prices of the rows in those of the other.
    """
    low, high = float(payoff.min()), float(payoff.max())
    above = 1 + (payoff - low) / max(1e-300, high - low)
    amounts, prices = most_worth(np.ones(payoff.shape[1]), above, np.ones(len(payoff)))
    return prices / max(1e-300, prices.sum()), amounts / max(1e-300, amounts.sum())
