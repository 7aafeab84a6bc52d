"""Branch and bound on the bottleneck: intervals of it, each asked for the plan of least latency within its end.

A plan whose bottleneck lies in [a, b] costs at least ``alpha V(b) + beta a``, where V(b) is the least latency of
plans of stages and boundaries of at most b (:mod:`solvers.dynamic.iteration_time.exactly`). The plan of latency
V(b) has some bottleneck p and settles [p, b], as none there has less latency; [a, p - 1] is left, in two halves.
The least bound of all pieces that are left is a bound for all plans.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.solvers.dynamic.iteration_time.exactly import ExactLatency
from pipecut.solvers.dynamic.iteration_time.plans import Plans


@dataclass(frozen=True, slots=True)
class Weights:
    """The objective is ``latency * of_latency + bottleneck * of_bottleneck``."""

    of_latency: int
    of_bottleneck: int

    def value(self, latency_ns: int, bottleneck_ns: int) -> int:
        """Return the objective."""
        return self.of_latency * latency_ns + self.of_bottleneck * bottleneck_ns


@dataclass(order=True, slots=True)
class Piece:
    """Plans with a bottleneck from ``low`` to ``high``; none of them costs less than ``bound``."""

    bound: int
    number: int
    low: int = field(compare=False)
    high: int = field(compare=False)


class Intervals:
    """One search; what it finds is in ``plans``. ``asked`` counts the questions."""

    def __init__(self, plans: Plans, exact: ExactLatency, weights: Weights, low: int) -> None:
        self.plans, self.weights, self.asked = plans, weights, 0
        self._exact = exact
        self._numbers = itertools.count()
        self._pieces = list[Piece]()
        while low <= (highest := self._highest()):
            high = min(highest, low + low // 4 + 1) if weights.of_bottleneck else highest
            self._pieces.append(self._piece(low, low, high))
            low = high + 1

    @property
    def bound(self) -> int:
        """What every plan costs at least that is better than the best one known; its price if there is none."""
        return min(self._pieces[0].bound, self.plans.upper) if self._pieces else self.plans.upper

    def step(self) -> None:
        """Work on the piece with the least bound. Does nothing where none is left.

        Raises StoppedError after the deadline, with the piece still there.
        """
        if not self._pieces or self._pieces[0].bound >= self.plans.upper:
            self._pieces.clear()
            return
        piece = self._pieces[0]
        followers = self._left_of(piece)
        heapq.heappop(self._pieces)
        for one in followers:
            one.bound = max(one.bound, piece.bound)
            if one.bound < self.plans.upper and one.low <= one.high:
                heapq.heappush(self._pieces, one)

    def _left_of(self, piece: Piece) -> list[Piece]:
        """Return what is left of a piece whose plan of least latency is found."""
        low, high = piece.low, min(piece.high, self._highest())
        below = (self.plans.upper - 1 - self.weights.value(0, low)) // self.weights.of_latency + 1
        found = self._exact.least(high, self.plans.corrections, below) if low <= high else None
        self.asked += 1
        if found is None:
            return []
        high = self._settled(high, found.latency_ns)
        value = self.weights.value(found.latency_ns, found.bottleneck_ns)
        if high >= low and not self.plans.settle(found, value):
            return [self._piece(found.latency_ns, low, high)]
        high = min(high, found.bottleneck_ns - 1) if self.weights.of_bottleneck else low - 1
        middle = (low + high) // 2
        halves = ((low, middle), (middle + 1, high)) if low < high else ((low, high),)
        return [self._piece(found.latency_ns, *half) for half in halves]

    def _settled(self, high: int, latency: int) -> int:
        """Return the largest bottleneck with which a plan of this latency is better than the best known."""
        left = self.plans.upper - 1 - self.weights.value(latency, 0)
        if not self.weights.of_bottleneck:
            return high if left >= 0 else -1
        return min(high, left // self.weights.of_bottleneck)

    def _highest(self) -> int:
        """Return the largest bottleneck of a plan better than the best known: its latency is no less."""
        whole = self.weights.value(1, 1)
        return min(FORBIDDEN - 1, (self.plans.upper - 1) // whole) if self.weights.of_bottleneck else FORBIDDEN - 1

    def _piece(self, latency: int, low: int, high: int) -> Piece:
        return Piece(self.weights.value(latency, low), next(self._numbers), low, high)
