"""Several instances of one model and cluster, searched together: the one that promises least goes on.

A plan of one is a value that plans of all others have to be below, so most are ruled out by a few questions. What
no plan undercuts is the least bound of all.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import Deadline, StoppedError, TooLargeError
from pipecut.formulation.outcome import Limits, Outcome, Progress, Proof
from pipecut.formulation.problem.instance import Instance, longest_run_ns
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.reduce.by_count import ByCount
from pipecut.solvers.reduce.executed.steps import ByStep
from pipecut.solvers.reduce.reduced_dp import NAME, Search, gone_on, search_of

SearchOf = Callable[[Instance, int, Deadline], Search]
"""Begins the search of an instance for plans below a value: bounds of all its plans, and plans of it."""


# So often one goes on with a search beside the best plan, until that is a good one; and with others, as most are
# ruled out then.
GOES: dict[object, tuple[int, int]] = {ByStep: (2, 1), ByCount: (8, 4)}


@dataclass(slots=True, eq=False)
class _Part:
    """One instance: its search (None: not begun), and what no plan of it undercuts."""

    instance: Instance
    bound: int
    search: Search | None = None
    done: bool = False
    goes: int = 0

    @property
    def settled(self) -> bool:
        """Whether nothing is open but ways to run stages."""
        return isinstance(self.search, ByStep) and self.search.settled


@dataclass(slots=True)
class Jointly:
    """The search of several instances for plans of less than ``best``; ``value`` is that of ``plan`` of ``of``."""

    limits: Limits
    parts: list[_Part]
    best: int
    begun_by: SearchOf = search_of
    plan: Plan | None = None
    value: int | None = None
    of: Instance | None = None
    began_s: float = field(default_factory=time.monotonic)

    @staticmethod
    def run(
        instances: Sequence[Instance],
        limits: Limits,
        start: Progress | None = None,
        begun_by: SearchOf = search_of,
    ) -> list[tuple[Instance, Outcome]]:
        """Search all instances until the bound meets the best plan, or the limits are used up.

        ``start`` is a plan of one of them that is known. ``begun_by`` begins the search of each.

        Return an outcome for each, in the order given: that of the best has its plan, the bound of every other is
        the value of that plan where nothing below it is left.
        """
        most = max(longest_run_ns(one, one.training.micro_batches) for one in instances) + 1
        found = Jointly(limits, [_Part(one, lower_bound(one)) for one in instances], most, begun_by)
        if start is not None and start.objective is not None:
            alike = (one for one in instances if start.instance and one.training == start.instance.training)
            found.of = next(one for one in alike if start.plan is None or evaluate(one, start.plan).feasible)
            found.value, found.plan = start.objective, start.plan
        found.best = min(one for one in (found.value, limits.below, most) if one is not None)
        found._tell()
        with contextlib.suppress(StoppedError, TooLargeError):
            found._search()
        return [(part.instance, found._outcome(part)) for part in found.parts]

    def _go_on(self, part: _Part) -> None:
        """Go on with a part, which is begun where it was not."""
        self.limits.deadline.check()
        begun, part.goes = part.search is not None, part.goes + 1
        search = part.search or self.begun_by(part.instance, self.best, self.limits.deadline)
        part.search, search.upper = search, self.best
        try:
            if begun:
                following = gone_on(search)
                part.search, part.done = following or search, following is None
            else:
                search.begin()
        finally:  # a search that is stopped may have found a plan
            self._learn(part, part.search)

    def _search(self) -> None:
        """Go on with one part after another until none may have better plans."""
        while open_ := [one for one in self.parts if not one.done and one.bound < self.best]:
            self._go_on(self._next(open_))
            for part in self.parts:
                if part.done or part.bound >= self.best:
                    part.search = None  # nobody asks it any more, and its tables are large

    def _next(self, open_: list[_Part]) -> _Part:
        """Return the part to go on with: that of the least bound, those last of which ways to run stages are open.

        Before that the part of the best plan, and those beside it, go on as far as it takes to have a good plan;
        and then all are begun, from there on, as nothing is known of one that is not. Most are ruled out by their
        first steps: these come at once, so that tables of few stand at a time.
        """
        at, own = self.parts.index, next((one for one in self.parts if one.instance is self.of), None)
        if own is not None:
            for one in sorted(open_, key=lambda one: (abs(at(one) - at(own)), at(one) < at(own))):
                if one.goes < GOES.get(type(one.search), (1, 1))[abs(at(one) - at(own)) > 1]:
                    return one
        return min(open_, key=lambda one: (one.settled, one.bound))

    def _learn(self, part: _Part, search: Search) -> None:
        if search.plan is not None and search.best < self.best:
            priced = evaluate(part.instance, search.plan)
            if priced.feasible and priced.objective is not None and priced.objective < self.best:
                self.plan, self.of = search.plan, part.instance
                self.best = self.value = priced.objective
        part.bound = max(part.bound, search.bound)
        self._tell()

    def _tell(self) -> None:
        bound = min(min(one.bound for one in self.parts), self.best)
        self.limits.progress(Progress(self.value, bound, self.plan, self.of, whole=True))

    def _outcome(self, part: _Part) -> Outcome:
        own, bound = self.of is part.instance, min(part.bound, self.best)
        proof = Proof.UNKNOWN if not own else Proof.OPTIMAL if bound >= (self.value or 0) else Proof.FEASIBLE
        if self.plan is None and self.limits.below is None and part.bound >= self.best:
            proof = Proof.INFEASIBLE
        plan, value = (self.plan, self.value) if own else (None, None)
        least = None if proof is Proof.INFEASIBLE else bound
        return Outcome(NAME, proof, plan, value, least, time.monotonic() - self.began_s)
