"""The plan that a label, or an answer in a game, stands for: stages on real servers, with forms."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.dynamic.states.states import StateSpace
from pipecut.solvers.reference.algorithm_1 import best_forms
from pipecut.solvers.step_time.bounds.game import Game
from pipecut.solvers.step_time.bounds.pass_tables import StageParts
from pipecut.solvers.step_time.bounds.paths import BACKWARD, FORWARD, SYNC
from pipecut.solvers.step_time.bounds.rays import Proportion, weighed
from pipecut.solvers.step_time.bounds.spans import Spans
from pipecut.solvers.step_time.bounds.sums import LeastPlan
from pipecut.solvers.step_time.bounds.ways import Ways
from pipecut.solvers.step_time.fronts import StageFronts
from pipecut.solvers.step_time.search import Labels

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
