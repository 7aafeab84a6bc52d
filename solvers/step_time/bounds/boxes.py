"""Plans in boxes: all of so many stages first, then those that start a stage here or there, best boxes first.

The bound of many plans at once is weak, as the other side of the game (``solvers.step_time.bounds.game``) mixes
plans that have little in common: of two halves each with all its work in another stage, every stage has half of
the work. So plans that it mixes are told apart: by where a stage starts, or by how many devices are taken from
there on. Every plan of a box is in one of its two parts, so nothing is lost. Branch and bound, as of Land and Doig
(1960).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from pipecut.formulation.problem.training import Training
from pipecut.solvers.step_time.bounds.columns import Formula
from pipecut.solvers.step_time.bounds.game import Game, play
from pipecut.solvers.step_time.bounds.pass_sums import LeastPlan, Sums
from pipecut.solvers.step_time.bounds.paths import PassPath
from pipecut.solvers.step_time.bounds.spans import Index, Spans

SMALL = 4
"""Boxes of so many pairs for a stage are no longer parted."""
TURNS = 8
ROOT_TURNS = 12
DIVE = 8
"""Every so many boxes one is followed to its end at once, for its plans."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where a box is parted: by places, or by devices taken, from a slot on; ``up_to`` is in the first part."""

    slot: int
    devices: bool
    up_to: float


@dataclass(slots=True)
class Boxes:
    """Boxes of plans that may take at most ``most_ns``, which may fall on the way.

    ``taken`` are devices that are taken from an end on. Small boxes of blocks are parted by places, the ``fine``
    spans; then ``small`` boxes are done with, though no bound of them is above the limit.
    """

    training: Training | Formula
    taken: Index
    most_ns: int
    fine: Spans
    small: list[Game] = field(default_factory=list)
    made: int = 0
    _hand: int | None = None
    _open: list[tuple[int, int, Game]] = field(default_factory=list)

    @property
    def bound(self) -> int:
        """The least that a plan of any box may take."""
        waiting = [bound for bound, _, _ in self._open[:1]]
        in_hand = [] if self._hand is None else [self._hand]
        return min([*waiting, *in_hand, *(game.bound for game in self.small), self.most_ns + 1])

    def grow(self, roots: list[Sums], paths: dict[int, tuple[PassPath, ...]]) -> Iterator[tuple[LeastPlan, Game]]:
        """Part boxes until all are small or above the limit; yield plans that may be good, and the box of each.

        ``paths`` by number of stages to begin with; those that were found are put there.
        Raises StoppedError after the deadline of the sums.
        """
        for sums in roots:
            self.made += 1
            known = paths.get(len(sums.slots), ())
            game = play(sums, self.training, self.most_ns, known, turns=TURNS if known else ROOT_TURNS)
            if game is not None:
                paths[len(sums.slots)] = game.more
                self._keep(game)
        popped = 0
        while self._open:
            popped += 1
            if popped % DIVE:
                bound, _, game = heapq.heappop(self._open)
                if bound <= self.most_ns:
                    yield from self._parted(game)
            else:
                yield from self._dive()

    def _dive(self) -> Iterator[tuple[LeastPlan, Game]]:
        """Follow the box with the best plan, and of its parts the one with the best plan, to the end."""
        after = self._open
        while after:
            chosen = min(after, key=lambda one: (one[2].best_ns, one[1]))
            self._open.remove(chosen)
            heapq.heapify(self._open)
            at = self.made
            yield from self._parted(chosen[2])
            after = [one for one in self._open if one[1] > at]

    def _parted(self, game: Game) -> Iterator[tuple[LeastPlan, Game]]:
        sums = game.sums
        cut = self._cut(game) if sums.size > SMALL * len(sums.slots) else None
        if cut is None and sums.spans is not self.fine:
            self._hand, self.made = game.bound, self.made + 1
            part = play(sums.by_places(self.fine), self.training, self.most_ns, game.more, turns=TURNS)
            if part is not None:
                self._keep(replace(part, bound=max(part.bound, game.bound)))
                yield part.best, part
        elif cut is None:
            self.small.append(game)
        else:
            yield from self._halves(game, cut)
        self._hand = None

    def _halves(self, game: Game, cut: _Cut) -> Iterator[tuple[LeastPlan, Game]]:
        sums = game.sums
        self._hand, pairs = game.bound, sums.slots[cut.slot]
        low = self._values(sums, cut.devices, pairs.target) <= cut.up_to
        answers = self._of_answers(game, cut.slot, devices=cut.devices) <= cut.up_to
        for side in (True, False):
            self.made += 1
            slots = (*sums.slots[: cut.slot], pairs.where(low == side), *sums.slots[cut.slot + 1 :])
            begun = [one for (_, one), at in zip(game.answers, answers.tolist(), strict=True) if at == side]
            part = play(replace(sums, slots=slots), self.training, self.most_ns, game.more, begun, TURNS)
            if part is not None:
                self._keep(replace(part, bound=max(part.bound, game.bound)))
                yield part.best, part

    def _keep(self, game: Game) -> None:
        heapq.heappush(self._open, (game.bound, self.made, game))

    def _values(self, sums: Sums, devices: bool, target: Index) -> Index:
        ends, places = np.divmod(target, sums.spans.pace.shape[2])
        return self.taken[ends] if devices else places

    def _of_answers(self, game: Game, slot: int, *, devices: bool) -> Index:
        sums, stage = game.sums, len(game.sums.slots) - 1 - slot
        cells = [
            int(sums.ways.target[way]) * sums.spans.pace.shape[2] + first
            for way, first, _ in (answer.stages[stage] for _, answer in game.answers)
        ]
        return self._values(sums, devices, np.array(cells, dtype=np.int64))

    def _cut(self, game: Game) -> _Cut | None:
        """Return where the plans of the other side differ most, or else where plans of the box differ at all."""
        sums, found = game.sums, list[tuple[float, int, _Cut]]()
        shares = np.array([share for share, _ in game.answers])
        for slot, devices in itertools.product(range(len(sums.slots)), (False, True)):
            values = self._values(sums, devices, sums.slots[slot].target)
            low, high = int(values.min()), int(values.max())
            if low < high:
                mixed = self._of_answers(game, slot, devices=devices)
                mean = float(np.average(mixed, weights=shares))
                spread = float(np.average((mixed - mean) ** 2, weights=shares)) ** 0.5
                size = self.taken.max() if devices else sums.spans.pace.shape[2]
                up_to = mean if spread else (low + high) / 2
                found.append((spread / size, len(values), _Cut(slot, devices, min(max(up_to, low), high - 1))))
        return max(found, key=lambda one: one[:2])[2] if found else None
