"""The exact search over chunks: groups that hold several stages each, in Megatron's interleaved order.

Every layout (``solvers.chunks.layouts``) is a case of its own. A question to CP-SAT (``solvers.chunks.model``)
asks of one case for a plan of at most a threshold; questions move the lower limit of the case up. Of the
bottleneck the model says exactly what a plan has. Of the time of a step it knows some paths of passes
(``solvers.chunks.paths``). A plan that is found is priced as it is executed, and made better by moves; its
critical path is added, so that the model knows from then on what this plan and others like it take (logic-based
Benders decomposition: Hooker and Ottosson, Mathematical Programming 96, 2003). The search ends when nothing is
left below the best plan, which is a proof, or when too many plans have been priced, which leaves a gap.
"""

from __future__ import annotations

import contextlib
import time

from ortools.sat.python import cp_model

from formulation.limits.deadline import StoppedError
from formulation.outcome import Limits, Outcome, begin
from formulation.problem.instance import Instance
from formulation.problem.magnitude import longest_run_ns
from solvers.chunks.case import Case, Dealt, case_of, plan_of
from solvers.chunks.counting import Counts, counts_of
from solvers.chunks.layouts import layouts
from solvers.chunks.model import Question
from solvers.chunks.moves import first_plan, improved
from solvers.chunks.support import accepts
from solvers.cpsat.base.engine import found, make_solver, run
from solvers.search.incumbent import Incumbent
from solvers.search.stoppable import stoppable, tell_first
from solvers.search.threshold import questions

__all__: list[str] = []

NAME = "cpsat_chunks"
MOST_PRICED = 1_000
"""How many plans of a case are priced as executed before the search for the time of a step gives up."""


@stoppable(NAME, best=True, chunks=True)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Find the best plan and prove it, or the best within the limits with an honest bound.

    Raises ValueError where :func:`accepts` has a reason, and TooLargeError before it takes too much memory.
    """
    began_s, limits = time.monotonic(), begin(limits)
    accepts(instance).refuse()
    lower = tell_first(instance, limits)
    many = instance.training.micro_batches
    highest = longest_run_ns(instance, many) + 1
    known = Incumbent(NAME, instance, limits, highest, lower, began_s=began_s)
    known.offer()
    cases: list[Case] = []
    counts: list[Counts] = []
    with contextlib.suppress(StoppedError):
        for layout in layouts(instance, limits.deadline):
            first = first_plan(instance, layout)
            known.offer(None if first is None else plan_of(instance, layout, first))
            case = case_of(instance, layout, _most_passes_ns(known), limits.deadline)
            cases.append(case)
            if first is not None:
                _better(known, case, first)
            counts.append(counts_of(case, known.upper, limits.deadline))
            case.lower = max(lower, counts[-1].bound(known.upper))
        return _Search(known, cases, counts).run()
    return known.outcome("stopped early")


def _most_passes_ns(known: Incumbent) -> int:
    """Return how long the passes of a stage may take in a plan that is better than the best one so far."""
    steps = known.instance.training.micro_batches if known.instance.goals[0].executed else 1
    return (known.upper - 1) // steps


def _better(known: Incumbent, case: Case, dealt: Dealt) -> None:
    """Take a plan that moves make of another one, if it is better than the best so far."""
    value = case.value(dealt, known.upper)
    other, better = improved(case, dealt, known.upper if value is None else value, known.limits.deadline)
    if better < known.upper:
        known.take(plan_of(case.instance, case.layout, other), better)


class _Search:
    """All cases, and the one that is asked about: it has the least lower limit."""

    def __init__(self, known: Incumbent, cases: list[Case], counts: list[Counts]) -> None:
        self.known, self.cases = known, cases
        self.counts = {id(case): one for case, one in zip(cases, counts, strict=True)}
        self.case: Case | None = None
        self.stuck = ""

    def run(self) -> Outcome:
        """Search until all cases are closed, the limits are used up, or one cannot be closed."""
        known = self.known
        self._settle()
        with contextlib.suppress(StoppedError):
            while known.lower < known.upper and not known.over() and not self.stuck:
                self.case = min(self.cases, key=lambda one: one.lower)
                self._ask(self.case, self._choose(self.case))
                known.asked += 1
                self._settle()
                known.tell()
        return known.outcome(questions(known.asked), *filter(None, [self.stuck]))

    def _settle(self) -> None:
        """Note what no plan of any case is below."""
        known = self.known
        known.lower = max(known.lower, min((case.lower for case in self.cases), default=known.upper))

    def _choose(self, case: Case) -> int:
        """Return the next threshold for a case, from its lower limit to below the best plan."""
        upper = self.known.upper - 1
        return upper if not case.steps and self.known.asked % 3 == 0 else (case.lower + upper) // 2

    def _ask(self, case: Case, threshold: int) -> None:
        """Ask by numbers of atoms first; where a plan of these is none, ask by runs."""
        for coarse in (True, False):
            question = Question(
                case=case,
                threshold_ns=threshold,
                counts=self.counts[id(case)],
                deadline=self.known.limits.deadline,
                coarse=coarse,
            )
            question.build()
            solver = make_solver(self.known.limits)
            status = run(solver, question.model, self.known.limits.deadline.over)
            if status == cp_model.INFEASIBLE:
                case.lower = threshold + 1
                return
            if not found(status):
                self.stuck = "CP-SAT did not answer"
                return
            dealt = question.read(solver)
            if case.steps:
                if self._executed(case, dealt):
                    return
            elif not coarse or case.promised(dealt) <= threshold:
                self.known.take(plan_of(case.instance, case.layout, dealt), threshold)
                _better(self.known, case, dealt)
                return

    def _executed(self, case: Case, dealt: Dealt) -> bool:
        """Price a plan as it is executed, and tell whether its critical path says something new of others."""
        case.seen.append(dealt)
        if len(case.seen) >= MOST_PRICED:
            self.stuck = f"{MOST_PRICED} plans of one layout were priced, and others may be better"
        runs = case.stages_of(dealt)
        if runs is None:
            return False
        _better(self.known, case, dealt)
        path = case.critical_path(dealt, runs)
        if path in case.paths:
            return False
        case.paths.append(path)
        return True
