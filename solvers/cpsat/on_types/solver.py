"""The declarative engine on the reduced problem: CP-SAT over types of stages, one model for a number of stages.

*Lower tables, prove, settle what the proof used, ask again.* Counts of types (``solvers.cpsat.on_types.counts``)
say what plans with so many stages take at least. Where that is below the best plan the whole model
(``solvers.cpsat.on_types.model``) is asked for the best one with so many. The stages of its answer are settled; if
that changes one, it is asked again. Else the answer is a plan, and the evaluator prices it to the same value.

Tables are those of ``reduced_dp``, the engine is another one: no suffix of a plan, no interval of slowest stages.
So it sees what no programme over suffixes does: layers that are to be apart or in a certain stage, numbers of
stages, limits on other goals.
"""

from __future__ import annotations

import contextlib

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.limits import StoppedError
from pipecut.formulation.outcome import Limits, Outcome, begin
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance, longest_run_ns
from pipecut.solvers.cpsat.on_types.search import StepSearch, TypeSearch
from pipecut.solvers.cpsat.on_types.support import NAME, accepts, bare
from pipecut.solvers.cpsat.on_types.types import TypeSpace
from pipecut.solvers.reduce.line import SeatLine, has_a_first_stage
from pipecut.solvers.reduce.stages import ReducedStages
from pipecut.solvers.reduce.word import Word
from pipecut.solvers.search.incumbent import Incumbent
from pipecut.solvers.search.stoppable import stoppable


@stoppable(NAME, best=True)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Find the plan with the least first goal and prove it, or the best within the limits with an honest bound.

    Raises ValueError where :func:`accepts` has a reason, and TooLargeError where stages are of too many types.
    """
    limits = begin(limits)
    accepts(instance).refuse()
    known = Incumbent(NAME, instance, limits, most_of(instance) + 1, lower_bound(instance))
    known.begin_where_known()
    known.offer()
    if not has_a_first_stage(instance):
        known.lower = known.upper
        return known.outcome()
    executed = instance.goals[0] is Goal.STEP_TIME
    search = (StepSearch if executed else TypeSearch)(known, space_of(instance, limits))
    with contextlib.suppress(StoppedError):
        search.run()
    return known.outcome(f"{search.asked} models were solved")


def most_of(instance: Instance) -> int:
    """Return a value of the first goal that no plan exceeds."""
    if instance.goals[0] in (Goal.DEVICES, Goal.STAGES):
        return instance.devices
    return longest_run_ns(instance, instance.training.micro_batches)


def space_of(instance: Instance, limits: Limits) -> TypeSpace:
    """Return the types of the stages of an instance. Cost: the tables of ``reduced_dp``."""
    word, executed = Word.of(bare(instance)), instance.goals[0] is Goal.STEP_TIME
    line = SeatLine.of(word.whole, word.space)
    return TypeSpace(ReducedStages.of(word, line, limits.deadline, each=executed), instance)
