"""The neighbours of a plan, priced: what was asked about, how many there are, and the best of them.

The best is found best first: every neighbour has a price that it cannot undercut, at first whatever the forms of
the stages that the move touches, then with their fastest forms, and where these need too much memory with the
fastest that fit. Only what may still be the best is looked at more closely, and the evaluator prices it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count

from pipecut.formulation.costs.memory import MemoryParts, capacity_bytes
from pipecut.formulation.limits import StoppedError, in_time
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.reasons.priced_plans import PricedPlan, Pricing, Rank, laid

Candidate = tuple[str, Plan, tuple[int, ...]]
"""What is done, the plan with the forms that the layers had, and the stages whose forms are chosen anew."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A plan one move away: what is done, and what it costs more than the plan (less than 0: it is better).

    ``costs`` are the differences of every goal of the instance, in its unit.
    """

    what: str
    priced: PricedPlan
    costs: tuple[int, ...]

    @property
    def better(self) -> bool:
        """Tell whether it keeps the rules and is better than the plan."""
        return self.priced.feasible and self.costs < (0,) * len(self.costs)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The neighbours of one sort, with the forms that the head of this module says: the best, and how many.

    Where none keeps the rules ``best`` is the one that takes least by what was looked at, and its violations say
    why it is no plan. ``complete``: all of the sort were looked at, and none is better. Else the time was over
    first, and ``best`` is the best that was seen of ``looked_at``. None in ``best``: there is no such neighbour,
    or there was no time for one.
    """

    best: Neighbour | None
    looked_at: int
    complete: bool


