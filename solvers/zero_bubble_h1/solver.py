"""The exact search for the time of a step as executed under ZB-H1, of plans of so many stages.

With the number of stages the order of the passes of each is fixed, and suffixes of plans are compared by what the
stages before them see, as in ``solvers.step_time``. First a narrow search for a good plan, then one that leaves
nothing out; where that makes too many suffixes, lower limits are asked for, each of which raises the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pipecut.formulation.costs.amounts import plural
from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.limits import StoppedError, TooLargeError
from pipecut.formulation.outcome import Limits, Outcome, begin
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance, longest_run_ns
from pipecut.formulation.problem.training import Schedule
from pipecut.solvers.dynamic.states.states import StateSpace, state_space
from pipecut.solvers.search.first_plan import first_plan
from pipecut.solvers.search.incumbent import Incumbent
from pipecut.solvers.search.stoppable import STOPPED, stoppable
from pipecut.solvers.search.support import Support, sized
from pipecut.solvers.step_time import solver as whole_passes
from pipecut.solvers.step_time.bounds.ways import Ways, ways_of
from pipecut.solvers.step_time.fronts import StageFronts
from pipecut.solvers.step_time.growing import OutgrownError
from pipecut.solvers.step_time.parts import StageParts, stage_parts
from pipecut.solvers.step_time.plans import plan_of
from pipecut.solvers.step_time.responses import MOST_MICRO_BATCHES, OneForwardOneBackward
from pipecut.solvers.step_time.search import Growth
from pipecut.solvers.zero_bubble_h1.rest import HalfRest, HalfSpans, half_spans

NAME = "halves_dp"
NARROW = (2, 200)
"""Labels of stages, and of suffixes, that the search for a first plan keeps."""
PARTS = 8
"""Where too many suffixes matter, limits at so many parts between bound and plan are asked for."""
FIRST_MADE = 500_000
"""So many suffixes are made for a limit before lower ones are asked for."""


def reason_against(instance: Instance) -> str | None:
    """Return None if the search sees the whole instance, else what it does not see."""
    training, demands = instance.training, instance.demands
    if instance.goals[0] is not Goal.STEP_TIME or not training.schedule.in_halves:
        return f"{NAME} minimises the executed step under {Schedule.ZERO_BUBBLE_H1}"
    if demands.stages_at_least is None or demands.stages_at_least != demands.stages_at_most:
        return f"{NAME} needs the number of stages to be said: constraints.stages, at_least and at_most"
    return whole_passes.unseen_by_passes(instance, NAME, "stages")


@sized
def accepts(instance: Instance) -> Support:
    """Say what the search makes of an instance (``solvers.search.support``). Cost: linear in device groups."""
    reason = reason_against(instance)
    if reason is not None:
        return Support(reason=reason)
    return Support(proves=True, bytes_needed=_bytes_needed(instance))


def _bytes_needed(instance: Instance) -> int:
    """Return what tables of an instance take. Raises TooLargeError where they, or answers, are too large."""
    many = instance.training.micro_batches
    if many > MOST_MICRO_BATCHES:
        raise TooLargeError(
            f"{many} micro-batches, suffixes of plans are compared for at most {MOST_MICRO_BATCHES} of them; lower"
            " training.micro_batches"
        )
    return whole_passes.bytes_needed(instance)


@stoppable(NAME, best=True)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Find the plan with the least executed step and prove it, or the best within the limits with an honest bound.

    Raises ValueError where :func:`accepts` has a reason, TooLargeError for more than MOST_MICRO_BATCHES and as
    ``solvers.step_time.solver.solve`` does.
    """
    reason = reason_against(instance)
    if reason is not None:
        raise ValueError(reason)
    _bytes_needed(instance)
    limits = begin(limits)
    most = longest_run_ns(instance, instance.training.micro_batches) + 1
    known = Incumbent(NAME, instance, limits, most, lower_bound(instance))
    known.tell()
    tables = all_tables(instance, limits.deadline)
    known.offer()
    if known.plan is None and limits.below is None:
        known.offer(first_plan(tables))
    try:
        parts, states = stage_parts(tables, CutSpace.of(instance)), state_space(tables)
        stages = instance.demands.stages_at_most or 1
        spans = half_spans(tables, parts.passes, parts.space, stages)
        search = _Search(known, parts, spans, ways_of(tables, states), states)
        search.run()
    except StoppedError:
        return known.outcome(STOPPED)
    except OutgrownError as error:
        return known.outcome(str(error))
    return known.outcome(f"{search.made} suffixes of plans of {stages} {plural(stages, 'stage')} were looked at")


@dataclass(slots=True)
class _Search:
    """Searches for one limit after another; ``made`` counts the suffixes of all of them."""

    known: Incumbent
    parts: StageParts
    spans: HalfSpans
    ways: Ways
    space: StateSpace
    made: int = 0
    fronts: dict[int, StageFronts] = field(default_factory=dict)

    def run(self) -> None:
        """Search until the bound meets the plan. Raises StoppedError after the deadline."""
        known, before = self.known, self.known.upper + 1
        while known.upper < before:
            before = known.upper
            self._ask(known.upper - 1, NARROW, 0)
        part, allowed = PARTS, FIRST_MADE
        while known.lower < known.upper:
            most = known.upper - 1 if part == PARTS else known.lower + (known.upper - known.lower) * part // PARTS
            if self._ask(most, (0, 0), allowed):
                part = PARTS
            elif part > 1:
                part //= 2
            else:
                part, allowed = PARTS, 4 * allowed

    def _ask(self, most_ns: int, width: tuple[int, int], allowed: int) -> bool:
        """Look for plans that take at most so long; tell whether nothing was left out and the bound was raised."""
        known, deadline = self.known, self.parts.tables.deadline
        if most_ns < known.lower:
            return False
        known.asked += 1
        rest = HalfRest(self.spans, self.ways, most_ns, deadline)
        self._raise(min(rest.best, most_ns + 1))
        stages, training = self.spans.stages, known.instance.training
        answers, fronts = OneForwardOneBackward(training, stages), self._stages(most_ns, width[0])
        growth = Growth(rest, fronts, answers, None, width[1], allowed, stages)
        for found in growth.run():
            known.take(plan_of(found, growth.slots, fronts, self.ways, self.space), int(found.least[0]))
        self.made += growth.made
        whole = growth.done and not any(width)
        if whole:
            self._raise(min(known.upper, most_ns + 1))
        return whole

    def _stages(self, most_ns: int, width: int) -> StageFronts:
        """Return the stages for a limit; those of a looser one go on being used: all that is tighter is there."""
        if width not in self.fronts or self.fronts[width].most_ns < most_ns:
            self.fronts[width] = StageFronts(self.parts, most_ns, width)
        self.fronts[width].most_ns = most_ns
        return self.fronts[width]

    def _raise(self, bound: int) -> None:
        if bound > self.known.lower:
            self.known.lower = min(bound, self.known.upper)
            self.known.tell()
