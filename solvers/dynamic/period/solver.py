"""The exact programme for the executed period of 1F1B without a flush.

The period is asked for in whole nanoseconds (``solvers.search.threshold``); each question is a pass over the
suffixes of all plans (``solvers.dynamic.period.reach``). A plan that is found gets its forms; where no forms
are as fast as tables promise, the tables learn it and the question is asked again. So both answers are exact: a
plan is priced by the evaluator, and "nothing at UB - 1" is the proof. What links do: they carry any number of
transfers at once.
"""

from __future__ import annotations

from formulation.certificates.states import suffixes
from formulation.costs.ceiling import ceiling
from formulation.costs.lower_bound import lower_bound
from formulation.costs.tables import all_tables, possible_kinds
from formulation.limits.deadline import StoppedError
from formulation.outcome import Limits, Outcome, begin
from formulation.problem.cuts import CutSpace
from formulation.problem.instance import Instance
from formulation.problem.options import BoundaryCharge, Goal, Synchronisation
from solvers.dynamic.period.reach import PeriodReach
from solvers.dynamic.period.stage_periods import StagePeriods
from solvers.dynamic.period.walk import plan_of
from solvers.dynamic.states import solver as states
from solvers.dynamic.states.states import StateSpace, state_space
from solvers.dynamic.tables.stage_times import check_size
from solvers.search.first_plan import first_plan
from solvers.search.incumbent import Incumbent
from solvers.search.stoppable import STOPPED, stoppable
from solvers.search.support import Support, sized
from solvers.search.threshold import close, questions

__all__: list[str] = []

NAME = "period_dp"


def reason_against(instance: Instance) -> str | None:
    """Return None if the programme sees the whole instance, else what it does not see."""
    cost = instance.cost
    if instance.goals[0] is not Goal.PERIOD:
        return f"{NAME} minimises the executed period, the first goal is {instance.goals[0]}"
    kinds = possible_kinds(instance)
    tied = any(copy is not None for copy in instance.copies)
    among = tied or any(kind.link is not None for kind in kinds)
    summed = cost.synchronisation is Synchronisation.CHARGED and among
    if summed and cost.boundary_charge is BoundaryCharge.RECEIVER:
        return f"{NAME} needs stages whose synchronised passes are their own, boundary_charge is 'receiver'"
    if summed and instance.training.micro_batches > 1:
        return f"{NAME} sees charged synchronisation after every micro-batch, not after several"
    return None


@sized
def accepts(instance: Instance) -> Support:
    """Say what the programme makes of an instance (``solvers.search.support``). Cost: linear in device groups."""
    reason = reason_against(instance) or states.unseen_by_states(instance)
    if reason is not None:
        return Support(reason=reason)
    suffixes(instance)
    return Support(
        proves=True, bytes_needed=check_size(2 * len(possible_kinds(instance)), CutSpace.of(instance).stops)
    )


@stoppable(NAME, best=True)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Find the plan with the least period and prove it, or the best within the limits with an honest bound.

    Raises ValueError where :func:`accepts` has a reason, and as
    ``solvers.dynamic.tables.stage_times.StageTimes.of`` does.
    """
    reason = reason_against(instance) or states.unseen_by_states(instance)
    if reason is not None:
        raise ValueError(reason)
    limits = begin(limits)
    tables = all_tables(instance, limits.deadline)
    known = Incumbent(NAME, instance, limits, ceiling(tables, Goal.PERIOD) + 1, lower_bound(instance))
    known.offer(first_plan(tables))
    try:
        periods = StagePeriods(tables, CutSpace.of(instance))
        space = state_space(tables)
        close(known, lambda: (known.lower + known.upper - 1) // 2, lambda most: _ask(known, periods, space, most))
    except StoppedError:
        if known.plan is None:
            raise
        return known.outcome(STOPPED)
    return known.outcome(questions(known.asked))


def _ask(known: Incumbent, periods: StagePeriods, space: StateSpace, period_ns: int) -> bool | None:
    """Tell whether a plan keeps to the period, and keep it if so; None if stopped before the answer."""
    while not known.over():
        reach = PeriodReach(space, periods, period_ns)
        if not reach.run():
            return False
        plan = plan_of(reach.stages(), periods, known.upper - 1)
        if plan is not None:
            known.take(plan, period_ns)
            return True
    return None
