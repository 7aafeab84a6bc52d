"""The exact search over suffixes of plans: steps and periods as executed, steps and bottlenecks by the formula.

As executed it knows 1F1B, GPipe, one micro-batch at a time, and of plans of so many stages ZB-H1. By the formula
(``bounds.columns.Formula``) a stage has one pass, and suffixes are compared by their latency and their slowest
stage or boundary. Of 1F1B without a flush it is asked whether plans keep to a period (``bounds.columns.Period``),
and suffixes are compared by how late they come back in each pair of passes of a round.

Whether plans take at most so long is asked for one limit after another, from below (``solvers.step_time.asking``):
plans in boxes are bounded by paths that are weighed against them (``solvers.step_time.bounds``), and suffixes of
what is left are searched so that nothing is left out (``solvers.step_time.suffix_search``). Either raises the
bound, and where it meets the best plan that was found on the way, that is the proof. What links do, as executed:
they carry any number of transfers at once.

Where warm-ups are chosen it begins with the best plan with eager ones, and better ones of its stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pipecut.formulation.costs.bounds import ceiling, lower_bound
from pipecut.formulation.costs.memory import MemoryParts, capacity_bytes
from pipecut.formulation.costs.passes import pipeline_passes
from pipecut.formulation.costs.tables import all_tables, possible_kinds
from pipecut.formulation.executed import IN_ROUNDS, step_of_training_ns
from pipecut.formulation.limits import Deadline, StoppedError, TooLargeError, in_time
from pipecut.formulation.outcome import Limits, Outcome, begin
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance, longest_run_ns
from pipecut.formulation.problem.options import BoundaryCharge, Combine, StageTime
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.suffixes import suffixes
from pipecut.solvers.dynamic.states.states import StateSpace, state_space
from pipecut.solvers.dynamic.tables.demanded import told_apart
from pipecut.solvers.reference.algorithm_1 import check_size
from pipecut.solvers.search.first_plan import first_plan
from pipecut.solvers.search.incumbent import Incumbent, search_in_parts
from pipecut.solvers.search.stoppable import STOPPED, stoppable
from pipecut.solvers.search.support import Support, of_whole_stages, sized
from pipecut.solvers.step_time.asking import Search
from pipecut.solvers.step_time.bounds.columns import Formula, Period
from pipecut.solvers.step_time.bounds.pass_sums import least_passes
from pipecut.solvers.step_time.bounds.pass_tables import stage_parts
from pipecut.solvers.step_time.bounds.spans import spans_of
from pipecut.solvers.step_time.bounds.ways import ways_of
from pipecut.solvers.step_time.demands import demanded_spaces, unseen_by_executed
from pipecut.solvers.step_time.growing import OutgrownError
from pipecut.solvers.step_time.responses import MOST_MICRO_BATCHES

NAME = "step_dp"
EAGER = 2
"""Where warm-ups are chosen, the best plan with eager ones is looked for in one part of so many of the time."""


def reason_against(instance: Instance) -> str | None:
    """Return None if the search sees the whole instance, else what it does not see."""
    cost = instance.cost
    if blocks := of_whole_stages(NAME, instance).reason:
        return blocks
    if Formula.of(instance) is not None:
        if cost.combine is not Combine.MAX:
            return f"{NAME} counts the slowest of stages and boundaries, combine is 'sum'"
        if cost.boundary_charge is BoundaryCharge.RECEIVER and cost.stage_time is StageTime.OVERLAP:
            return f"{NAME} knows what a stage takes in all, boundary_charge is 'receiver', stage_time 'overlap'"
        return unseen_by_executed(instance)
    if instance.goals[0] is Goal.PERIOD:
        return unseen_by_executed(instance)
    if instance.goals[0] is not Goal.STEP_TIME:
        return f"{NAME} minimises a step, a period or a slowest stage, the first goal is {instance.goals[0]}"
    if instance.training.schedule not in IN_ROUNDS:
        known = ", ".join(IN_ROUNDS)
        return f"{NAME} knows the schedules {known}, the schedule is {instance.training.schedule}"
    least, most = instance.demands.stages_at_least, instance.demands.stages_at_most
    if instance.training.schedule.in_halves and (least is None or least != most):
        return f"{NAME} needs the number of stages to be said: constraints.stages, at_least and at_most"
    return unseen_by_executed(instance)


@sized
def accepts(instance: Instance) -> Support:
    """Say what the search makes of an instance (``solvers.search.support``). Cost: linear in device groups."""
    reason = reason_against(instance)
    if reason is not None:
        return Support(reason=reason)
    return Support(proves=True, bytes_needed=bytes_needed(instance))


def bytes_needed(instance: Instance) -> int:
    """Return what tables of an instance take. Raises TooLargeError where they, or answers, are too large."""
    many, period = instance.training.micro_batches, Period.of(instance)
    told = instance.goals[0] is Goal.STEP_TIME and instance.training.schedule.in_halves
    if many > MOST_MICRO_BATCHES and (told or (period is not None and period.charged)):
        mended = "lower training.micro_batches" + ("" if told else ", or set cost.synchronisation: overlapped")
        most = f"suffixes of plans are compared for at most {MOST_MICRO_BATCHES} of them"
        raise TooLargeError(f"{many} micro-batches, {most}; {mended}")
    suffixes(instance, demanded=True)
    return check_size(2 * len(possible_kinds(instance)), CutSpace.of(instance).stops)


@stoppable(NAME, best=True)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Find the plan with the least of the first goal and prove it, or the best within the limits with a bound.

    Raises ValueError where :func:`accepts` has a reason, TooLargeError as :func:`bytes_needed` does and
    ``solvers.reference.algorithm_1.StageTimes.of``.
    """
    reason = reason_against(instance)
    if reason is not None:
        raise ValueError(reason)
    bytes_needed(instance)
    limits = begin(limits)
    most = longest_run_ns(instance, instance.training.micro_batches) + 1
    known = Incumbent(NAME, instance, limits, most, lower_bound(instance))
    known.tell()
    try:
        if instance.training.chooses_warm_ups and Formula.of(instance) is None:
            _begin_eagerly(known, limits)
        tables = told_apart(all_tables(instance, limits.deadline))
        known.upper = min(known.upper, ceiling(tables, instance.goals[0]) + 1)
        if known.plan is None:
            known.offer(first_plan(tables))
        parts = stage_parts(tables, CutSpace.of(instance))
        spaces = demanded_spaces(state_space(tables, demanded=True), tables)
        spans, least = spans_of(tables, parts.passes, parts.space), least_passes(parts.passes, parts.space)
        searches = list[Search]()

        def run(own: Incumbent, space: StateSpace) -> None:
            searches.append(Search(own, parts, spans, ways_of(tables, space), space, least))
            searches[-1].run()

        search_in_parts(known, [partial(run, space=space) for space in spaces])
    except StoppedError:
        return known.outcome(STOPPED)
    except OutgrownError as error:
        return known.outcome(str(error))
    made, boxes = (sum(counts) for counts in zip(*((one.made, one.boxes) for one in searches), strict=True))
    return known.outcome(f"{made} suffixes of plans were looked at, {boxes} boxes of plans bounded")


