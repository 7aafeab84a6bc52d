"""One way to every solver, in five steps: grids, bounds, engines, settling, checks.

1. *Grids.* In the first second a plan is told that needs no table (:func:`told_at_once`), with which the search
   begins: of all but the smallest instances the best plain grid, of others a simple plan.
2. *Bounds.* With it what work and devices alone say. Nothing that was told falls back.
3. *Engines.* The exact method that sees the whole instance and is fastest is asked (``_Asking._in_order``). Where
   the declarative model is small that is it; elsewhere a programme, in the order of the catalogue, and the model
   behind it. Both choices are those of a measurement (``docs/methods.md``). About executed times a programme is
   always asked first, and the model where none sees the instance, beginning with the best plan by the formula, and
   with the bound that a programme proves without the demands that it does not see.
4. *Settling.* Whoever proves the goal ends it; else what all found out is put together. Whoever cannot take the
   instance, or does not end, is named in the notes with what stopped it. Goals are decided one by one, each by
   whoever sees it (``solvers.goals``).
5. *Checks.* The evaluator prices the plan anew. What second methods make of a proof is asked behind it
   (``solvers.crosscheck``): a command has shown it by then.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.costs.bulk.crossing import crossing_bytes
from pipecut.formulation.limits import ProvedBound, TooLargeError
from pipecut.formulation.outcome import Limits, Outcome, Progress, Proof, checked
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers import catalogue
from pipecut.solvers.auto import by_formula
from pipecut.solvers.catalogue import AUTO, MAIN
from pipecut.solvers.crosscheck import better, checked_by_others, largest_bytes, upheld
from pipecut.solvers.goals import solve_in_order
from pipecut.solvers.ingredients import METHODS
from pipecut.solvers.reduce.best_grid import best_grid
from pipecut.solvers.search.first_plan import simple_plan

if TYPE_CHECKING:
    from pipecut.solvers.catalogue import Solve, SolverEntry
    from pipecut.solvers.search.support import Support

# How long a first simple plan is looked for: it is there in a few tries.
SIMPLE_S = 0.4


def told_at_once(instance: Instance, limits: Limits) -> Limits:
    """Tell a bound and a simple plan; return the limits for all who search from now on.

    Whoever they are, they begin with that plan, and the best plan and bound so far are told.
    """
    best = _Best(instance, limits)
    best.tell(Progress(None, lower_bound(instance)))
    if limits.start is None and limits.below is None and not limits.deadline.over():
        grid = best_grid(instance, limits)
        simple = None if grid else simple_plan(instance, 0.0, SIMPLE_S)
        found = grid.told if grid else None if simple is None else Progress(simple[0], None, simple[1])
        if found is not None:
            best.tell(found)
            limits = replace(limits, start=found.plan)
    return replace(limits, progress=best.tell)


@dataclass(slots=True)
class _Best:
    """The least objective, its plan, and the largest bound that anybody told."""

    instance: Instance
    limits: Limits
    objective: int | None = None
    bound: int | None = None
    plan: Plan | None = None

    def tell(self, progress: Progress) -> None:
        """Take what is better than what was told, and tell both."""
        better = self.objective is None or (progress.objective or 0) < self.objective
        if progress.objective is not None and better:
            self.objective, self.plan = progress.objective, progress.plan
        self.bound = max((one for one in (self.bound, progress.bound) if one is not None), default=None)
        self.limits.progress(Progress(self.objective, self.bound, self.plan, self.instance))


# Up to this size of its model CP-SAT is asked first: it proved every such instance of the table within 4 s.
QUICK_BYTES = 1_000_000
# How long CP-SAT may take where a programme sees the instance too.
PATIENCE_S = 5.0
# What the model begins with is looked for in one part of the time in so many.
BEGINNING = 3
CHECKS_ONLY = ("brute_force",)
"""Exact methods that are slower than the model wherever it takes an instance."""
PROVED = (Proof.OPTIMAL, Proof.INFEASIBLE)


def _looked_at(instance: Instance, skipped: str = "") -> Iterator[tuple[SolverEntry, Support, bool]]:
    """Yield exact methods in the order in which they are asked, what each makes of an instance, whether it proves.

    Of a large instance the reduction is first, though of executed times it seldom proves the last per mille.
    """
    reduced = catalogue.is_reduced(instance)
    for entry in sorted(catalogue.SOLVERS, key=lambda one: not reduced or one.name != catalogue.REDUCED):
        if entry.exact and entry.name not in (*CHECKS_ONLY, skipped):
            support = entry.accepts(instance)
            yield entry, support, support.proves or (reduced and entry.name == catalogue.REDUCED)


def _is_quick(instance: Instance, main: Support) -> bool:
    """Tell whether the declarative model is small enough to be asked first."""
    return (main.bytes_needed or 0) <= QUICK_BYTES and not instance.goals[0].executed


def first_asked(instance: Instance) -> SolverEntry | None:
    """Return who is asked first about an instance; None where nobody sees all of it."""
    able = ((entry, support) for entry, support, proves in _looked_at(instance) if support.takes and proves)
    first = next(able, None)
    if first is None or first[0].name != MAIN or _is_quick(instance, first[1]):
        return None if first is None else first[0]
    return next(able, first)[0]


def solve(instance: Instance, limits: Limits) -> Outcome:
    """Return the best plan by whoever is fastest, checked and cross-checked (:func:`plan`)."""
    return plan(instance, limits)


def plan(instance: Instance, limits: Limits, method: SolverEntry = AUTO, *, cross_check: bool = True) -> Outcome:
    """Find the best plan, check every claim, and compare each proof with that of a second, independent method.

    Where the instance is too large for ``method``, or it does not see a later goal, others are asked, and the
    notes say why. The time limit is that of all of it. With ``Limits.below`` no second method is asked: whoever
    compares instances asks it about those that matter, at the end (``solvers.choices``).
    Raises RefutedError if a claim fails its check, FalseClaimError if two methods contradict each other,
    ValueError if ``method`` does not take the instance for another reason than its size, and TooLargeError if
    nobody does.
    """
    limits = told_at_once(instance, limits.begun())

    def of_one_goal(judged: Instance, within: Limits) -> Outcome:
        judged = replace(judged, goals=judged.goals[:1])
        return _asked(judged, within, method, later=judged.goals != instance.goals[:1])

    outcome = upheld(instance, solve_in_order(instance, of_one_goal, limits), limits)
    if cross_check and limits.below is None:
        outcome = replace(outcome, checks=tuple(filter(None, checked_by_others(instance, outcome, limits))))
    known = outcome.solver in METHODS or outcome.solver == by_formula.NAME
    if outcome.proof in PROVED or not known or limits.ruled_out(outcome):
        return outcome
    return replace(outcome, notes=(*outcome.notes, *advice(instance, outcome, limits)))


def _by_formula(instance: Instance, limits: Limits, *, propose: bool = True) -> Outcome:
    def ask(asked: Instance, within: Limits) -> Outcome:
        return plan(asked, within, cross_check=False)

    return by_formula.planned_by_formula(instance, limits, ask, propose=propose)


def _asked(instance: Instance, limits: Limits, method: SolverEntry, *, later: bool) -> Outcome:
    asking = _Asking(instance, limits)
    if method is not AUTO:
        support = method.accepts(instance)
        if not (support.too_large or (later and support.reason)):
            support.refuse()
            try:
                return asking.checked(method.load(), limits)
            except TooLargeError as error:
                asking.notes.append(f"{method.name}: {error}")
        else:
            asking.notes.append(f"{method.name}: {support.reason}")
    return asking.whoever_is_fastest("" if method is AUTO else method.name)


@dataclass(slots=True)
class _Asking:
    """The methods that are asked about one goal, the best outcome so far, and what stopped the others."""

    instance: Instance
    limits: Limits
    best: Outcome | None = None
    notes: list[str] = field(default_factory=list)
    refusing: set[str] = field(default_factory=set)
    too_large: set[str] = field(default_factory=set)
    given: ProvedBound | None = None

    def whoever_is_fastest(self, skipped: str) -> Outcome:
        """Ask one after another until one proves, or time is over. Raises TooLargeError if none takes it."""
        for name, solve, limits in self._in_turn(skipped):
            if self.best is not None:
                if self._settled(self.best) or self.limits.deadline.over():
                    break
                if self.best.solver != by_formula.NAME:
                    self.notes.append(f"{self.best.solver} has not proved it after {self.best.seconds:.1f} s")
            self._ask(name, solve, limits)
        if self.best is None:
            raise TooLargeError("; ".join(self.notes))
        return replace(self.best, notes=(*self.notes, *self.best.notes))

    def _settled(self, outcome: Outcome) -> bool:
        return outcome.proof in PROVED or self.limits.ruled_out(outcome)

    def checked(self, solve: Solve, limits: Limits) -> Outcome:
        """Ask a method, and check its claim. Raises RefutedError, and what the method raises."""
        return upheld(self.instance, solve(self.instance, limits), limits)

    def _ask(self, name: str, solve: Solve, limits: Limits) -> None:
        known = None if self.best is None else self.best.plan
        try:
            found = self.checked(solve, limits if known is None else replace(limits, start=known))
        except ValueError as error:
            self.notes.append(f"{name}: {error}")
            self.refusing.add(name)
            return
        if self.notes:
            self.notes.append(f"{name} was asked instead")
        self.best = (
            found if self.best is None else checked(self.instance, better(self.best, found), limits.deadline)
        )

    def _in_order(self, skipped: str) -> Iterator[tuple[str, Solve, Limits]]:
        """Yield who is asked, in order, and for how long."""
        able = self._able(skipped)
        first = next(able, None)
        main = first if first is not None and first[0].name == MAIN else None
        programme = first if main is None else next(able, None)
        executed, needed = self.instance.goals[0].executed, 0 if main is None else main[1].bytes_needed or 0
        quick = main is not None and _is_quick(self.instance, main[1])
        if main is not None and quick and programme is not None:
            yield MAIN, main[0].load(), self.limits.share(2).within(PATIENCE_S)
        while programme is not None:
            yield programme[0].name, programme[0].load(), self.limits
            if programme[0].name == catalogue.REDUCED and self.best is not None and self.best.plan is not None:
                return
            programme = next(able, None)
        if skipped or self.too_large - {MAIN}:
            yield f"state_dp at {SOME_CUTS} cuts", with_some_cuts, self.limits
            if self.best is not None and self.best.plan is not None:
                return
        if executed and needed > largest_bytes(self.instance):
            return
        if main is not None and MAIN not in self.refusing:
            if executed and self.best is None and self._begins_settled():
                return
            known = self.limits if self.given is None else replace(self.limits, known=self.given)
            yield MAIN, main[0].load(), known

    def _able(self, skipped: str) -> Iterator[tuple[SolverEntry, Support]]:
        """Yield who sees all of the instance, in order; nobody is looked at before it is his turn."""
        for entry, support, proves in _looked_at(self.instance, skipped):
            if support.takes and proves:
                yield entry, support
            elif support.too_large:
                self.notes.append(f"{entry.name}: {support.reason}")
                self.too_large.add(entry.name)

    def _in_turn(self, skipped: str) -> Iterator[tuple[str, Solve, Limits]]:
        """Yield who is asked, and for an executed time that nobody answered for who always has a plan."""
        yield from self._in_order(skipped)
        training = self.instance.training
        unseen = training.chunks > 1 or training.schedule.in_halves
        if self.best is None and (self.instance.goals[0].executed or unseen):
            yield self._of_executed_time()

    def _of_executed_time(self) -> tuple[str, Solve, Limits]:
        """Return who is asked for what no programme sees: every plan priced, or of executed times the formula.

        Raises TooLargeError with the reasons where groups hold several stages, of which no formula knows.
        """
        for entry in catalogue.SOLVERS:
            if entry.name in CHECKS_ONLY and entry.accepts(self.instance).proves:
                return entry.name, entry.load(), self.limits
        if self.instance.training.chunks > 1:
            unable = {*CHECKS_ONLY, *self.refusing}
            able = (entry for entry in catalogue.SOLVERS if entry.chunks and entry.name not in unable)
            raise TooLargeError(
                "; ".join(f"{entry.name}: {entry.accepts(self.instance).reason}" for entry in able)
            )
        if not self.instance.goals[0].executed:
            catalogue.find_any(MAIN).accepts(self.instance).refuse()
        return by_formula.NAME, _by_formula, self.limits

    def _begins_settled(self) -> bool:
        """Begin with the best plan by the formula, and a programme's bound; tell whether that settles it."""
        propose = self.limits.start is None
        with contextlib.suppress(ValueError):
            begun = self.checked(partial(_by_formula, propose=propose), self.limits.share(BEGINNING))
            self.best, self.given = begun, by_formula.bound_of(self.instance, begun)
            return self._settled(begun)
        return False


