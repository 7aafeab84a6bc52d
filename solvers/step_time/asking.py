"""What is asked on the way to a proof: whether plans take at most so long, for one limit after another.

Limits begin a little above the bound, where little is possible: plans are bounded in boxes
(``solvers.step_time.bounds.boxes``), and suffixes of what is left in small boxes are searched
(``solvers.step_time.suffix_search``). Either there is no plan within the limit, which raises the bound, or there
is a better one than was known, and it goes on with what is better still. Plans are made on the way of those that
bounds are about.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.training import Training
from pipecut.solvers.dynamic.states.states import StateSpace
from pipecut.solvers.search.incumbent import Incumbent
from pipecut.solvers.step_time.bounds.boxes import Boxes
from pipecut.solvers.step_time.bounds.columns import Formula
from pipecut.solvers.step_time.bounds.game import Game, Weights, play
from pipecut.solvers.step_time.bounds.mixtures import TURNS, mixtures_of, roots_of, slots_of
from pipecut.solvers.step_time.bounds.pass_sums import LeastPlan, Sums
from pipecut.solvers.step_time.bounds.pass_tables import StageParts
from pipecut.solvers.step_time.bounds.paths import PassPath
from pipecut.solvers.step_time.bounds.rays import rays_of
from pipecut.solvers.step_time.bounds.rest import Rest, rest_of
from pipecut.solvers.step_time.bounds.spans import Bits, Spans
from pipecut.solvers.step_time.bounds.ways import Ways
from pipecut.solvers.step_time.pass_fronts import StageFronts
from pipecut.solvers.step_time.responses import PassByPass, responses
from pipecut.solvers.step_time.suffix_search import Growth, Rounding, plan_of

MOST_BLOCKS = 160
"""Places are put together to about so many blocks where plans are bounded in boxes."""
FIRST_STEP, LAST_STEP, MANY = 8, 40, 200
"""Limits are above the bound by such a part of it: by much first, and by less where there were more than so many
boxes."""
NEARER = 8
"""And nearer by this where they leave too many suffixes, which are told by passes."""
MOST_NUMBERS = 1 << 26
"""Suffixes that are told by passes are so many numbers of 8 bytes at most."""

FINE = 1024
"""Where no plan keeps to a period it is asked for one that is longer by such a part."""
NARROW = (2, 200)
"""So many labels of stages, and of suffixes, are kept where a first plan is looked for, and no proof."""
FIRST_BOXES, FIRST_MADE, PARTS = 64, 1 << 20, 8
"""Where warm-ups are chosen so many boxes and suffixes are allowed first, and limits are such parts of the gap."""

Useful = dict[int, Bits]


@dataclass(slots=True)
class Search:
    """Searches for one limit after another; ``made`` counts the suffixes of all of them, ``boxes`` the boxes."""

    known: Incumbent
    parts: StageParts
    spans: Spans
    ways: Ways
    space: StateSpace
    least: Times
    made: int = 0
    boxes: int = 0
    waiting: int = 1
    waited: int = 0
    seen: set[object] = field(default_factory=set)
    paths: dict[int, tuple[PassPath, ...]] = field(default_factory=dict)
    _blocks: Spans | None = None

    @property
    def order(self) -> Training | Formula:
        """What says how long plans take: the schedule of the step, or the formula."""
        return self.parts.passes.formula or self.known.instance.training

    @property
    def _has_paths(self) -> bool:
        """Whether paths are known, by which plans in boxes are bounded."""
        return self.spans.stages is None and self.parts.passes.period is None

    def run(self) -> None:
        """Search until the bound meets the plan. Raises StoppedError after the deadline."""
        chosen = self.known.instance.training.chooses_warm_ups and self.parts.passes.formula is None
        if self.parts.passes.period is not None:
            self._of_period()
        elif chosen or self.spans.stages is not None:
            self._from_above()
        else:
            self._from_below()

    def _of_period(self) -> None:
        """Close in on the least period that stages alone leave possible, and ask for plans from there on."""
        known, high, above = self.known, self.known.upper, 0
        while known.lower < high:
            limit = (known.lower + high - 1) // 2
            known.asked += 1
            high = min(high, limit) if self._coarse(limit).best <= limit else high
        while known.lower < known.upper:
            before = known.upper
            found = not self._by_suffixes(min(known.upper - 1, known.lower + above), None)
            above = above // NEARER if found and known.upper < before else max(2 * above, known.lower // FINE)

    def _from_above(self) -> None:
        """Look for better plans at once, and for lower limits where that takes too many suffixes.

        This is for warm-ups that are chosen: of few paths is it known that there always are such, so boxes of
        plans have bounds that exclude little; only the first ones are looked at. And for backward passes in
        halves, of whose paths nothing is known: there a narrow search finds the first plans.
        """
        known, before = self.known, self.known.upper + 1
        self._coarse(known.upper - 1)
        limit = min(known.upper - 1, known.lower + known.lower // FIRST_STEP)
        if known.lower <= limit and self._has_paths:
            self._parted(self._coarse(limit), limit, FIRST_BOXES)
        while known.lower < known.upper < before and not self._has_paths:
            before = known.upper
            self._by_suffixes(known.upper - 1, None, width=NARROW)
        allowed, part, too_much = FIRST_MADE, PARTS, known.upper
        while known.lower < known.upper:
            most = known.upper - 1
            if part < PARTS:
                most = known.lower + (known.upper - known.lower) * part // PARTS
            if most < too_much and self._by_suffixes(most, None, allowed):
                part = min(PARTS, 2 * part)
            elif part > 1:
                part, too_much = part // 2, min(too_much, most)
            else:
                part, allowed, too_much = PARTS, 4 * allowed, known.upper

    def _from_below(self) -> None:
        """Bound plans in boxes for limits from below, and search the suffixes of what is left of them."""
        known, step, nearer = self.known, FIRST_STEP, 1
        if self.parts.passes.formula is None:
            self._coarse(known.upper - 1)
        while known.lower < known.upper:
            above = known.lower // step if known.plan is not None else known.lower
            limit = min(known.upper - 1, known.lower + above // nearer)
            rest, before = self._coarse(limit), self.boxes
            if known.lower <= limit:
                left = self._parted(rest, limit)
                limit = min(limit, known.upper - 1)
                asked = known.lower <= limit and (left is not None or step == LAST_STEP)
                if asked and not self._by_suffixes(limit, left, self._allowed()):
                    if limit == known.lower:
                        return
                    nearer *= NEARER
                if left is None or self.boxes - before > MANY:
                    step = LAST_STEP

    def _allowed(self) -> int:
        """Return about how many suffixes are allowed where they are told by passes, of which more are kept."""
        how = responses(self.order, len(self.spans.rules))
        return MOST_NUMBERS // how.width if isinstance(how, PassByPass) else 0

    def _coarse(self, limit: int) -> Rest:
        """Return what may be in plans within a limit, by blocks of places where there are many."""
        if self._blocks is None:
            stops = self.parts.space.stops
            starts = np.arange(stops + 1) if stops <= MOST_BLOCKS else self.spans.by_work(MOST_BLOCKS)
            self._blocks = self.spans.blocks(starts)
        rest = rest_of(self._blocks, self.ways, limit, self.parts.tables.deadline)
        self._raise(min(rest.best, limit + 1))
        return rest

    def _know(self, rest: Rest) -> None:
        """Work out the proportions of passes that are worth knowing, of kinds that were not looked at before."""
        parts, starts = self.parts, rest.spans.place
        if parts.passes.formula is not None:
            return  # stages have one pass, and so no proportions of several
        useful = {int(kind) for bits in rest.useful.values() for kind in np.flatnonzero(bits.any(axis=(1, 2)))}
        if self.spans.rays is None or useful - self.spans.rays.kinds:
            rays = rays_of(parts.tables, parts.passes, parts.space, starts, useful, self.spans.rays)
            self.spans = replace(self.spans, rays=rays)
        if self.spans.rays is not None:
            rest.spans = replace(rest.spans, rays=replace(self.spans.rays, block=np.arange(len(starts))))

    def _roots(self, rest: Rest) -> list[Sums] | None:
        """Return the plans of every number of stages that may be within a limit; None for too many stages."""
        slots = slots_of(rest, self.least, self.parts.tables.deadline)
        if slots is None:
            return None
        self._know(rest)
        slots = [replace(pairs, of=replace(pairs.of, spans=rest.spans)) for pairs in slots]
        return roots_of(rest, slots, self.parts.tables.deadline)

    def tried(self, limit: int) -> Iterator[tuple[int, list[Weights]]]:
        """Yield by number of stages the weights of paths that were tried against all plans within a limit.

        None for too many stages. Raises StoppedError after the deadline.
        """
        for sums in self._roots(self._coarse(limit)) or ():
            found: list[Weights] = []
            play(sums, self.order, limit, turns=TURNS, tried=found)
            yield len(sums.slots), found

    def _parted(self, rest: Rest, limit: int, most: int = 0) -> Useful | None:
        """Bound plans in boxes; return the stages of those that are left. None: for too many stages.

        And after more than about ``most`` boxes (0: any number), all of which count for the bound all the same.
        """
        known, roots = self.known, self._roots(rest)
        if roots is None:
            return None
        known.asked += 1
        taken = np.asarray(self.space.taken[self.ways.node], dtype=np.int64)
        boxes = Boxes(self.order, taken, limit, self.spans)
        rounding = Rounding(self.parts, self.ways, self.space, self.spans)
        for answer, game in boxes.grow(roots, self.paths):
            self._take(answer, game, rounding)
            boxes.most_ns = min(boxes.most_ns, known.upper - 1)
            self._raise(boxes.bound)
            if most and boxes.made > most:
                self.boxes += boxes.made
                return None
        self._raise(boxes.bound)
        self.boxes += boxes.made
        left = {rule: np.zeros(self.spans.pace.shape, dtype=np.bool_) for rule in rest.useful}
        for game in boxes.small:
            for slot, pairs in enumerate(game.sums.slots):
                of, rows = pairs.of, pairs.rows
                left[rest.spans.rules[slot]][of.kind[rows], of.first[rows], of.stop[rows]] = True
        return left

    def _take(self, answer: LeastPlan, game: Game, rounding: Rounding) -> None:
        """Take a plan of an answer if it is better than what is known; after one that is not, wait for longer."""
        self.waited += 1
        if game.best_ns >= self.known.upper or self.waited < self.waiting or answer.stages in self.seen:
            return
        self.seen.add(answer.stages)
        self.waited, self.waiting = 0, 2 * self.waiting
        plan = rounding.plan(answer, game)
        if plan is not None:
            found = evaluate(self.known.instance, plan)
            if found.feasible and found.objective is not None and found.objective < self.known.upper:
                self.known.take(plan)
                self.waiting = 1

    def _by_suffixes(
        self, most_ns: int, only: Useful | None, allowed: int = 0, width: tuple[int, int] = (0, 0)
    ) -> bool:
        """Search all plans that take at most so long, and tell whether none was left out.

        ``only``: all stages that they are made of, if known; ``allowed``: about so many suffixes (0: any number);
        ``width``: about so many labels of stages and of suffixes are kept (0: all).
        """
        known, deadline = self.known, self.parts.tables.deadline
        known.asked += 1
        rest = rest_of(self.spans, self.ways, most_ns, deadline, only)
        mixtures = mixtures_of(rest, self.least, self.order, deadline) if self._has_paths else None
        bound = 0 if mixtures is None else min((one.bound for one in mixtures), default=most_ns + 1)
        self._raise(min(max(rest.best, bound), most_ns + 1))
        fronts = StageFronts(self.parts, most_ns, width[0], mixtures or ())
        answers = responses(self.parts.passes.period or self.order, len(rest.spans.rules), most_ns)
        growth = Growth(rest, fronts, answers, mixtures, width[1], allowed)
        for found in growth.run():
            asked = self.parts.passes.period is not None
            plan = plan_of(found, growth.slots, fronts, self.ways, self.space)
            known.take(plan, most_ns if asked else int(found.least[0]))
            if asked:
                break
        self.made += growth.made
        whole = growth.done and not any(width)
        if whole:
            self._raise(min(known.upper, most_ns + 1))
        return whole

    def _raise(self, bound: int) -> None:
        if bound > self.known.lower:
            self.known.lower = min(bound, self.known.upper)
            self.known.tell()