def _begin_eagerly(known: Incumbent, limits: Limits) -> None:
    """Look for a good plan with eager warm-ups, and for better ones of its stages; others may still be better."""
    instance = known.instance
    judged = replace(instance, training=replace(instance.training, warm_up="eager"))
    found = solve(judged, replace(limits.share(EAGER), start=None, progress=lambda _: None)).plan
    if found is not None:
        known.offer(found, warmed(instance, found, limits.deadline))


def warmed(instance: Instance, plan: Plan, deadline: Deadline) -> Plan:
    """Return a plan with warm-ups that no change of one stage's alone makes quicker; it may break rules as it did.

    Begun with classic ones, eager ones, and the longest that memory allows; after the deadline with the best so
    far. Cost: some hundred steps executed.
    """
    training, passes = instance.training, pipeline_passes(instance, plan)
    least, most = training.warm_ups(len(plan)), [_longest(instance, plan, at) for at in range(len(plan))]
    eager = replace(training, warm_up="eager").warm_ups(len(plan))
    known: dict[tuple[int, ...], int] = {}

    def step_ns(warm_ups: tuple[int, ...]) -> int:
        if warm_ups not in known:
            known[warm_ups] = step_of_training_ns(training, passes, overlapped=False, warm_ups=warm_ups)
        return known[warm_ups]

    def within(warm_ups: tuple[int, ...]) -> tuple[int, ...]:
        found: list[int] = []
        for wanted, low, high in zip(warm_ups, least, most, strict=True):
            found.append(max(low, min(wanted, high, *found[-1:])))
        return tuple(found)

    best = min((least, within(eager), within((training.micro_batches,) * len(plan))), key=step_ns)
    with suppress(StoppedError):
        while True:
            found = min(in_time(_beside(best, least, most), deadline), key=step_ns, default=best)
            if step_ns(found) >= step_ns(best):
                break
            best = found
    return Plan(tuple(replace(stage, warm_up=many) for stage, many in zip(plan.stages, best, strict=True)))


def _longest(instance: Instance, plan: Plan, index: int) -> int:
    """Return the longest warm-up for which a stage has the memory, or 1: each pass of it holds as much more."""
    stage, many = plan.stages[index], instance.training.micro_batches
    if not instance.constraints.memory:
        return many

    def held(warm_up: int) -> int:
        stages = (*plan.stages[:index], replace(stage, warm_up=warm_up), *plan.stages[index + 1 :])
        return MemoryParts.of_stage(instance, Plan(stages), index).total

    once, left = held(2) - held(1), capacity_bytes(instance, stage.group) - held(1)
    return max(1, min(many, 1 + left // once if once else many))


def _beside(best: tuple[int, ...], least: tuple[int, ...], most: list[int]) -> Iterator[tuple[int, ...]]:
    """Yield the warm-ups in which one stage has another, within memory, and none more than the one before it."""
    for at, (low, high) in enumerate(zip(least, most, strict=True)):
        fewest = max((low, *best[at + 1 : at + 2]))
        for own in range(fewest, min((high, *best[max(0, at - 1) : at])) + 1):
            yield (*best[:at], own, *best[at + 1 :])