def neighbours(pricing: Pricing, base: PricedPlan, candidates: Iterable[Candidate]) -> Neighbours:
    """Return the best of the candidates, until the deadline of the pricing.

    Cost: a bound by tables for each, forms for those that may be the best, and an evaluation or two.
    """
    pricing.ask()
    search, complete, asked = _BestFirst(pricing, base), True, list[Candidate]()
    try:
        try:
            # Of too many the first are looked at, for which the other half of the time is kept.
            for what, plan, changed in in_time(candidates, pricing.deadline.share(2)):
                asked.append((what, laid(pricing.instance, plan) if pricing.on_line else plan, changed))
        except StoppedError:
            complete = False
        pricing.prepare((base.plan, *(plan for _, plan, _ in asked)))
        for what, plan, changed in in_time(asked, pricing.deadline):
            search.add(what, plan, changed)
        search.run()
    except StoppedError:
        return Neighbours(search.neighbour(), search.seen, complete=False)
    return Neighbours(search.neighbour(), search.seen, complete)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A neighbour under way: the ``unknown`` stages have no forms yet; ``fitted``: it was made to fit memory."""

    what: str
    plan: Plan
    unknown: frozenset[int]
    fitted: bool = False


class _BestFirst:
    """Neighbours by what they take at least; the first that is priced before all others can be is the best."""

    def __init__(self, pricing: Pricing, base: PricedPlan) -> None:
        self._pricing, self._base = pricing, base
        self._heap: list[tuple[Rank, int, _Asked]] = []
        self._number = count()
        self._best: tuple[str, PricedPlan] | None = None
        self._broken: tuple[Rank, int, _Asked] | None = None
        self.seen = 0
        self._before = {stage.group for stage in base.plan.stages}
        self._limited = pricing.instance.constraints.memory
        self._memory_counts = Goal.MEMORY in pricing.instance.goals

    def add(self, what: str, plan: Plan, changed: tuple[int, ...]) -> None:
        """Take a neighbour; nothing where it is the plan itself, or has no price."""
        moved = (at for at, stage in enumerate(plan.stages) if stage.group not in self._before)
        unknown = frozenset((*changed, *moved))
        if plan == self._base.plan and not unknown:
            return
        self.seen += 1
        self._push(_Asked(what, plan, unknown))
        if unknown and (self._memory_counts or self._kept_may_be_best(plan, unknown)):
            self._push(_Asked(what, plan, frozenset()))

    def run(self) -> None:
        """Look more closely at whatever may be the best, until it is known. Raises StoppedError."""
        while self._heap:
            self._pricing.deadline.check()
            at_least, number, asked = heapq.heappop(self._heap)
            if self._best is not None and self._best[1].rank <= (False, at_least):
                return
            self._look(at_least, number, asked)

    def neighbour(self) -> Neighbour | None:
        """Return the best as a neighbour; where none keeps the rules the first that takes least."""
        found = self._best
        if found is None and self._broken is not None:
            asked = self._broken[2]
            priced = self._pricing.price(asked.plan)
            found = None if priced is None or priced.plan == self._base.plan else (asked.what, priced)
        if found is None:
            return None
        what, priced = found
        costs = tuple(one - other for one, other in zip(priced.values, self._base.values, strict=True))
        return Neighbour(what, priced, costs)

    def _push(self, asked: _Asked) -> None:
        at_least = self._pricing.at_least(asked.plan, asked.unknown)
        heapq.heappush(self._heap, (at_least, next(self._number), asked))

    def _look(self, at_least: Rank, number: int, asked: _Asked) -> None:
        if asked.unknown:
            self._push(replace(asked, plan=self._with_fastest(asked), unknown=frozenset()))
            return
        if asked.plan == self._base.plan:
            return
        if self._pricing.broken(asked.plan):
            self._fails(at_least, number, asked)
            return
        over = list(self._overfull(asked.plan)) if self._limited else []
        if over:
            fitted = None if asked.fitted else self._fitted(asked.plan, over)
            if fitted is None:
                self._fails(at_least, number, asked)
            else:
                self._push(replace(asked, plan=fitted, fitted=True))
            return
        priced = self._pricing.price(asked.plan)
        if priced is None or not priced.feasible:
            self._fails(at_least, number, asked)
        elif self._best is None or priced.rank < self._best[1].rank:
            self._best = asked.what, priced

    def _fails(self, at_least: Rank, number: int, asked: _Asked) -> None:
        """Remember a neighbour that is no plan, if it takes least of these."""
        one = at_least, number, asked
        self._broken = one if self._broken is None else min(self._broken, one, key=lambda row: row[:2])

    def _with_fastest(self, asked: _Asked) -> Plan:
        stages = list(asked.plan.stages)
        for at in asked.unknown:
            stage = stages[at]
            forms = self._pricing.of(stage).fastest(stage.span) if len(stage.span) else None
            stages[at] = stage if forms is None else replace(stage, forms=forms)
        return Plan(tuple(stages))

    def _kept_may_be_best(self, plan: Plan, unknown: frozenset[int]) -> bool:
        """Tell whether some stage cannot be given forms by tables, so that those that it has are all there is.

        Tables know nothing of blocks that are computed again.
        """
        stages = (plan.stages[at] for at in unknown)
        return self._limited and any(
            bool(stage.again) or not self._pricing.of(stage).can_fit(stage.span) for stage in stages
        )

    def _overfull(self, plan: Plan) -> Iterator[int]:
        """Yield the stages that need more memory than there is."""
        halves = self._pricing.instance.training.schedule.in_halves  # tables do not know how many stages there are
        for at, stage in enumerate(plan.stages):
            if stage.again or halves:
                held = MemoryParts.of_stage(self._pricing.instance, plan, at).total
                if held > capacity_bytes(self._pricing.instance, stage.group):
                    yield at
                continue
            needed, room = self._pricing.of(stage).holds(stage.span, stage.forms, len(plan) - 1 - at)
            if needed > room:
                yield at

    def _fitted(self, plan: Plan, over: Iterable[int]) -> Plan | None:
        """Give some stages the fastest forms that fit; None where some have none, or none that may be the best."""
        stages = list(plan.stages)
        limit = None if self._best is None else self._pricing.limit_ns(self._best[1].rank[1])
        for at in over:
            slot = len(plan) - 1 - at
            found = self._pricing.of(stages[at]).fitting(stages[at].span, slot, limit)
            if found is None:
                return None
            stages[at] = replace(stages[at], forms=found[0], again=found[1])
        return Plan(tuple(stages))
