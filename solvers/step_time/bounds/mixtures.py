"""A bound for all plans of so many stages: paths with weights, no sum of which is ever above a step.

Every path through the passes of a pipeline is a lower bound of its step (``solvers.step_time.bounds.paths``), and
so is a mean of paths with any weights, which is a sum of passes, each so often. The least of that sum over all
plans is found stage by stage (``solvers.step_time.bounds.pass_sums``) and is a bound of them all; what a plan
begins or ends with can be added to the least of the rest. Where the weights come from:
``solvers.step_time.bounds.game``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.limits import Deadline, in_time
from pipecut.formulation.problem.training import Training
from pipecut.solvers.step_time.bounds.columns import Formula
from pipecut.solvers.step_time.bounds.game import Game, play
from pipecut.solvers.step_time.bounds.pass_sums import NEVER_NS, Pairs, Sums, pairs_of
from pipecut.solvers.step_time.bounds.paths import ACTIVATION, BACKWARD, FORWARD, GRADIENT, SYNC
from pipecut.solvers.step_time.bounds.rays import Proportion
from pipecut.solvers.step_time.bounds.rest import Rest

TURNS = 12
ROUNDS = 6
FEWER = 0.8
"""Where fewer stages than this part are left, the game is played again with them."""


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """Paths of plans of ``stages`` stages, weights of ``weight`` in all; ``bound``: no plan takes less.

    ``often[row, s]`` sums up passes; ``visits[s][m, k]`` how often paths go into the stages from s on with
    micro-batch m and come out with k. ``ahead`` and ``behind``: the least sums by slot, and number of end and
    place, and ``sums`` the stages that are left.
    """

    weight: int
    often: Times
    visits: tuple[Counter[tuple[int, int]], ...]
    bound: int
    ahead: Times
    behind: Times
    sums: Sums

    @property
    def stages(self) -> int:
        """Number of stages of the plans."""
        return len(self.sums.slots)

    def least(self, slot: int, end: int, start: Times, passes: Times, sent: Times, behind: Times | int) -> Times:
        """Return what plans take at least that have stages from these places on, ``behind`` them such sums."""
        counts = self.often[:, self.stages - 1 - slot]
        taken = passes[:, 0] * counts[FORWARD] + passes[:, 1] * counts[BACKWARD] + passes[:, 2] * counts[SYNC]
        if slot:
            taken = taken + sent[:, 0] * counts[ACTIVATION] + sent[:, 1] * counts[GRADIENT]
        ahead = self.ahead[slot, end * self.sums.spans.pace.shape[2] + start]
        return np.asarray(-(-(ahead + taken + behind) // self.weight))

    def room(self, kind: int, first: int, stop: int, most_ns: int) -> dict[Proportion, int]:
        """Return what some stages take at most in plans of so many stages within a limit.

        By how often forward pass, backward pass and synchronisation count, without what is fetched: in each such
        plan a stage keeps to one of them. Stages ahead and behind take their least sums, the paths of a plan
        together no more than so many steps, and the rest is for the stage.
        """
        found = dict[Proportion, int]()
        for slot, pairs in enumerate(self.sums.slots):
            of, rows = pairs.of, pairs.rows
            some = np.flatnonzero((of.kind[rows] == kind) & (of.first[rows] == first) & (of.stop[rows] == stop))
            if len(some):
                counts = self.often[:, self.stages - 1 - slot]
                taken = (
                    self.ahead[slot, pairs.target[some]] + counts[[FORWARD, BACKWARD]] @ of.fetched[:, rows[some]]
                )
                if slot:
                    taken += self.behind[slot - 1, pairs.source[some]]
                    taken += counts[[ACTIVATION, GRADIENT]] @ of.sent[:, rows[some]]
                own = int(counts[FORWARD]), int(counts[BACKWARD]), int(counts[SYNC])
                left = self.weight * most_ns - int(taken.min())
                found[own] = max(left, found.get(own, left))
        return found

    @staticmethod
    def of(game: Game, most_ns: int) -> Mixture:
        """Return the paths of a game with the least sums of the plans that are left, those within a limit."""
        sums, often, limit = game.sums, game.often, game.weight * most_ns
        visits = tuple(Counter[tuple[int, int]]() for _ in sums.slots)
        for weight, path in game.weights:
            for stage, pairs in enumerate(path.visits):
                for pair in pairs:
                    visits[stage][pair] += weight
        costs = sums.costs(often, game.values)
        ahead, behind = sums.ahead(costs, limit), sums.behind(costs, limit)
        return Mixture(game.weight, often, visits, game.bound, ahead, behind, sums)


def slots_of(rest: Rest, least: Times, deadline: Deadline) -> list[Pairs] | None:
    """Return by slot the stages that may be in plans within the limit of the rest; None for too many of them.

    There are as many slots as one of these plans may have stages. Raises StoppedError after the deadline.
    """
    spans, ways, found = rest.spans, rest.ways, dict[int, Pairs]()
    slots: list[Pairs] = []
    for slot in in_time(range(max(_stages(rest), default=0)), deadline):
        rule = spans.rules[slot]
        pairs = found.get(rule) if slot else None
        if pairs is None:
            pairs = pairs_of(spans, ways, least, rest.useful[rule], last=not slot)
        if pairs is None:
            return None
        if slot:
            found[rule] = pairs
        slots.append(pairs)
    return slots


def roots_of(rest: Rest, slots: list[Pairs], deadline: Deadline) -> list[Sums]:
    """Return the plans of every number of stages that may be within the limit of the rest."""
    return [Sums(rest.spans, rest.ways, tuple(slots[:stages]), deadline) for stages in _stages(rest)]


def _stages(rest: Rest) -> list[int]:
    """Return the numbers of stages that plans within the limit of the rest may have."""
    least = rest.behind[:, rest.ways.whole, 0].min(axis=1, initial=NEVER_NS)
    found: list[int] = (1 + np.flatnonzero(least <= rest.most_ns)).tolist()
    return [stages for stages in found if stages >= rest.spans.least_stages]


def mixture(sums: Sums, training: Training | Formula, most_ns: int, rounds: int = ROUNDS) -> Mixture | None:
    """Return a bound of all plans of these stages that take at most so long, None if there are none.

    Raises StoppedError after the deadline. Cost: some tens of sums over all plans.
    """
    before, game = sums.size, play(sums, training, most_ns, turns=TURNS)
    while game is not None and rounds > 1 and game.sums.size <= FEWER * before:
        before, rounds = game.sums.size, rounds - 1
        game = game.within(most_ns, training, TURNS)
    return None if game is None else Mixture.of(game, most_ns)


def mixtures_of(
    rest: Rest, least: Times, training: Training | Formula, deadline: Deadline
) -> list[Mixture] | None:
    """Return bounds for the numbers of stages of plans within the limit of the rest; None for too many stages.

    Stages that are in no such plan are no longer ``useful``. Raises StoppedError after the deadline.
    """
    slots = slots_of(rest, least, deadline)
    if slots is None:
        return None
    found = [mixture(sums, training, rest.most_ns) for sums in roots_of(rest, slots, deadline)]
    mixtures = [one for one in found if one is not None]
    rest.useful = {rule: np.zeros_like(bits) for rule, bits in rest.useful.items()}
    for one in mixtures:
        for slot, pairs in enumerate(one.sums.slots):
            of, rows = pairs.of, pairs.rows
            rest.useful[rest.spans.rules[slot]][of.kind[rows], of.first[rows], of.stop[rows]] = True
    return mixtures
