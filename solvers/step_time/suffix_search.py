"""The search: suffixes of plans slot by slot, unbeaten ones that can still be part of a plan within the limit.

A *label* is a suffix: the end that it reaches (``solvers.step_time.bounds.ways``), the place where it starts, the
warm-up of its first stage, and how it answers (``solvers.step_time.responses``). Of labels with the same end and
place one goes whose answers are never earlier than another's and whose first stage warms up no less: stages before
it warm up at least as long. One goes as well whose own time and what is ahead of it at least are above the limit
(``solvers.step_time.bounds.rest``), or which no plan of any number of stages goes on with within it
(``solvers.step_time.bounds.mixtures``). What is left at place 0 are plans.

A label, or an answer in a game, stands for a plan: stages on real servers, with forms (:func:`plan_of`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.atoms.unbeaten import unbeaten
from pipecut.solvers.dynamic.states.states import StateSpace
from pipecut.solvers.reference.algorithm_1 import best_forms
from pipecut.solvers.step_time.bounds.columns import WEIGHTS
from pipecut.solvers.step_time.bounds.game import Game
from pipecut.solvers.step_time.bounds.mixtures import Mixture
from pipecut.solvers.step_time.bounds.pass_sums import LeastPlan
from pipecut.solvers.step_time.bounds.pass_tables import StageParts
from pipecut.solvers.step_time.bounds.paths import BACKWARD, FORWARD, SYNC
from pipecut.solvers.step_time.bounds.rays import Proportion, weighed
from pipecut.solvers.step_time.bounds.rest import NEVER_NS, Rest
from pipecut.solvers.step_time.bounds.spans import Spans
from pipecut.solvers.step_time.bounds.ways import NOTHING, Ways
from pipecut.solvers.step_time.pass_fronts import StageFronts, StageRows
from pipecut.solvers.step_time.responses import Responses, answered

Index = NDArray[np.int64]
AT_ONCE = 1 << 18
"""So many pairs of a suffix and a stage are looked at in one go."""


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Suffixes that start in one slot, a row each: ``end``, ``place``, ``answers``, and where they come from.

    ``before`` is the row of the suffix behind the first stage among the labels of the slot behind, ``way`` the way
    of the first stage, ``warm_up`` its warm-up (told by a slot, see ``Spans``), ``passes`` its passes without what
    it fetches. ``least``: no plan of it takes less.
    """

    end: Index
    place: Index
    answers: Times
    before: Index
    way: Index
    warm_up: Index
    passes: Times
    least: Times

    def of(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Labels:
        """Return some of them."""
        return Labels(*(getattr(self, one.name)[rows] for one in fields(Labels)))

    def __len__(self) -> int:
        return len(self.end)


class Growth:
    """Labels slot by slot for one limit on the step, which falls when plans are found.

    ``width``: at most so many labels are kept for an end (0: all); with a width nothing is proved.
    ``allowed``: about so many labels may be made (0: any number); ``done`` tells whether that was enough.
    ``mixtures``: bounds by number of stages, outside of which no plan is within the limit; None: not known.
    """

    def __init__(
        self,
        rest: Rest,
        fronts: StageFronts,
        answers: Responses,
        mixtures: list[Mixture] | None,
        width: int = 0,
        allowed: int = 0,
    ) -> None:
        self.rest, self.fronts, self.answers, self.mixtures = rest, fronts, answers, mixtures
        self.most_ns = rest.most_ns
        self.slots: list[Labels] = []
        self.made = 0
        self.done = False
        self._width, self._allowed = width, allowed
        self._deadline = fronts.tables.deadline

    def run(self) -> Iterator[Labels]:
        """Grow until no label is left; yield every whole plan that is better than those before, as one label.

        Its suffixes are then those of ``slots``. Raises StoppedError after the deadline of the tables.
        """
        for slot in in_time(range(len(self.rest.spans.rules)), self._deadline):
            parts: list[Labels] = []
            behind = self._behind(slot)
            for way in in_time(self._ways(slot), self._deadline):
                for warm_up in self.rest.spans.warm_ups[slot]:
                    for part in self._put(slot, (way, warm_up), behind):
                        yield from self._whole(part)
                        parts.append(part.of(part.place > 0))
                if self._allowed and self.made > self._allowed:
                    return
            if not parts:
                break
            labels = _joined(parts)
            labels = labels.of(labels.least <= self.most_ns)
            if not len(labels):
                break
            self.slots.append(self._kept(labels))
        self.done = True

    def _behind(self, slot: int) -> _Behind:
        """Return what is known of all suffixes that stages in a slot are put before."""
        if not slot:
            none = np.zeros(0, dtype=np.int64)
            return _Behind(none, None if self.mixtures is None else [(one, none) for one in self.mixtures])
        labels = self.slots[-1]
        leaving = self.answers.leaving(labels.answers)
        if self.mixtures is None:
            return _Behind(leaving, None)
        found: list[tuple[Mixture, Times]] = []
        for one in in_time(self.mixtures, self._deadline):
            if one.stages > slot:
                seen = self.answers.visited(labels.answers, one.visits[one.stages - slot])
                if seen is None:
                    seen = one.behind[slot - 1, labels.end * self.rest.behind.shape[2] + labels.place]
                found.append((one, seen))
        return _Behind(leaving, found)

    def _kept(self, labels: Labels) -> Labels:
        """Return the unbeaten labels by ascending place; of every end the best ones where a width is set."""
        rows = labels.answers
        if np.ptp(labels.warm_up):
            rows = np.column_stack([rows, labels.warm_up])
        group = labels.end * (1 << 20) + labels.place
        labels = labels.of(unbeaten(rows, group, self._deadline))
        if self._width:
            order = np.lexsort((labels.least, labels.end))
            first = np.flatnonzero(np.diff(labels.end[order], prepend=-1))
            rank = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
            labels = labels.of(order[rank < self._width])
        return labels.of(np.argsort(labels.place, kind="stable"))

    def _whole(self, labels: Labels) -> Iterator[Labels]:
        """Yield the best whole plan among labels; only better ones count from then on."""
        stages = len(self.slots) + 1
        counts = stages >= self.rest.spans.least_stages
        whole = np.flatnonzero((labels.place == 0) & self.rest.ways.whole[labels.end] & counts)
        if len(whole):
            best = whole[int(labels.least[whole].argmin())]
            if int(labels.least[best]) <= self.most_ns:
                self.most_ns = int(labels.least[best]) - 1
                yield labels.of(np.array([best]))

    def _ways(self, slot: int) -> list[int]:
        found: list[int] = np.flatnonzero((self.rest.ways.source == NOTHING) == (slot == 0)).tolist()
        return found

    def _put(self, slot: int, how: tuple[int, int], behind_it: _Behind) -> Iterator[Labels]:
        """Put stages of a way, with a warm-up, before suffixes that they go on from, of which so much is known."""
        ways, (way, warm_up) = self.rest.ways, how
        mine = np.zeros(0, dtype=np.int64)
        if slot:
            behind = self.slots[-1]
            mine = np.flatnonzero((behind.end == ways.source[way]) & (behind.warm_up <= warm_up))
            if not len(mine):
                return
        kind = int(ways.kind[way])
        rows = self.fronts.rows(warm_up, kind, self.rest.useful_of(warm_up)[kind])
        if slot == 0:
            some = np.arange(rows.first[-2], rows.first[-1])
            yield self._made(slot, how, (rows, some), np.full(len(some), NOTHING), behind_it)
            return
        behind = self.slots[-1]
        many = (rows.first[behind.place[mine] + 1] - rows.first[behind.place[mine]]).astype(np.int64)
        for some in _chunks(many):
            label = np.repeat(mine[some], many[some])
            offset = np.arange(len(label)) - np.repeat(np.cumsum(many[some]) - many[some], many[some])
            stage = rows.first[behind.place[label]] + offset
            yield self._made(slot, how, (rows, stage), label, behind_it)

    def _made(
        self, slot: int, how: tuple[int, int], stages: tuple[StageRows, Index], label: Index, behind: _Behind
    ) -> Labels:
        """Return the labels of stages put before suffixes, those that may be part of a plan within the limit."""
        (rows, stage), (way, warm_up) = stages, how
        ways, sent = self.rest.ways, self.rest.spans.boundaries
        end, link = int(ways.target[way]), int(ways.link[way])
        start, stop = rows.start[stage], rows.stop[stage]
        crossed = np.stack([sent.activation[link, stop], sent.gradient[link, stop]], axis=1)
        own = rows.passes[stage]
        passes = own.copy()
        passes[:, 0] += sent.fetched[ways.front[way], start]
        passes[:, 1] += sent.returned[link, stop]
        pace = passes[:, 0] + passes[:, 1]
        count, many = self.rest.spans.micro_batches, self.rest.spans.stages
        ahead = self.rest.ahead[slot, end][start]
        late = passes[:, WEIGHTS] if many is not None else np.zeros_like(pace)
        before = count * pace - min((many or 0) - slot, count) * late
        least = np.maximum(ahead + before, self.fronts.passes.alone(passes))
        if slot:
            through = self.rest.spans.once * (pace + crossed.sum(axis=1)) - late
            least = np.maximum(least, ahead + through + behind.leaving[label] - self.rest.each_ns)
        if behind.sums is not None:
            least = np.maximum(least, self._mixed(slot, end, start, (passes, crossed, label), behind.sums))
        good = np.flatnonzero(least <= self.most_ns)
        self.made += len(good)
        start, label = start[good], label[good]
        if slot:
            suffixes, new = (self.slots[-1].answers, label), (passes[good], crossed[good])
            answers = answered(self.answers, *suffixes, warm_up, *new, self._deadline)
        else:
            answers = self.answers.last(passes[good], warm_up)
        least = np.maximum(
            least[good], np.maximum(ahead[good] + self.answers.leaving(answers), self.answers.ended(answers))
        )
        ends, wayed, warmed = (np.full(len(good), one) for one in (end, way, warm_up))
        made = Labels(ends, start, answers, label, wayed, warmed, own[good], least)
        return made.of(least <= self.most_ns)

    def _mixed(
        self,
        slot: int,
        end: int,
        start: Index,
        stages: tuple[Times, Times, Index],
        behind: list[tuple[Mixture, Times]],
    ) -> Times:
        """Return what whole plans take at least by mixtures of paths, whatever number of stages they have."""
        passes, crossed, label = stages
        least = np.full(len(start), NEVER_NS, dtype=np.int64)
        for one, sums in behind:
            seen = sums[label] if slot else 0
            np.minimum(least, one.least(slot, end, start, passes, crossed, seen), out=least)
        return least


@dataclass(frozen=True, slots=True, eq=False)
class _Behind:
    """What is known of suffixes: when the last gradient leaves, and what the paths of each mixture see of them."""

    leaving: Times
    sums: list[tuple[Mixture, Times]] | None


def _chunks(many: Index) -> list[Index]:
    """Return runs of rows with about so many pairs in each."""
    total = np.cumsum(many)
    if not len(total) or not total[-1]:
        return []
    return np.split(np.arange(len(many)), np.flatnonzero(np.diff(total // AT_ONCE)) + 1)


def _joined(parts: list[Labels]) -> Labels:
    names = [one.name for one in fields(Labels)]
    return Labels(*(np.concatenate([getattr(one, name) for one in parts]) for name in names))


FINE = 32
"""Passes are weighed by about so many steps where forms are chosen."""


def plan_of(whole: Labels, slots: list[Labels], fronts: StageFronts, ways: Ways, space: StateSpace) -> Plan:
    """Return the plan of the one label of a whole plan; ``slots`` are the labels behind its first stage.

    Raises LookupError if no forms take what the label says: a defect.
    """
    taken, found, label = list[int](), list[tuple[Span, tuple[int, ...], int | None]](), whole
    chosen = fronts.tables.instance.training.chooses_warm_ups and fronts.passes.formula is None
    for slot in reversed(range(len(slots) + 1)):
        behind = slots[slot - 1].of(label.before) if slot else None
        span = Span(int(label.place[0]), fronts.space.stops if behind is None else int(behind.place[0]))
        taken.append(int(label.way[0]))
        warm_up = int(label.warm_up[0])
        forms = fronts.forms(warm_up, int(ways.kind[taken[-1]]), span, tuple(label.passes[0].tolist()))
        found.append((fronts.space.layers(span), forms, warm_up + 1 if chosen else None))
        label = whole if behind is None else behind
    groups = _groups(taken, fronts, ways, space)
    stages = zip(groups, found, strict=True)
    return Plan(tuple(Stage(span, group, forms, own) for group, (span, forms, own) in stages))


def _groups(taken: Iterable[int], of: StageFronts | StageParts, ways: Ways, space: StateSpace) -> list[Group]:
    """Return the groups on real servers of stages that come in these ways, from the front."""
    tables, found = of.tables, list[Group]()
    real = tuple(range(len(tables.instance.servers)))
    for way in taken:
        step, kind = space.step(int(ways.state[way]), int(ways.place[way])), int(ways.kind[way])
        real = tuple(real[step.moved[server]] for server in range(len(real)))
        groups = space.suffixes.places[step.place].groups
        group = tables.groups[next(one for one in groups if tables.kind_of[one] == kind)]
        counts = tuple(sorted((real[server], count) for server, count in group.counts))
        found.append(replace(group, counts=counts))
    return found


@dataclass(slots=True)
class Rounding:
    """Makes plans of answers: cut where least crosses, stages in the forms that are best for the paths of a game.

    They may break rules: nobody has looked at what they hold.
    """

    parts: StageParts
    ways: Ways
    space: StateSpace
    fine: Spans
    _forms: dict[tuple[int, Span, Proportion], tuple[int, ...]] = field(default_factory=dict)

    def plan(self, answer: LeastPlan, game: Game) -> Plan | None:
        """Return a plan of an answer in a game; None where its stages would have no layers. Cost: its layers."""
        taken = [way for way, _, _ in answer.stages]
        cuts = [0]
        for (_, block, _), way in zip(answer.stages[1:], taken, strict=False):
            cuts.append(self._place(game.sums.spans, block, int(self.ways.link[way]), cuts[-1] + 1))
        cuts.append(self.parts.space.stops)
        if any(one >= other for one, other in itertools.pairwise(cuts)):
            return None
        often, stages = game.often[[FORWARD, BACKWARD, SYNC]], list[Stage]()
        for stage, group in enumerate(_groups(taken, self.parts, self.ways, self.space)):
            counts = (often[:, stage] * FINE // max(1, int(often[:, stage].max()))).tolist()
            span = self.parts.space.layers(Span(cuts[stage], cuts[stage + 1]))
            forms = self._best(int(self.ways.kind[taken[stage]]), span, (counts[0], counts[1], counts[2]))
            stages.append(Stage(span, group, forms))
        return Plan(tuple(stages))

    def _place(self, spans: Spans, block: int, link: int, after: int) -> int:
        """Return where a block is cut at least cost, not before a place (its end if it ends there)."""
        last, sent = int(spans.place[block + 1]), self.fine.boundaries
        first = min(last, max(after, int(spans.place[block])))
        crossed = (sent.both + sent.fetched + sent.returned)[link, first:last]
        return first + int(crossed.argmin()) if len(crossed) else last

    def _best(self, kind: int, span: Span, often: Proportion) -> tuple[int, ...]:
        key = kind, span, often
        if key not in self._forms:
            some = np.array([kind])
            tables = self.parts.tables
            of = self.parts.passes.of_kinds(some)
            # Of the bounds of a stage the last counts what is sent, about which forms decide.
            one = weighed(replace(tables, kinds=(tables.kinds[kind],)), of, of.columns.below(often)[-1])
            self._forms[key] = best_forms(one, 0, span)
        return self._forms[key]
