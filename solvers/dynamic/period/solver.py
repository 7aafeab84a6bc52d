"""The exact programme for the executed period of 1F1B without a flush.

The period is asked for in whole nanoseconds (``solvers.search.incumbent``); each question is a pass over the
suffixes of all plans (``solvers.dynamic.period.reach``; where weights are synchronised once in several
micro-batches, or receivers pay, ``solvers.dynamic.period.answers``). A plan that is found gets its forms; where
no forms are as fast as tables promise, the tables learn it and the question is asked again. So both answers are
exact: a plan is priced by the evaluator, and "nothing at UB - 1" is the proof. What links do: they carry any
number of transfers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pipecut.formulation.costs.bounds import ceiling, lower_bound
from pipecut.formulation.costs.tables import all_tables, possible_kinds
from pipecut.formulation.limits import StoppedError, TooLargeError
from pipecut.formulation.outcome import Limits, Outcome, begin
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import Synchronisation
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.suffixes import suffixes
from pipecut.solvers.dynamic.period.answers import AnswerReach
from pipecut.solvers.dynamic.period.reach import PeriodReach
from pipecut.solvers.dynamic.period.stage_periods import StagePeriods
from pipecut.solvers.dynamic.period.walk import plan_of
from pipecut.solvers.dynamic.states.states import StateSpace, state_space
from pipecut.solvers.dynamic.tables.demanded import told_apart
from pipecut.solvers.reference.algorithm_1 import check_size
from pipecut.solvers.search.first_plan import first_plan
from pipecut.solvers.search.incumbent import Incumbent, close, questions, search_in_parts
from pipecut.solvers.search.stoppable import STOPPED, stoppable
from pipecut.solvers.search.support import Support, sized
from pipecut.solvers.step_time.demands import demanded_spaces, unseen_by_executed

NAME = "period_dp"


MOST_MICRO_BATCHES = 64
"""Answers of a suffix are as many numbers as the square of these."""
NEARLY = 256
"""What is open is halved down to one part in so many of the best plan; then a better one is asked for."""


def reason_against(instance: Instance) -> str | None:
    """Return None if the programme sees the whole instance, else what it does not see."""
    if instance.goals[0] is not Goal.PERIOD:
        return f"{NAME} minimises the executed period, the first goal is {instance.goals[0]}"
    return unseen_by_executed(instance)


def _check_micro_batches(instance: Instance) -> None:
    """Raise TooLargeError where a synchronisation of too many micro-batches is charged."""
    many = instance.training.micro_batches
    if instance.cost.synchronisation is Synchronisation.CHARGED and many > MOST_MICRO_BATCHES:
        raise TooLargeError(
            f"gradients are summed after {many} micro-batches, suffixes of plans are compared for at most"
            f" {MOST_MICRO_BATCHES} of them; lower training.micro_batches, or set cost.synchronisation: overlapped"
        )


@sized
def accepts(instance: Instance) -> Support:
    """Say what the programme makes of an instance (``solvers.search.support``). Cost: linear in device groups."""
    reason = reason_against(instance)
    if reason is not None:
        return Support(reason=reason)
    _check_micro_batches(instance)
    suffixes(instance, demanded=True)
    return Support(
        proves=True, bytes_needed=check_size(2 * len(possible_kinds(instance)), CutSpace.of(instance).stops)
    )


@stoppable(NAME, best=True)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Find the plan with the least period and prove it, or the best within the limits with an honest bound.

    Raises ValueError where :func:`accepts` has a reason, and as
    ``solvers.reference.algorithm_1.StageTimes.of`` does.
    """
    reason = reason_against(instance)
    if reason is not None:
        raise ValueError(reason)
    _check_micro_batches(instance)
    limits = begin(limits)
    tables = told_apart(all_tables(instance, limits.deadline))
    known = Incumbent(NAME, instance, limits, ceiling(tables, Goal.PERIOD) + 1, lower_bound(instance))
    known.offer(first_plan(tables))
    try:
        periods, spaces = (
            StagePeriods(tables, CutSpace.of(instance)),
            demanded_spaces(state_space(tables, demanded=True), tables),
        )
        search_in_parts(known, [partial(_search, periods, space) for space in spaces])
    except StoppedError:
        return known.outcome(STOPPED)
    except TooLargeError as error:
        if known.plan is None:
            raise
        return known.outcome(questions(known.asked), str(error))
    return known.outcome(questions(known.asked))


def _search(periods: StagePeriods, space: StateSpace, known: Incumbent) -> None:
    PeriodSearch(known, periods, space).run()


@dataclass(slots=True)
class PeriodSearch:
    """One search: what is known, the stages, and the devices that suffixes of plans may take."""

    known: Incumbent
    periods: StagePeriods
    space: StateSpace

    def run(self) -> None:
        """Ask until both limits meet. Raises StoppedError, and TooLargeError as AnswerReach does."""
        known = self.known
        if not self.periods.in_rounds:
            close(known, lambda: (known.lower + known.upper - 1) // 2, lambda most: self._ask(PeriodReach, most))
            return
        self._raise()
        close(known, self._halfway, lambda most: self._ask(AnswerReach, most))

    def _raise(self) -> None:
        """Raise the lower limit to the least period in which synchronisation is only waited for by its stage."""
        known, high = self.known, self.known.upper
        while known.lower < high and not known.over():
            period_ns = (known.lower + high - 1) // 2
            known.asked += 1
            plan = self._plan(PeriodReach, period_ns)
            if plan is not None:
                known.take(plan)
                high = min(period_ns, known.upper)
            elif not known.over():
                known.lower = period_ns + 1
                known.tell()

    def _halfway(self) -> int:
        known = self.known
        near = NEARLY * (known.upper - known.lower) <= known.upper
        return known.upper - 1 if near else (known.lower + known.upper - 1) // 2

    def _ask(self, reach: type[PeriodReach | AnswerReach], period_ns: int) -> bool | None:
        """Tell whether a plan keeps to the period, and keep it if so; None if stopped before the answer."""
        plan = self._plan(reach, period_ns)
        if plan is not None:
            self.known.take(plan, period_ns)
            return True
        return None if self.known.over() else False

    def _plan(self, of: type[PeriodReach | AnswerReach], period_ns: int) -> Plan | None:
        """Return a plan that keeps to the period as far as is looked at; None if none does, or time is over."""
        while not self.known.over():
            reach = of(self.space, self.periods, period_ns)
            if not reach.run():
                return None
            plan = plan_of(reach.stages(), self.periods, self.known.upper - 1)
            if plan is not None:
                return plan
        return None
