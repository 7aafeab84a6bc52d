"""What paths promise, made good: plans out of paths, and stages that turn out to take longer than thought."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.outcome import FalseClaimError
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.atoms.chains import Chains, Chosen
from pipecut.solvers.dynamic.iteration_time.spans import StageSpans
from pipecut.solvers.dynamic.iteration_time.steps import FlatSteps
from pipecut.solvers.dynamic.tables.stage_table import stage_time_ns
from pipecut.solvers.reference.algorithm_1 import best_forms


@dataclass(frozen=True, slots=True)
class CutPath:
    """A plan as steps of :class:`FlatSteps` from the front, its cuts, what stages take by tables, and its sums."""

    steps: tuple[int, ...]
    cuts: tuple[int, ...]
    times: tuple[int, ...]
    latency_ns: int
    bottleneck_ns: int


@dataclass(frozen=True, slots=True)
class Correction:
    """Stages of a kind from ``start`` to ``stop`` or further, in this rank or later, take at least ``time_ns``.

    The tables know less: within memory they need slower forms. FORBIDDEN: no forms fit at all.
    """

    rank: int
    kind: int
    start: int
    stop: int
    time_ns: int


class TrueStages:
    """Least times and forms of stages under memory, remembered by rank, kind and span. Spans count atoms."""

    def __init__(self, spans: StageSpans) -> None:
        self._spans, self._atoms = spans, spans.atoms
        atoms = spans.atoms
        self._chains = None if atoms.held is None else Chains(atoms.fine, atoms.held, atoms.space)
        self._known: dict[tuple[int, int, Span], tuple[int, Chosen] | None] = {}

    def least(self, slot: int, kind: int, span: Span) -> tuple[int, Chosen] | None:
        """Return the least time in ns of a stage that keeps its memory, and its choice; None if it never does.

        Cost: that of ``best_forms``; where memory is limited, that of ``Chains.forms``.
        """
        key = (self._spans.rank(slot), kind, span)
        if key not in self._known:
            self._known[key] = self._find(slot, kind, span)
        return self._known[key]

    def filled(self, plan: Plan) -> Plan | None:
        """Return a plan of atoms as one of layers with its fastest forms that fit; None if a stage has none."""
        fine = self._atoms.fine
        kind_of = dict(zip(fine.groups, fine.kind_of, strict=True))
        stages: list[Stage] = []
        for index, stage in enumerate(plan.stages):
            found = self.least(len(plan) - 1 - index, kind_of[stage.group], stage.span)
            if found is None:
                return None
            forms, again = found[1]
            stages.append(replace(stage, span=self._atoms.space.layers(stage.span), forms=forms, again=again))
        return Plan(tuple(stages))

    def _find(self, slot: int, kind: int, span: Span) -> tuple[int, Chosen] | None:
        fine, layers = self._atoms.fine, self._atoms.space.layers(span)
        if self._chains is None:
            found = best_forms(fine, kind, layers), ()
        else:
            found = self._chains.fastest(slot, kind, span, int(self._spans.time[kind, span.first, span.stop]))
            if found is None:
                return None
        return stage_time_ns(fine, kind, layers, *found), found


class Plans:
    """The price of the best plan (``upper``) and the corrections that were found while plans were made.

    ``take`` prices a plan and returns the best price from then on.
    """

    def __init__(self, spans: StageSpans, steps: FlatSteps, upper: int, take: Callable[[Plan], int]) -> None:
        self.upper = upper
        self.corrections: list[Correction] = []
        self._spans, self._steps = spans, steps
        self._true = TrueStages(spans)
        self._take = take

    def settle(self, path: CutPath, promised_ns: int) -> bool:
        """Make the plan of a path; False if stages take longer than thought (``corrections``).

        Raises FalseClaimError if the plan costs more than was promised.
        """
        learnt = False
        for at, (step, thought_ns) in enumerate(zip(path.steps, path.times, strict=True)):
            kind = int(self._steps.kind[step])
            slot, span = len(path.steps) - 1 - at, Span(path.cuts[at], path.cuts[at + 1])
            true = self._true.least(slot, kind, span)
            least = FORBIDDEN if true is None else true[0]
            if least > thought_ns:
                learnt = True
                rank = self._spans.rank(slot)
                self.corrections.append(Correction(rank, kind, span.first, span.stop, least))
        if learnt:
            return False
        groups = groups_on(self._steps, path.steps, self._spans.limits.times.tables)
        rows = zip(groups, path.cuts[:-1], path.cuts[1:], strict=True)
        stages = (Stage(Span(first, stop), group, (0,) * (stop - first)) for group, first, stop in rows)
        plan = self._true.filled(Plan(tuple(stages)))
        if plan is not None:
            self.upper = self._take(plan)
        if self.upper > promised_ns:
            raise FalseClaimError(f"a path promises {promised_ns} ns, the best plan known takes {self.upper} ns")
        return True


def groups_on(steps: FlatSteps, chosen: Sequence[int], tables: Tables) -> tuple[Group, ...]:
    """Return the device groups of the stages that these steps put one before another, from the front.

    Alike servers are exchanged back.
    """
    space = steps.space
    real = tuple(range(len(tables.instance.servers)))
    groups: list[Group] = []
    for step in chosen:
        place = int(steps.place[step])
        moved = space.step(int(steps.state[step]), place).moved
        real = tuple(real[moved[server]] for server in range(len(real)))
        ways = space.suffixes.places[place].groups
        group = tables.groups[next(way for way in ways if tables.kind_of[way] == steps.kind[step])]
        counts = tuple(sorted((real[server], count) for server, count in group.counts))
        groups.append(replace(group, counts=counts))
    return tuple(groups)