# How many places are left, at most.
SOME_CUTS = 192


def with_some_cuts(instance: Instance, limits: Limits) -> Outcome:
    """Return the best plan that is cut at some places only, of an instance that no exact method can take.

    It is a plan of the whole instance; what it proves is only what work alone says. Raises ValueError as state_dp.
    """
    from pipecut.solvers.dynamic.states.state_dp import solve

    return solve(instance, limits, space=some_cuts(instance, SOME_CUTS))


def some_cuts(instance: Instance, number: int) -> CutSpace:
    """Return a space of at most so many places between its ends: of every equal part of the work the cheapest."""
    work = [f + b for f, b in zip(instance.forward_ns[0], instance.backward_ns[0], strict=True)]
    done = list(itertools.accumulate(work, initial=0))
    (first, *places, last), sent = CutSpace.of(instance).places, crossing_bytes(instance)
    parts = itertools.groupby(places, key=lambda cut: done[cut] * number // (done[-1] + 1))
    return CutSpace((first, *(min(part, key=lambda cut: sent[cut]) for _, part in parts), last))


# From how many places to cut fewer of them make a proof much easier.
MANY_CUTS = 64


def advice(instance: Instance, outcome: Outcome, limits: Limits) -> tuple[str, ...]:
    """Return what may prove the first goal that is open, the most promising first; nothing if there is nothing."""
    return tuple(f"to try: {one}" for one in _ways(instance, outcome, limits))


def _ways(instance: Instance, outcome: Outcome, limits: Limits) -> Iterator[str]:
    if limits.time_limit_s is not None and limits.deadline.over():
        yield f"more time than {limits.time_limit_s:g} s (--time-limit)"
    cuts = len(CutSpace.of(instance).places) - 2
    if cuts > MANY_CUTS:
        yield f"fewer than {cuts} places to cut: merge layers, or close some with constraints.no_cut"
    if outcome.further and outcome.of_first_goal().bound == outcome.objective:
        yield f"the goal {instance.goals[0]} alone, which is proved"
