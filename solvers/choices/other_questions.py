"""Questions beside what was asked that the reduction sees: a narrower one has a plan, a wider one has a bound.

*Narrower.* What the reduction does not see is closed: stages stand on the line, each on devices of its own,
layers run in the given order, passes under 1F1B, nothing overlaps, and no goal is limited; single blocks are not
computed again where these read from others than the one before. The best plan of that question is a plan of what
was asked where it keeps the rules, and is priced anew. What is proved of the narrower question says nothing of the
other.

*Wider.* Every plan of what was asked is one of the wider question and takes no less than is counted there, so what
no plan undercuts there stands. Demands that the reduction does not see are left out, links pay for boundaries, and
stages are bounded by how many devices they have (``solvers.reduce.by_count``):

* A stage with any devices of alike servers has no better links than one at the head of the line, where that is
  so (:func:`head_is_best`); what joins stages takes nothing then.
* No order of passes keeps fewer micro-batches than is counted: all of them under GPipe, one where one after
  another goes through all stages, else as many as under 1F1B.
* Time is counted by the order of passes (:class:`LeastStep`). What is done once a step is left out of executed
  times, but for the first stage under 1F1B.
* Devices that hold several stages, dealt out in turn, have the first atom of the model in the first group and the
  last one in the last, so what they hold is that of a run of atoms if all between is alike (``Word.apart``).

Plans of the wider question that keep the rules are priced as what was asked. The claim rests on such a plan alone.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.executed import IN_ROUNDS
from pipecut.formulation.limits import Deadline, StoppedError, TooLargeError
from pipecut.formulation.outcome import Limits, Outcome, Progress, Proof, checked
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute
from pipecut.formulation.problem.cuts import chooses_order
from pipecut.formulation.problem.groups import Group, GroupKind, modes_by_size
from pipecut.formulation.problem.instance import FORBIDDEN, Instance, longest_run_ns
from pipecut.formulation.problem.layers import Axis
from pipecut.formulation.problem.options import Boundary, BoundaryCharge, Combine, StageTime, Synchronisation
from pipecut.formulation.problem.shares import server_classes
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers.catalogue import REDUCED, is_reduced
from pipecut.solvers.reduce.best_grid import GridFound, times_in_a_step
from pipecut.solvers.reduce.by_count import TRIED, ByCount, Open
from pipecut.solvers.reduce.counted import CountedStages
from pipecut.solvers.reduce.device_prices import Option, PricedAnswer, PricedQuestion
from pipecut.solvers.reduce.jointly import Jointly
from pipecut.solvers.reduce.programme import Cell
from pipecut.solvers.reduce.reduced_dp import OFFERED, Search, search_of, value_of
from pipecut.solvers.reduce.reduced_stages import ReducedStages
from pipecut.solvers.reduce.seats import SeatLine
from pipecut.solvers.reduce.word import Word
from pipecut.solvers.search.support import capped, on_the_line

NARROWER, ROOMY = 1.5, 6
"""The narrower question may take one part in so many of the time, and so may grids that keep much more."""
WHOLE_STEP = (Goal.STEP_TIME, Goal.ITERATION_TIME)
TIMES = (*WHOLE_STEP, Goal.BOTTLENECK, Goal.PERIOD)
MANY = (2, 4, 8)
"""Of so many stages plans are looked for that keep twice as many micro-batches."""


def narrower(instance: Instance) -> list[Instance]:
    """Return the choices of the narrower question; none where it is the same, or the reduction does not see it.

    It leaves out two splits at once, too, which the reduction sees: with them it takes long to find a good plan.
    """
    instance = capped(instance)
    training = instance.training
    orders = training.schedule_choices or (training.schedule,)
    if not any(one is Schedule.ONE_F_ONE_B or one.in_halves for one in orders):
        return []
    if 1 not in (training.chunk_choices or (training.chunks,)):
        return []
    plain = replace(training, schedule=Schedule.ONE_F_ONE_B, schedule_choices=(), chunks=1, chunk_choices=())
    charged = Synchronisation.CHARGED
    cost = replace(instance.cost, synchronisation=charged, inside=charged, stage_time=StageTime.ADD)
    cost = replace(cost, boundary_charge=BoundaryCharge.LINK, combine=Combine.MAX)
    splits = tuple(axis for axis in instance.constraints.splits if axis is not Axis.PAIRS)
    asked = replace(instance.constraints, placement=Placement.LINE, at_most=on_the_line(instance), splits=splits)
    for own in [asked, replace(asked, recompute=Recompute.ALLOWED)][: 1 + (asked.recompute is Recompute.BLOCKS)]:
        with contextlib.suppress(ValueError):
            like = replace(instance, cost=cost, constraints=own, goals=instance.goals[:1], training=plain)
            # Where it is the instance itself what is known of that need not be found out again.
            found = [(instance if like == instance else like).trained(one) for one in plain.choices]
            if all(map(is_reduced, found)):
                same = (plain, cost, own) == (training, instance.cost, instance.constraints)
                return [] if same and not chooses_order(instance) else found
    return []


def narrower_plan(instance: Instance, limits: Limits, grid: GridFound | None) -> GridFound | None:
    """Return the best plan of the narrower question, if it is better than a grid; else the grid.

    It is told. Cost: a search for most of the time.
    """
    parts = narrower(instance)
    if not parts:
        return grid
    known = [one for one in parts if grid is not None and one.training == grid.instance.training]
    # The value of a grid is one of the narrower question only where that is priced alike.
    start = grid.told if grid is not None and known and parts[0].cost == instance.cost else None
    found = Jointly.run(parts, replace(limits.share(NARROWER), progress=lambda _: None), start)
    best = grid
    for many, plan in [(part.training.micro_batches, one.plan) for part, one in found if one.plan is not None]:
        for one in instance.training.choices:
            if one.chunks > 1 or one.micro_batches != many:
                continue
            about = instance.trained(one)
            priced = evaluate(about, plan)
            if not priced.feasible or priced.objective is None:
                continue
            if best is None or priced.objective * times_in_a_step(about) < best.step:
                best = GridFound(priced.objective, plan, about)
                limits.progress(Progress(best.objective, None, best.plan, about))
    return best


class LeastStep(enum.Enum):
    """What a step takes at least, of stages that take so much in all passes of a micro-batch."""

    EXECUTED = enum.auto()
    """As executed under 1F1B (``solvers.reduce.by_count``)."""
    FLOW = enum.auto()
    """All stages and boundaries, and M - 1 times the slowest stage: a flow shop of the forward passes, and one of
    the backward passes, as under GPipe. The formula says the same, and counts boundaries among stages."""
    WORK = enum.auto()
    """M times the slowest stage: whatever the order, a device does all passes of its stage."""


@dataclass(slots=True)
class _Work(ByCount):
    """Which stages take no more than so much on all devices that there are: sums are numbers of devices."""

    def _question(self, lo: int, hi: int) -> PricedQuestion:
        beside = self.micro_batches * (lo + 1)
        return PricedQuestion(lambda _: ((Option(0, 0, 0, 0),),), lo, hi, FORBIDDEN // 2, False, beside, (0,))

    def _exactly(self, one: Open) -> Open | None:
        return replace(one, exact=True)

    def _ask(self, question: PricedQuestion, price: int) -> PricedAnswer | None:
        found, total = ByCount._ask(self, question, 1), self.stages.line.devices
        if found is None or found.devices > total:
            return None
        if self.stages.fits(found.cells):
            self._promised.append((max(found.times), list(found.cells)))
        return replace(found, value=0, devices=total)

    def _try(self, cells: Sequence[Cell]) -> None:
        if (key := tuple(cells)) in self._seen or len(self._seen) >= TRIED:
            return
        self._seen.add(key)
        plan = self.make(cells)
        value = None if plan is None else self.price(plan)
        if value is not None and value < self.most:
            self.plan, self.best = plan, value


def wider(instance: Instance) -> tuple[Instance, LeastStep] | None:
    """Return the wider question of an instance with nothing open, and how time is counted; None for none."""
    instance = capped(instance)
    training, cost, goal = instance.training, instance.cost, instance.goals[0]
    free = instance.constraints.placement is Placement.FREE
    unknown = training.schedule.flushes and training.schedule not in IN_ROUNDS
    if unknown or cost.stage_time is StageTime.OVERLAP or isinstance(training.warm_up, tuple):
        return None
    if goal not in TIMES or (free and not head_is_best(instance)):
        return None
    whole, path = training.schedule in (Schedule.GPIPE, Schedule.NAIVE), LeastStep.WORK
    if goal is Goal.STEP_TIME and training.warms_up and training.warm_up == "classic":
        path = LeastStep.EXECUTED
    elif (goal is Goal.ITERATION_TIME and training.schedule.flushes) or (goal is Goal.STEP_TIME and whole):
        path = LeastStep.FLOW
    order = training.schedule if whole else Schedule.ONE_F_ONE_B
    seen = (
        type(one)() if not one.asked and one.rule not in OFFERED else one for one in instance.constraints.values
    )
    plain = replace(training, schedule=order, schedule_choices=(), chunks=1, chunk_choices=(), warm_up="classic")
    limits = () if free else on_the_line(instance)
    paid = Boundary.NONE if free else cost.boundary
    like = replace(
        instance,
        training=plain,
        constraints=replace(Constraints(seen), placement=Placement.LINE, at_most=limits),
        cost=replace(cost, boundary_charge=BoundaryCharge.LINK, boundary=paid, combine=Combine.MAX),
        goals=(Goal.STEP_TIME if goal.executed else Goal.ITERATION_TIME,),
    )
    return like, path


def head_is_best(instance: Instance) -> bool:
    """Tell whether no devices have better links than as many at the head of the line, in any mode.

    Of alike servers, if that holds for these bounds: devices of one server are joined by its link; between servers
    rings, or transfers inside a replica, have at most the most adapters that one of them may have.
    """
    server, between = instance.servers[0], instance.links[0][-1]
    if len(set(server_classes(instance))) > 1:
        return False
    inside, own = instance.links[0][0], range(1, server.devices + 1)
    if len(instance.servers) == 1 or inside is None or between is None:
        return len(instance.servers) == 1 or server.devices == 1
    for size, ways in modes_by_size(instance).items():
        for degree, grid in {(one.tensor_parallel_degree(size), one.grid): None for one in ways}:
            ways_of = next(one for one in ways if (one.tensor_parallel_degree(size), one.grid) == (degree, grid))
            kind = GroupKind.of(instance, Group.on_line(instance, 0, size, ways_of))
            rings = [Fraction(server.lanes(n), min(degree, n)) for n in own] if server.adapters else [Fraction(1)]
            best = [between.times(*max(rings).as_integer_ratio()), inside]
            alone = between.times(server.lanes(server.devices) if server.adapters else 1)
            among = best if size <= server.devices else best[:1]
            within = (kind.inner, *(kind.axes or ()))
            if not _no_slower(kind.link, among) or not all(_no_slower(one, (inside, alone)) for one in within):
                return False
    return True


def _no_slower(one: Link | None, others: Iterable[Link]) -> bool:
    if one is None:
        return True
    pairs = ((one.bits_per_second, other.bits_per_second) for other in others)
    return all(own >= more for own, more in pairs) and all(one.latency_ns <= other.latency_ns for other in others)


def searched(instance: Instance, upper: int, deadline: Deadline) -> Search:
    """Return the search of the wider question for plans below a value; they are priced as what was asked.

    That is what was asked where the reduction sees it.
    """
    if is_reduced(instance):
        return search_of(instance, upper, deadline)
    found = wider(instance)
    if found is None:
        raise ValueError("there is no wider question")
    return _search(instance, *found, upper, deadline)


def _search(instance: Instance, asked: Instance, path: LeastStep, upper: int, deadline: Deadline) -> ByCount:
    """Return a search of plans by what is ``asked`` of them, priced as those of ``instance``."""
    goal, apart = instance.goals[0], instance.training.chunks > 1
    word = replace(Word.of(asked), apart=apart)
    stages = ReducedStages.of(word, SeatLine.of(asked, word.space), deadline, each=goal.executed)
    search = ByCount.of(stages, partial(value_of, instance), upper)
    if path is LeastStep.EXECUTED:
        return search
    counted = CountedStages.of(stages, stages)
    return (ByCount if path is LeastStep.FLOW else _Work)(
        stages=counted,
        micro_batches=search.micro_batches if goal in WHOLE_STEP else 1,
        executed=False,
        make=stages.plan if not apart else lambda _: None,
        takes=search.takes,
        price=search.price,
        deadline=deadline,
        upper=upper,
        bounded=False,  # links carry any number of transfers at once, so none of them sets the pace
    )


@dataclass(frozen=True, slots=True)
class Widened:
    """What no plan of each choice of a training undercuts, for a whole step, and the best plan so far."""

    bounds: Mapping[Training, int]
    start: GridFound | None

    def raised(self, about: Instance, outcome: Outcome) -> Outcome:
        """Return a claim about all choices with the bound that no plan of any of them undercuts, if it is better.

        Raises FalseClaimError where a plan is below it.
        """
        bound = min(self.bounds.values(), default=0) // times_in_a_step(about)
        if outcome.proof in (Proof.OPTIMAL, Proof.INFEASIBLE) or bound < max(1, outcome.bound or 0):
            return outcome
        by = tuple(dict.fromkeys((*outcome.bound_by, REDUCED)))
        notes = (*outcome.notes, f"the bound is that of {REDUCED}, of a wider question")
        return checked(about, replace(outcome, bound=bound, bound_by=by, notes=notes))


def widened(instance: Instance, limits: Limits, start: GridFound | None) -> Widened:
    """Return bounds for all choices of an instance that the reduction does not see, by their wider questions.

    None of them where some choice has no such question, or the reduction is not asked about it. A better plan is
    told. Cost: a search for two thirds of the time.
    """
    choices, bounds = [instance.trained(one) for one in instance.training.choices], dict[Training, int]()
    if all(map(is_reduced, choices)) or not all(map(_is_wider, choices)):
        return Widened({}, start)
    start = _with_room(choices, limits.share(ROOMY), start)
    alike = [list(some) for _, some in itertools.groupby(choices, times_in_a_step)]
    for at, some in enumerate(alike):
        own = {one.training for one in some}
        known = start if start is not None and start.instance.training in own else None
        begun = None if known is None else Progress(known.objective, None, known.plan, known.instance)
        within = limits.share(len(alike) - at + 0.5)
        if len(alike) > 1:  # what is told of a part says nothing of the whole
            within = replace(within, progress=lambda one: limits.progress(replace(one, bound=None, whole=False)))
        asked = {_question(one.training): one for one in (*reversed(some), *([known.instance] if known else ()))}
        for one, outcome in Jointly.run(list(asked.values()), within, begun, searched):
            # Where there is no plan there is nothing to undercut.
            bound = FORBIDDEN if outcome.bound is None else outcome.bound * times_in_a_step(one)
            bounds |= dict.fromkeys((of for of in own if _question(of) == _question(one.training)), bound)
            if outcome.plan is not None and outcome.objective is not None:
                told = GridFound(outcome.objective, outcome.plan, one)
                start = told if start is None or told.step < start.step else start
    # Nobody looks twice whether there is no plan at all.
    return Widened(bounds if min(bounds.values()) < FORBIDDEN else {}, start)


def _question(training: Training) -> object:
    """Return what the wider questions of trainings with as many micro-batches differ in."""
    return training.schedule, training.warm_up, training.micro_batches, min(training.chunks, 2)


def _with_room(choices: Sequence[Instance], limits: Limits, best: GridFound | None) -> GridFound | None:
    """Return a better plan of passes in halves, which is told: best of those whose stages keep much more.

    ``best`` where none is. With as many micro-batches in flight as there are stages, and as many gradients of
    outputs, nothing is kept by computing it again.
    """
    halves = [one for one in choices if one.training.schedule.in_halves]
    with contextlib.suppress(StoppedError, TooLargeError):
        for one in sorted(halves, key=lambda one: -one.training.micro_batches):
            for number in (at for at in MANY if at <= one.devices):
                limits.deadline.check()
                asked = (wider(one) or (one, LeastStep.WORK))[0]
                again = Recompute.ALWAYS if asked.constraints.recompute is Recompute.ALWAYS else Recompute.NEVER
                like = replace(asked.constraints, recompute=again, stages_at_least=None, stages_at_most=number)
                training = replace(asked.training, warm_up=(2 * number,) * number)
                asked = replace(asked, training=training, constraints=like)
                upper = longest_run_ns(one, one.training.micro_batches) + 1 if best is None else best.objective
                search = _search(one, asked, LeastStep.FLOW, upper, limits.deadline)
                search.begin()
                while search.step():
                    pass
                if search.plan is not None and search.best < upper:
                    best = GridFound(search.best, search.plan, one)
                    limits.progress(Progress(best.objective, None, best.plan, one))
    return best


def _is_wider(instance: Instance) -> bool:
    """Tell whether the reduction is asked about the wider question of an instance, but for its order of passes."""
    with contextlib.suppress(ValueError):
        if (found := wider(instance)) is not None:
            charged = Synchronisation.CHARGED
            plain = replace(found[0].training, schedule=Schedule.ONE_F_ONE_B)
            cost = replace(found[0].cost, synchronisation=charged, inside=charged)
            return is_reduced(replace(found[0], training=plain, cost=cost))
    return False
