"""A plan for an executed time that no exact method sees: the best by the formula, priced as it is executed.

The formula is no bound of what is executed. What work and devices say is one (``formulation.costs.bounds``).
Where demands alone keep a programme from the instance, so is what it proves without these, as there are more plans
then; and its best plan is the best of all where it keeps to them. Simple plans are priced beside it. The claim
says on whose bound it rests (``Outcome.bound_by``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import ProvedBound, TooLargeError
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Proof
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance, longest_run_ns
from pipecut.formulation.problem.options import Combine
from pipecut.formulation.problem.training import Schedule
from pipecut.solvers import catalogue
from pipecut.solvers.crosscheck import contradiction
from pipecut.solvers.ingredients import PROPOSES, methods_of
from pipecut.solvers.search.first_plan import simple_plan
from pipecut.solvers.search.incumbent import Incumbent
from pipecut.solvers.step_time.demands import unseen_names, with_seen_demands

NAME = PROPOSES
Ask = Callable[[Instance, Limits], Outcome]
PROGRAMMES = ("step_dp",)
# How long a programme may look at the instance without what it does not see: that may prove nothing.
PATIENCE_S = 30.0
FORMULAS = {Goal.STEP_TIME: Goal.ITERATION_TIME, Goal.PERIOD: Goal.BOTTLENECK}


def planned_by_formula(instance: Instance, limits: Limits, ask: Ask, *, propose: bool = True) -> Outcome:
    """Return the plan with the least executed time of those that the formula and simple rules propose.

    ``ask`` plans for goals by formulas, and for the instance without what is not seen. The formula is not asked
    unless it is to ``propose`` plans: then the bound is all that is looked for.
    Raises ValueError for goals that are no executed times. Cost: that of a search by the formula.
    """
    goal = instance.goals[0]
    if goal not in FORMULAS:
        raise ValueError(f"{NAME} plans for executed times, the first goal is {goal}")
    limits = limits.begun()
    most = longest_run_ns(instance, instance.training.micro_batches) + 1
    known = Incumbent(NAME, instance, limits, most, lower_bound(instance))
    simple = simple_plan(instance) if propose else None
    known.offer(None if simple is None else simple[1])
    cost = replace(instance.cost, combine=Combine.MAX)
    loose = _without_demands(known, limits, ask)
    if known.closed or not propose:
        return _said(known, loose)
    formula = f"the best as executed of simple plans and the best plan by the formula {FORMULAS[goal]}"
    # No formula is about backward passes in halves; a plan of 1F1B that keeps too much may fit with all in flight.
    schedule = instance.training.schedule
    for order in (Schedule.ONE_F_ONE_B, Schedule.GPIPE) if schedule.in_halves else (schedule,):
        training = replace(instance.training, schedule=order)
        judged = replace(instance, cost=cost, training=training, goals=(FORMULAS[goal],))
        try:
            found = ask(judged, replace(limits, start=None, known=None, progress=lambda _: None, below=None))
        except TooLargeError as error:
            return _said(known, loose, formula, str(error))
        known.offer(found.plan)
        if known.plan is not None:
            break
    return _said(known, loose, formula)


def bound_of(instance: Instance, outcome: Outcome) -> ProvedBound | None:
    """Return the bound of such an outcome, if others proved it without the demands that they do not see."""
    by = outcome.bound_by
    return ProvedBound(outcome.bound, by, _words(instance, by)) if by and outcome.bound is not None else None


def _words(instance: Instance, by: Sequence[str]) -> str:
    return (
        f"the bound is that of {', '.join(by)}, of plans that need not keep to {', '.join(unseen_names(instance))}"
    )


def _said(known: Incumbent, loose: Outcome | None, *notes: str) -> Outcome:
    """Return what is known; the bound is that of the instance without some demands, if this is given.

    If the plan is, too, or if there is none, so is the claim.
    """
    outcome = known.outcome(*notes)
    if loose is None:
        return outcome
    by = methods_of(loose)
    outcome = replace(outcome, bound_by=by, notes=(*outcome.notes, _words(known.instance, by)))
    whole = outcome.proof in (Proof.OPTIMAL, Proof.INFEASIBLE) and outcome.plan == loose.plan
    return replace(outcome, solver=loose.solver, bound_by=loose.bound_by) if whole else outcome


def _without_demands(known: Incumbent, limits: Limits, ask: Ask) -> Outcome | None:
    """Return what a programme proves without the demands that it does not see, and learn it; None: no bound.

    Raises FalseClaimError where a plan refutes it.
    """
    instance = known.instance
    loose = with_seen_demands(instance)
    able = (entry for entry in catalogue.SOLVERS if entry.exact and entry.name in PROGRAMMES)
    if loose == instance or not any(entry.accepts(loose).proves for entry in able):
        return None
    within = replace(limits.share(2).within(PATIENCE_S), start=None, known=None, progress=lambda _: None)
    found = ask(loose, within)
    priced = None if found.plan is None else evaluate(instance, found.plan)
    if found.plan and priced and priced.feasible and (priced.objective or 0) <= known.upper:
        known.take(found.plan, known.upper)
    if problem := contradiction(found, known.outcome()):
        raise FalseClaimError(problem)
    bound = known.upper if found.proof is Proof.INFEASIBLE else min(found.bound or 0, known.upper)
    proved = bound > known.lower
    known.lower = max(known.lower, bound)
    known.tell()
    return found if proved else None
