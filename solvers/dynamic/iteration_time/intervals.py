"""Branch and bound on the bottleneck: intervals of it, each with the network of plans that still matter there.

A plan whose bottleneck lies in [a, b] costs at least ``alpha V(b) + beta a``, where V(b) is the least latency
through the network of stages and boundaries of at most b. Plans with an arc of time t cost at least
``alpha (least latency through the arc) + beta max(a, t)``: arcs leave for which that is no better than the best
plan known. What is left is looked at more finely, or if that is too large exactly, without a network
(:mod:`solvers.dynamic.iteration_time.exactly`), or else the interval is halved. In a
network as fine as plans themselves the path of latency V(b) is a plan; with its bottleneck p it settles [p, b],
and [a, p - 1] is left. The least bound of all pieces that are left is a bound for all plans.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

import numpy as np

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.dynamic.iteration_time.blocks import BASE, Bits, Blocks, blocks, coarser
from pipecut.solvers.dynamic.iteration_time.exactly import ExactLatency
from pipecut.solvers.dynamic.iteration_time.latency import INFINITE, LatencyValues, least_path, through, values
from pipecut.solvers.dynamic.iteration_time.network import Layout, Network, first_network, kept
from pipecut.solvers.dynamic.iteration_time.plans import Plans
from pipecut.solvers.dynamic.iteration_time.proposals import CutPath, corrected
from pipecut.solvers.dynamic.iteration_time.refining import halved, ranked
from pipecut.solvers.dynamic.iteration_time.steps import FlatSteps
from pipecut.solvers.dynamic.iteration_time.windows import windows

LOWEST_PARTS = 1_000
"""The least bottleneck is looked for to one part in so many."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many stages networks may have; whatever they are, the answer is the same.

    ``first``: about so many in the first network; 0: none is drawn, and all is asked exactly. ``most``: a
    network is refined while the finer one has no more, else its interval is halved, but not to less than one
    part of its upper end in ``narrow``. ``ranked``: slots are told apart once a network is so small, or its
    blocks single. ``work``: where an exact question costs no more
    (:mod:`solvers.dynamic.iteration_time.exactly`), it is asked as soon as a network cannot be refined.
    """

    first: int = 3_000_000
    most: int = 4_000_000
    ranked: int = 400_000
    narrow: int = 256
    work: int = 2_000_000_000


@dataclass(order=True, slots=True)
class Piece:
    """Plans with a bottleneck from ``low`` to ``high``; none of them costs less than ``bound``.

    ``mended``: how many corrections the network knows of. Without a network plans are asked for exactly.
    """

    bound: int
    number: int
    low: int = field(compare=False)
    high: int = field(compare=False)
    network: Network | None = field(compare=False)
    mended: int = field(compare=False, default=0)


class Intervals:
    """One search; what it finds is in ``plans``."""

    def __init__(self, plans: Plans, steps: FlatSteps, sizes: Sizes) -> None:
        self.plans, self.steps = plans, steps
        self.spans, self.weights = plans.spans, plans.weights
        self.evaluated = 0
        self._sizes = sizes
        self._exact = ExactLatency(self.spans, steps, self.spans.limits.times.tables.deadline)
        self._potential: Times = np.zeros(self.spans.total + 1, dtype=np.int64)
        self._blocks: dict[int, Blocks] = {}
        self._pieces: list[Piece] = []
        self._numbers = itertools.count()

    def look(self, plan: Plan | None) -> None:
        """Look once at everything, coarsely, for a good plan, and lean on what it costs where from then on."""
        if plan is not None:
            self._lean_on(plan)
        found = values(self._first(self._highest())) if self._sizes.first else None
        if found is not None and found.total is not None:
            better = self.plans.propose(found.network, least_path(found))
            if better is not None:
                self._lean_on(better)

    def begin(self) -> None:
        """Take the whole range of bottlenecks as the first piece."""
        low = self._lowest(self._highest())
        high = self._highest()
        network = self._first(high) if self._sizes.first else None
        self._pieces = [self._piece(self.weights.value(low, low), low, high, network, 0)]

    @property
    def bound(self) -> int:
        """What every plan costs at least that is better than the best one known; its price if there is none."""
        return min(self._pieces[0].bound, self.plans.upper) if self._pieces else self.plans.upper

    def step(self) -> None:
        """Work on the piece with the least bound. Does nothing where none is left."""
        if not self._pieces or self._pieces[0].bound >= self.plans.upper:
            self._pieces.clear()
            return
        piece = self._pieces[0]
        followers = self._followers(piece)
        heapq.heappop(self._pieces)
        for one in followers:
            if one.bound < self.plans.upper and one.low <= one.high:
                one.bound = max(one.bound, piece.bound)
                heapq.heappush(self._pieces, one)

    def _followers(self, piece: Piece) -> list[Piece]:
        """Return the pieces that are left of a piece."""
        if piece.network is None:
            return self._left_of(piece)
        network, known = _within(piece, piece.network), len(self.plans.corrections)
        fine = self._is_fine(network)
        if fine and piece.mended < known:
            network = corrected(network, self.plans.corrections[piece.mended : known])
            network = _within(piece, network)
        mended = known if fine else 0
        found = values(network)
        self.evaluated += 1
        if found.total is None:
            return []
        latency, path = found.total + self._span(), least_path(found)
        self.plans.propose(network, path)
        high = self._settled(piece, latency)
        if high >= piece.low and fine:
            exact = CutPath.of(network, path, latency)
            if not self._settles(exact):
                return [self._piece(self.weights.value(latency, piece.low), piece.low, high, network, mended)]
            high = min(high, exact.bottleneck_ns - 1) if self.weights.of_bottleneck else piece.low - 1
        if high < piece.low:
            return []
        return self._divided(self._cheap(found, piece.low, high), piece.low, high, latency, mended)

    def _left_of(self, piece: Piece) -> list[Piece]:
        """Return what is left of a piece whose plan of least latency is found exactly."""
        value, low = self.weights.value, piece.low
        found = self._exact.least(piece.high, self.plans.corrections)
        self.evaluated += 1
        if found is None:
            return []
        high = self._settled(piece, found.latency_ns)
        if high >= low and not self._settles(found):
            return [self._piece(value(found.latency_ns, low), low, high, None, 0)]
        high = min(high, found.bottleneck_ns - 1) if self.weights.of_bottleneck else low - 1
        middle = (low + high) // 2
        halves = ((low, middle), (middle + 1, high)) if low < high else ((low, high),)
        return [self._piece(value(found.latency_ns, one), one, last, None, 0) for one, last in halves]

    def _settles(self, path: CutPath) -> bool:
        return self.plans.settle(self.steps, path, self.weights.value(path.latency_ns, path.bottleneck_ns))

    def _divided(self, network: Network, low: int, high: int, latency: int, mended: int) -> list[Piece]:
        """Return one finer piece, or two halves of the interval."""
        value = self.weights.value
        whole = low >= high or not self.weights.of_bottleneck
        narrow = whole or high - low < high // self._sizes.narrow
        if not self._is_fine(network) and (narrow or 4 * len(network.stages) <= self._sizes.most):
            return [self._piece(value(latency, low), low, high, self._finer(network, high), mended)]
        if whole:
            return [self._piece(value(latency, low), low, high, network, mended)]
        if not self._is_fine(network) and self._exact.work <= self._sizes.work:
            return [self._piece(value(latency, low), low, high, None, 0)]
        middle = (low + high) // 2
        halves = ((low, middle), (middle + 1, high))
        return [self._piece(value(latency, first), first, last, network, mended) for first, last in halves]

    def _settled(self, piece: Piece, latency: int) -> int:
        """Return the largest bottleneck with which a plan of this latency is better than the best known."""
        left = self.plans.upper - 1 - self.weights.value(latency, 0)
        if not self.weights.of_bottleneck:
            return piece.high if left >= 0 else piece.low - 1
        return min(piece.high, left // self.weights.of_bottleneck)

    def _cheap(self, found: LatencyValues, low: int, high: int) -> Network:
        """Return the network of arcs that may be part of a plan better than the best known."""
        network = found.network
        left = self.plans.upper - 1 - self.weights.value(self._span(), 0)
        keep: list[Bits] = []
        for cost, arcs in zip(through(found), (network.stages, network.bridges), strict=True):
            alive = (cost < INFINITE // 2) & (arcs.time <= high)
            paced = self.weights.of_bottleneck * np.clip(arcs.time, low, high)
            # Divided, not multiplied: a path that is no plan may cost more than any plan does.
            keep.append(alive & (cost <= (left - paced) // self.weights.of_latency))
        return kept(network, keep[0], keep[1])

    def _finer(self, network: Network, high: int) -> Network:
        """Tell slots apart, or make blocks as small as the size of the network allows, half as small at least."""
        width, many = network.blocks.width, len(network.stages)
        if network.layout.ranks < self.spans.ranks and (width == 1 or many <= self._sizes.ranked):
            return ranked(network, self.spans.ranks, high)
        finer = max(1, width // 2)
        while finer > 1 and many * (2 * width // finer) ** 2 <= self._sizes.most:
            finer //= 2
        return halved(network, self._blocks_of(finer), high)

    def _is_fine(self, network: Network) -> bool:
        return network.blocks.width == 1 and network.layout.ranks == self.spans.ranks

    def _lean_on(self, plan: Plan) -> None:
        self._potential = self.plans.potential(plan)
        self._blocks.clear()

    def _span(self) -> int:
        return int(self._potential[-1] - self._potential[0])

    def _blocks_of(self, width: int) -> Blocks:
        if width not in self._blocks:
            base = self._blocks_of(BASE) if width > BASE else None
            made = blocks(self.spans, width, self._potential) if base is None else coarser(base, width)
            self._blocks[width] = made
        return self._blocks[width]

    def _first(self, high: int) -> Network:
        width, steps = 1, len(self.steps.state)
        while width < self.spans.total and steps * (self.spans.total / width + 2) ** 2 / 2 > self._sizes.first:
            width *= 2
        inside = windows(self.spans, self.steps, high)
        return first_network(Layout(self.steps, self._blocks_of(width), 1), inside, high)

    def _highest(self) -> int:
        """Return the largest bottleneck of a plan better than the best known: its latency is no less."""
        whole = self.weights.value(1, 1)
        return min(FORBIDDEN - 1, (self.plans.upper - 1) // whole) if self.weights.of_bottleneck else FORBIDDEN - 1

    def _lowest(self, high: int) -> int:
        """Return a bottleneck that no plan is below."""
        if not self.weights.of_bottleneck:
            return 0
        low = 0
        while high - low > high // LOWEST_PARTS:
            middle = (low + high) // 2
            if windows(self.spans, self.steps, middle).possible:
                high = middle
            else:
                low = middle + 1
        return low

    def _piece(self, bound: int, low: int, high: int, network: Network | None, mended: int) -> Piece:
        return Piece(bound, next(self._numbers), low, high, network, mended)


def _within(piece: Piece, network: Network) -> Network:
    """Return a network without stages and boundaries that take longer than the interval of a piece."""
    stages, bridges = network.stages.time <= piece.high, network.bridges.time <= piece.high
    return network if stages.all() and bridges.all() else kept(network, stages, bridges)
