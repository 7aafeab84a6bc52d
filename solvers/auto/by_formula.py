"""A plan for an executed time that no exact method sees: the best by the formula, priced as it is executed.

The formula is no bound of what is executed. What work and devices say is one (``formulation.costs.lower_bound``).
Where demands alone keep a programme from the instance, so is what it proves without these, as there are more plans
then; and its best plan is the best of all where it keeps to them. Simple plans are priced beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from formulation.costs.lower_bound import lower_bound
from formulation.limits.size import TooLargeError
from formulation.outcome import Limits, Outcome, Progress, Proof
from formulation.problem.instance import Instance
from formulation.problem.magnitude import longest_run_ns
from formulation.problem.options import Combine, Goal, Schedule
from solvers import catalogue
from solvers.executed.demands import unseen_names, with_seen_demands
from solvers.search.incumbent import Incumbent
from solvers.search.simple import simple_plan

__all__: list[str] = []

NAME = "by_formula"
Ask = Callable[[Instance, Limits], Outcome]
PROGRAMMES = ("step_dp", "period_dp")
PATIENCE_S = 30.0
"""How long a programme may look at the instance without what it does not see: that may prove nothing."""
FORMULAS = {Goal.STEP_TIME: Goal.ITERATION_TIME, Goal.PERIOD: Goal.BOTTLENECK}


def planned_by_formula(instance: Instance, limits: Limits, ask: Ask) -> Outcome:
    """Return the plan with the least executed time of those that the formula and simple rules propose.

    ``ask`` plans for goals by formulas.
    Raises ValueError for goals that are no executed times. Cost: that of a search by the formula.
    """
    goal = instance.goals[0]
    if goal not in FORMULAS:
        raise ValueError(f"{NAME} plans for executed times, the first goal is {goal}")
    limits = limits.begun()
    most = longest_run_ns(instance, instance.training.micro_batches) + 1
    known = Incumbent(NAME, instance, limits, most, lower_bound(instance))
    simple = simple_plan(instance)
    known.offer(None if simple is None else simple[1])
    cost = replace(instance.cost, combine=Combine.MAX)
    notes = [
        f"the best plan by {FORMULAS[goal]}, and simple ones, as executed; no exact method sees this instance"
    ]
    notes += _without_demands(known, limits, ask)
    if known.closed:
        return known.outcome(*notes)
    # No formula is about backward passes in halves; a plan of 1F1B that keeps too much may fit with all in flight.
    schedule = instance.training.schedule
    for order in (Schedule.ONE_F_ONE_B, Schedule.GPIPE) if schedule.in_halves else (schedule,):
        training = replace(instance.training, schedule=order)
        judged = replace(instance, cost=cost, training=training, goals=(FORMULAS[goal],))
        try:
            found = ask(judged, replace(limits, start=None, progress=_nobody, below=None))
        except TooLargeError as error:
            return known.outcome(*notes, str(error))
        known.offer(found.plan)
        if known.plan is not None:
            break
    return known.outcome(*notes)


def _without_demands(known: Incumbent, limits: Limits, ask: Ask) -> Iterator[str]:
    """Learn what a programme proves without the demands that it does not see, and say what that is a bound of."""
    instance = known.instance
    loose = with_seen_demands(instance)
    able = (entry for entry in catalogue.SOLVERS if entry.exact and entry.name in PROGRAMMES)
    if loose == instance or not any(entry.accepts(loose).proves for entry in able):
        return
    found = ask(loose, replace(limits.share(2).within(PATIENCE_S), start=None, progress=_nobody))
    if found.proof is Proof.INFEASIBLE:
        known.lower = known.upper
    elif found.bound is not None:
        known.offer(found.plan)
        known.lower = max(known.lower, min(found.bound, known.upper))
    known.tell()
    unseen = ", ".join(unseen_names(instance))
    yield f"the bound is that of {found.solver}, of plans that need not keep to {unseen}"


def _nobody(_: Progress) -> None:
    """Values of another goal are nobody's progress."""
