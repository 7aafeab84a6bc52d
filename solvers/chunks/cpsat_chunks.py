"""The exact search over chunks: groups that hold several stages each, in Megatron's interleaved order or in a V.

Every layout (``solvers.chunks.case``) is a case of its own; one that is never better than another is left out,
and bounds of all plans of a case rule it out, or say that it comes early. For the time of a step paths of passes
(``solvers.chunks.pass_chains``) are weighed against all plans of a case (``solvers.chunks.weighing``). Plans that
answer are made better by moves (``solvers.chunks.bulk``), and then fronts of plans are grown (:class:`Beam`), with
more room each time; where nothing is left out, it is a proof. What is too large for it, has a choice of groups, or
is about the bottleneck, is asked of CP-SAT (``solvers.chunks.chunk_model``): is there a plan of the case of at
most a threshold? Questions move the lower limit of the case up. Of the bottleneck the model says exactly what a
plan has. Of the time of a step it knows some paths. A plan that is found is priced as it is executed; its critical
path is added, so that the model knows from then on what this plan and others like it take (logic-based Benders
decomposition: Hooker and Ottosson, Mathematical Programming 96, 2003). The search ends when nothing is left below
the best plan, which is a proof, or when too many plans have been priced, which leaves a gap. A question that has
no answer in its share of the time is put off until other layouts had theirs.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.limits import Deadline, StoppedError, in_time
from pipecut.formulation.outcome import Limits, Outcome, begin
from pipecut.formulation.problem.instance import Instance, longest_run_ns
from pipecut.solvers.chunks.accepts_chunks import accepts
from pipecut.solvers.chunks.bulk import ManyPlans, first_plan, improved
from pipecut.solvers.chunks.case import Case, Dealt, case_of, layouts, plan_of
from pipecut.solvers.chunks.chunk_model import Question
from pipecut.solvers.chunks.counting import Counts, counts_of, rooms_of
from pipecut.solvers.chunks.path_sums import FAR, PathSums, sums_of
from pipecut.solvers.chunks.runs import KnownRuns, Numbers
from pipecut.solvers.chunks.weighing import Weighed, weighed
from pipecut.solvers.cpsat.engine import found, make_solver, run
from pipecut.solvers.search.incumbent import Incumbent, questions
from pipecut.solvers.search.stoppable import stoppable

NAME = "cpsat_chunks"
# How many plans of a case are priced as executed before the search for the time of a step gives up.
MOST_PRICED = 1_000
# How often paths and plans of a case answer each other: for a first bound, for plans, and before fronts grow.
FIRST_TURNS, TURNS, MORE_TURNS = 2, 16, 96
UNANSWERED = "CP-SAT did not answer"
# How many fronts of plans have room, one after another.
WIDTHS = (500, 5_000, 50_000, 400_000)
# About so many sums are held at once: fronts times places times paths.
AT_ONCE = 1 << 22
# So many rows are looked at first; what is beaten by them is not looked at again.
FIRST_ROWS = 4


@stoppable(NAME, best=True, chunks=True)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Find the best plan and prove it, or the best within the limits with an honest bound.

    Raises ValueError where :func:`accepts` has a reason, and TooLargeError before it takes too much memory.
    """
    began_s, limits = time.monotonic(), begin(limits)
    accepts(instance).refuse()
    lower = lower_bound(instance)
    highest = longest_run_ns(instance, instance.training.micro_batches) + 1
    known = Incumbent(NAME, instance, limits, highest, lower, began_s=began_s)
    known.offer()
    runs, cases = KnownRuns.of(instance), list[Case]()
    steps = instance.training.micro_batches if instance.goals[0].executed else 1
    with contextlib.suppress(StoppedError):
        for layout in layouts(instance, limits.deadline):
            case = case_of(runs, layout, (known.upper - 1) // steps, limits.deadline)
            case.lower = lower
            if not any(case.no_better_than(one) for one in cases):
                cases = [*(one for one in cases if not one.no_better_than(case)), case]
        parts = [_Part(one, sums_of(one), first_plan(instance, one.layout)) for one in cases]
        return _Search(known, parts).run()
    return known.outcome("stopped early")


@dataclass(slots=True)
class _Part:
    """A case with what was found out about it.

    ``widths`` are the rooms for fronts that were tried, ``unanswered`` the questions that got no answer in time.
    """

    case: Case
    sums: PathSums
    start: Dealt | None
    paths: Weighed | None = None
    counts: Counts | None = None
    widths: int = 0
    unanswered: int = 0

    @property
    def plans(self) -> ManyPlans | None:
        """Its plans on the first groups that there are; None where these run out."""
        return None if self.start is None else ManyPlans(self.case, self.start.choice)


class _Search:
    """All cases, and the one that is looked at: it has the fewest open questions, then the least lower limit."""

    def __init__(self, known: Incumbent, parts: list[_Part]) -> None:
        self.known, self.parts, self.stuck = known, parts, ""
        self.deadline = known.limits.deadline

    def run(self) -> Outcome:
        """Search until all cases are closed, the limits are used up, or one cannot be closed."""
        known = self.known
        with contextlib.suppress(StoppedError):
            for turns in (FIRST_TURNS, TURNS):
                for part in sorted(self.parts, key=lambda one: one.case.lower):
                    self._begin(part, turns)
                self._settle()
            while known.lower < known.upper and not known.over() and not self.stuck:
                part, *others = self._in_turn()
                if not self._grow(part):
                    answered = self._ask(part, self._choose(part.case), known.limits.share(1 + len(others)))
                    part.unanswered += not answered
                    known.asked += 1
                    if not answered and not others:
                        self.stuck = UNANSWERED
                self._settle()
        self._settle()
        open_ones = any(part.unanswered and part.case.lower < known.upper for part in self.parts)
        why = self.stuck or (UNANSWERED if open_ones else "")
        return known.outcome(questions(known.asked), *filter(None, [why]))

    def _in_turn(self) -> list[_Part]:
        """Return the cases that are next: of those that may be better the ones with the fewest open questions.

        A question gets an equal share of the time with theirs, so that of one case does not take it all.
        """
        able = [part for part in self.parts if part.case.lower < self.known.upper]
        fewest = min(part.unanswered for part in able)
        return sorted((part for part in able if part.unanswered == fewest), key=lambda one: one.case.lower)

    def _settle(self) -> None:
        """Note what no plan of any case is below, and tell it."""
        known = self.known
        lower = min((part.case.lower for part in self.parts), default=known.upper)
        known.lower = max(known.lower, min(lower, known.upper))
        known.tell()

    def _begin(self, part: _Part, turns: int) -> None:
        """Bound a case without a search, and look for good plans of it where the bound says that there may be."""
        case, upper = part.case, self.known.upper
        if case.lower >= upper:
            return
        begun = [] if part.start is None else [part.start.places]
        if case.steps:
            part.paths = weighed(case, part.sums, begun, upper, turns, self.deadline)
            case.lower = max(case.lower, part.paths.bound)
            begun += part.paths.plans
        elif part.counts is None:
            case.lower = max(case.lower, self._counts(part).bound(upper))
        if case.lower < upper and turns > FIRST_TURNS:
            self._better(part, begun)

    def _better(self, part: _Part, begun: list[tuple[int, ...]]) -> None:
        """Take a plan that moves make of some others, if it is better than the best so far."""
        plans = part.plans
        if plans is None or not begun:
            return
        other, value = improved(plans, begun, self.deadline)
        if other is not None and value < self.known.upper:
            self.known.take(plan_of(part.case.instance, part.case.layout, other), value)

    def _grow(self, part: _Part) -> bool:
        """Grow fronts of plans of a case, with more room than before; tell whether that can be done."""
        plans, known = part.plans, self.known
        if plans is None or not part.case.steps or not part.sums.certain or part.widths == len(WIDTHS):
            return False
        if not part.widths:
            self._begin(part, MORE_TURNS)
        paths = part.paths
        if paths is None or part.case.lower >= known.upper:
            return True
        beam = Beam(paths.sums, plans, paths.rows, paths.units, paths.own, self.deadline)
        looked = beam.look(known.upper, WIDTHS[part.widths])
        part.widths += 1
        if looked.places is not None:
            dealt = Dealt(looked.places, plans.choice)
            known.take(plan_of(part.case.instance, part.case.layout, dealt), looked.value)
            self._better(part, [looked.places])
        part.case.lower = max(part.case.lower, looked.bound)
        return True

    def _counts(self, part: _Part) -> Counts:
        if part.counts is None:
            part.counts = counts_of(part.case, self.known.upper, self.deadline)
            part.case.lower = max(part.case.lower, part.counts.bound(self.known.upper))
        return part.counts

    def _choose(self, case: Case) -> int:
        """Return the next threshold for a case, from its lower limit to below the best plan."""
        upper = self.known.upper - 1
        return upper if not case.steps and self.known.asked % 3 == 0 else (case.lower + upper) // 2

    def _ask(self, part: _Part, threshold: int, limits: Limits) -> bool:
        """Ask by numbers of atoms first; where a plan of these is none, by runs. Tell if there was an answer."""
        case = part.case
        for coarse in (True, False):
            question = Question(
                case=case, threshold_ns=threshold, counts=self._counts(part), deadline=self.deadline, coarse=coarse
            )
            question.build()
            solver = make_solver(limits)
            status = run(solver, question.model, limits.deadline.over)
            if status == cp_model.INFEASIBLE:
                case.lower = max(case.lower, threshold + 1)
                break
            if not found(status):
                return False
            dealt = question.read(solver)
            if case.steps:
                if self._executed(part, dealt):
                    break
            elif not coarse or ManyPlans(case, dealt.choice).values(np.array([dealt.places]))[0] <= threshold:
                self.known.take(plan_of(case.instance, case.layout, dealt), threshold)
                self._moved(part, dealt)
                break
        return True

    def _executed(self, part: _Part, dealt: Dealt) -> bool:
        """Price a plan as it is executed, and tell whether its critical path says something new of others."""
        case = part.case
        case.seen.append(dealt)
        if len(case.seen) >= MOST_PRICED:
            self.stuck = f"{MOST_PRICED} plans of one layout were priced, and others may be better"
        runs = case.stages_of(dealt)
        if runs is None:
            return False
        self._moved(part, dealt)
        path = case.critical_path(dealt, runs)
        if path in case.paths:
            return False
        case.paths.append(path)
        return True

    def _moved(self, part: _Part, dealt: Dealt) -> None:
        """Take what moves make of a plan on its own groups."""
        self._better(_Part(part.case, part.sums, dealt), [dealt.places])


@dataclass(frozen=True, slots=True)
class Looked:
    """No plan is below ``bound``, and ``places`` are the best one that was met, of ``value``; None if none."""

    bound: int
    value: int
    places: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class _Fronts:
    """Places where stages begin, so far, the sums of rows, and what plans of each take at least."""

    places: Numbers
    sums: Numbers
    least: Numbers

    def widened(self) -> _Fronts:
        """Return no fronts with one place more."""
        return _Fronts(np.zeros((0, self.places.shape[1] + 1), dtype=np.int64), self.sums[:0], self.least[:0])

    def of(self, rows: Numbers | NDArray[np.bool_]) -> _Fronts:
        return _Fronts(self.places[rows], self.sums[rows], self.least[rows])

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True, slots=True, eq=False)
class Beam:
    """The fronts of a layout whose choices of groups are all the same to it: plans stage by stage, from the front.

    A *front* is the first stages of a plan. What each path that is known, or mixture of paths, takes in it and at
    least behind it (``solvers.chunks.path_sums``) says what its plans take at least, and so does whether ranks can
    hold what is left (``solvers.chunks.counting``). Fronts that may still be better are grown by every next stage;
    of too many the most promising are kept, and the least that the others promised is a bound for their plans.
    Whole plans are priced. So with room for all fronts it is a proof, and with less a beam search that has a
    bound.

    ``rows``, ``units`` and ``own`` are those of ``solvers.chunks.weighing.Weighed``.
    """

    sums: PathSums
    plans: ManyPlans
    rows: Numbers
    units: Numbers
    own: tuple[tuple[int, tuple[int, ...]], ...]
    deadline: Deadline

    def look(self, upper: int, width: int) -> Looked:
        """Look for plans below ``upper``, keeping at most so many fronts of each length.

        Raises StoppedError after the deadline. Cost: width times places times rows, for every stage.
        """
        stages, dropped = self.sums.stages, upper
        sums = self.sums.within(self.rows, self.units, self.sums.behind(self.rows), upper)
        behind, rooms = sums.behind(self.rows), rooms_of(sums, self.rows, self.own, upper)
        start = np.zeros((1, 1), dtype=np.int64)
        fronts = _Fronts(start, np.zeros((1, len(self.rows)), dtype=np.int64), np.zeros(1, dtype=np.int64))
        for at in in_time(range(stages), self.deadline):
            own = sums.stage(self.rows, at)
            fronts, above = self._grown(fronts, own, behind[:, at + 1], upper, width)
            fronts = fronts.of(rooms.enough(at + 1, fronts.places[:, -1], fronts.sums))
            dropped = min(dropped, above)
            if not len(fronts):
                return Looked(dropped, upper, None)
        values = self.plans.values(fronts.places)
        best = int(values.argmin())
        if values[best] >= upper:
            return Looked(dropped, upper, None)
        found = int(values[best])
        return Looked(min(dropped, found), found, tuple(fronts.places[best].tolist()))

    def _grown(
        self, fronts: _Fronts, own: Numbers, behind: Numbers, upper: int, width: int
    ) -> tuple[_Fronts, int]:
        """Return fronts with one more stage, and what the plans of those that are left out take at least."""
        kept, dropped = [fronts.of(np.zeros(0, dtype=np.int64)).widened()], upper
        last = fronts.places[:, -1]
        for place in in_time(np.unique(last).tolist(), self.deadline):
            stops = np.flatnonzero((own[0, place] < FAR) & (behind[0] < FAR))
            mine, some = np.flatnonzero(last == place), max(1, AT_ONCE // max(1, len(stops) * len(self.rows)))
            for at in in_time(range(0, len(mine) if len(stops) else 0, some), self.deadline):
                part = fronts.of(mine[at : at + some])
                kept.append(self._put(part, stops, own[:, place, stops].T, behind[:, stops].T, upper))
                if sum(map(len, kept)) > 2 * width:
                    one, above = _best(kept, width)
                    kept, dropped = [one], min(dropped, above)
        one, above = _best(kept, width)
        return one, min(dropped, above)

    def _put(self, part: _Fronts, stops: Numbers, own: Numbers, behind: Numbers, upper: int) -> _Fronts:
        """Return fronts that end at one place with a stage up to each stop behind them, where they count.

        The first rows, which are the best mixtures, are looked at before the others.
        """
        few = slice(0, FIRST_ROWS)
        least = self._least(part.sums[:, None, few] + (own + behind)[:, few], few)
        row, column = np.nonzero(least < upper)
        summed = part.sums[row] + own[column]
        least = np.maximum(self._least(summed + behind[column], slice(None)), part.least[row])
        good = least < upper
        row, column = row[good], column[good]
        return _Fronts(np.column_stack([part.places[row], stops[column]]), summed[good], least[good])

    def _least(self, sums: Numbers, rows: slice) -> Numbers:
        """Return what plans take at least by some rows, along the last axis, rounded up."""
        return np.max(-(-sums // self.units[rows]), axis=-1)


def _best(parts: list[_Fronts], width: int) -> tuple[_Fronts, int]:
    """Return the most promising fronts of some parts, and what the others promise; nothing above everything."""
    rows = (np.concatenate([getattr(one, name) for one in parts]) for name in ("places", "sums", "least"))
    whole = _Fronts(*rows)
    if len(whole) <= width:
        return whole, FAR
    order = np.argpartition(whole.least, width)
    return whole.of(np.sort(order[:width])), int(whole.least[order[width:]].min())
