"""The best number of micro-batches, schedule and chunks a group: one claim holds for all choices of a training.

Every choice is an instance. Values of different numbers of micro-batches are compared for a whole step: a
bottleneck, the time of one micro-batch, counts as often as there are micro-batches. The most promising choice is
searched first. Of every other one it is asked whether it has a better plan than the best so far, unless sums over
layers and devices rule it out. The bound of the whole is the least of all bounds; a choice that no method takes
counts with what sums say. Under a schedule whose passes, and what a stage keeps, follow from the number of all
stages, each number of them is an instance of its own, and the claim is about all numbers. As a claim over all
choices is as strong as the weakest about one of them, a second method is asked about each at the end: whether it,
too, finds nothing better with that choice.

Choices of a training in words: what was left open of each.

All that is chosen above a single instance: micro-batches, the order of the passes, and that of the layers.

A search of one instance is handed in; what comes back is the instance with everything chosen, and a claim about it
that says how far it holds: for all choices of the training, and for all orders of the layers where these are free
too. Where the order is given, a bound for all orders with any of the choices stands beside the claim.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from pipecut.formulation.costs.amounts import plural
from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.limits import Deadline, StoppedError, TooLargeError, in_time
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Progress, Proof, checked
from pipecut.formulation.problem.constraints import Recompute
from pipecut.formulation.problem.cuts import CutSpace, chooses_order
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import ceil_div
from pipecut.solvers.attack import attacked
from pipecut.solvers.catalogue import AUTO, REDUCED, is_reduced
from pipecut.solvers.choices.any_order import (
    AnyOrder,
    any_order,
    bound_of_all,
    given_order,
    has_other_orders,
    impossible,
)
from pipecut.solvers.choices.other_questions import Widened, narrower_plan, widened
from pipecut.solvers.crosscheck import NOT_CHECKED, checked_by_others, cross_check
from pipecut.solvers.goals import there_is
from pipecut.solvers.reduce.best_grid import PART, DealtGrids, GridFound, best_grid, times_in_a_step
from pipecut.solvers.reduce.jointly import Jointly
from pipecut.solvers.search.first_plan import simple_plan

Ask = Callable[[Instance, Limits], tuple[Instance, Outcome]]
"""Any search of one instance: the instance that its outcome is about, in whatever order, and the outcome."""
Start = tuple[int, Plan]
"""The value of the first goal, and a plan that keeps the rules."""


def named(instance: Instance) -> str:
    """Say what was left open: order of passes, number of micro-batches, or of stages alone, or what is kept."""
    training, stages = instance.training, instance.demands.stages_at_most
    if not training.left_open:
        kept = "no block" if instance.constraints.recompute is Recompute.NEVER else "each block"
        return f"{kept} computed again" if stages is None else f"{stages} {plural(stages, 'stage')}"
    number = f"{training.micro_batches} micro-{plural(training.micro_batches, 'batch')}"
    if not orders_open(training):
        return number
    return f"{order(training)}, {number}" if training.micro_batch_choices else order(training)


def choice_in_words(instance: Instance) -> str:
    """Say all that a training chooses, of one in which it is chosen: the number of micro-batches and the order."""
    number = f"{instance.training.micro_batches} micro-{plural(instance.training.micro_batches, 'batch')}"
    return f"{number} under {order(instance.training)}"


def listed(choices: list[Instance]) -> str:
    """List choices: numbers of micro-batches, or of stages, orders of passes, or each order with its numbers."""
    if not any(one.demands.stages_at_most or one.training.left_open for one in choices):
        return ", ".join(map(named, choices))
    numbers: dict[str, set[int]] = {}
    for one in choices:
        written = order(one.training) if orders_open(one.training) else ""
        number = one.training.micro_batches if one.training.left_open else one.demands.stages_at_most or 0
        numbers.setdefault(written, set()).add(number)
    several = any(one.training.micro_batch_choices for one in choices)
    rows = [(one, ", ".join(map(str, sorted(found)))) for one, found in numbers.items()]
    return ", ".join(f"{one} ({found})" if one and several else one or found for one, found in rows)


def order(training: Training) -> str:
    """Say in which order passes run."""
    written = training.chunks > 1 and not training.schedule.in_a_v
    return training.schedule + (f" in {training.chunks} chunks" if written else "")


def orders_open(training: Training) -> bool:
    """Tell whether schedule or chunks are chosen."""
    return bool(training.schedule_choices or training.chunk_choices)


# The first choice may search in one part of the time in so many if it begins with a plan, else in half of it.
WITH_START = 4
# A choice is searched once more in so many times the time that it had, or more.
MORE_TIME = 1.5
NOTHING = "nothing better"
# A check may take so much longer than what is checked took: the plan is there.
CHECK_S = 10.0


class Ruled(NamedTuple):
    """A choice that is claimed to have no plan of less than ``below``, by the first goal."""

    instance: Instance
    outcome: Outcome
    below: int | None

    def around(self, plan: Plan | None) -> Ruled:
        """Return the claim to attack around a plan: of several goals one may be as good in the first."""
        known = (self.below, self.outcome.bound)
        below = min((one for one in known if one is not None), default=None)
        return Ruled(self.instance, replace(self.outcome, plan=plan), below)


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known of one choice; ``bound`` is for a whole step.

    ``start`` is a plan to begin with.
    """

    instance: Instance
    bound: int
    outcome: Outcome | None = None
    start: Start | None = None

    @property
    def value(self) -> int | None:
        """The first goal for a whole step, of a plan that keeps the rules."""
        if self.outcome is None or self.outcome.proof not in (Proof.OPTIMAL, Proof.FEASIBLE):
            return None
        return None if self.outcome.objective is None else self.outcome.objective * times_in_a_step(self.instance)

    def begun(self, within: Limits) -> Limits:
        """Return limits with the plan to begin with, if there is one."""
        return within if self.start is None else replace(within, start=self.start[1])

    @property
    def rank(self) -> tuple[int, ...]:
        """Values of all goals, the first for a whole step."""
        further = () if self.outcome is None else tuple(claim.value for claim in self.outcome.further)
        return (self.value or 0, *further)


@dataclass(frozen=True, slots=True)
class Decision:
    """What was chosen, the claim about it, the choices that have nothing better, and how long all of it took."""

    instance: Instance
    outcome: Outcome
    others: tuple[Ruled, ...] = ()
    seconds: float = 0.0

    def to_check(self, limits: Limits) -> Limits:
        """Return the limits of a check: about the time that the search took, less where reasons are to come."""
        return (limits.share(3) if self.outcome.plan is None else limits).within(self.seconds + CHECK_S)

    def checks(self, limits: Limits) -> Iterator[str]:
        """Yield what second methods make of everything that is proved, a sentence each.

        Raises FalseClaimError if two methods contradict each other.
        """
        own, training = limits.share(2) if self.others else limits, self.instance.training
        of_grids = training.dealt and training.chunks > 1  # which were priced one by one
        if not of_grids and (self.outcome.plan is not None or not self.others):
            for at, found in enumerate(filter(None, checked_by_others(self.instance, self.outcome, own))):
                alone = not at and found.startswith(NOT_CHECKED)
                yield (alone and attacked([(self.instance, self.outcome, self.outcome.objective)], own)) or found
        said: dict[str, list[Ruled]] = {}
        for at, one in enumerate(self.others):
            within = limits.share(2 * (len(self.others) - at))
            first = replace(one.instance, goals=one.instance.goals[:1])
            found = cross_check(first, one.outcome.of_first_goal(), replace(within, below=one.below))
            said.setdefault(NOT_CHECKED if found.startswith(NOT_CHECKED) else found, []).append(one)
        nothing = "no plan" if self.outcome.plan is None else NOTHING
        for found, some in said.items():
            around = [one.around(self.outcome.plan if training.chunks == 1 else None) for one in some]
            against = found == NOT_CHECKED and attacked(around, limits)
            yield f"{nothing} with {listed([one.instance for one in some])}: {against or found}"

    def checked(self, limits: Limits) -> Outcome:
        """Return the claim with these sentences."""
        return replace(self.outcome, checks=tuple(self.checks(self.to_check(limits))))


def best_training(
    instance: Instance, ask: Ask, limits: Limits, known: Widened | None = None, solver: str = AUTO.name
) -> Decision:
    """Return the best plan over all that the training leaves open (``Training.choices``), with a claim about that.

    ``known`` are a plan to begin with, and bounds; ``solver`` is who is asked, if not whoever is fastest. The
    claim is OPTIMAL only if no plan with any choice is better. Raises ValueError where ``ask`` does so for every
    choice, or a formula cannot tell choices apart. Cost: at most one search for each choice; after the first one
    they only have to tell whether there is anything better.
    """
    _check_told_apart(instance)
    limits, grid = limits.begun(), None if known is None else known.start
    parts = _with(grid, [*instances_of(instance)], instance)
    if solver in (AUTO.name, REDUCED) and (reduced := _reduced(parts, limits, grid)) is not None:
        return _chosen(instance, reduced, [], limits.below)
    waiting = _by_promise(_begun(instance, parts, known))
    limits.progress(Progress(None, min(one.bound for one in waiting) // times_in_a_step(instance), whole=True))
    done: list[_Found] = []
    refused: dict[tuple[bool, str], list[Instance]] = {}
    needed_s = 0.0
    while waiting:
        one = waiting.pop(0)
        best = min((found.value for found in done if found.value is not None), default=None)
        # Whoever is asked when time is over answers with a bound, and a plan that needs no search: somebody is.
        # Nobody else is where the time that is left is less than others needed to end when theirs was over.
        left_s = limits.deadline.left_s()
        over = limits.deadline.over() or (left_s is not None and left_s < needed_s)
        late = over and any(found.outcome is not None for found in done)
        if late or (best is not None and not _may_win(one, best)):
            done.append(one)
            continue
        try:
            # Until there is a plan, none has anything to begin with.
            share = 1 + len(waiting) if best else 2 if one.start is None else WITH_START
            within = replace(limits.share(share), below=_below(one, best))
            done.append(_asked(one, ask, one.begun(within)))
            if within.end_s is not None:
                needed_s = max(needed_s, time.monotonic() - within.end_s)
        except ValueError as error:
            refused.setdefault((isinstance(error, TooLargeError), str(error)), []).append(one.instance)
            done.append(one)
    done = _again(done, ask, limits, needed_s)
    said = [f"{listed(some)}: {error}" for (_, error), some in refused.items()]
    if sum(map(len, refused.values())) == len(parts):
        raise (TooLargeError if all(large for large, _ in refused) else ValueError)("; ".join(said))
    return _chosen(instance, done, said)


def _begun(instance: Instance, parts: Iterable[Instance], known: Widened | None) -> list[_Found]:
    """Return the choices with their bounds, and the one that a grid is of with that to begin with.

    What no plan of any number of stages undercuts is found once for each training.
    """
    known = known or Widened({}, None)
    begun, own = (None, None) if (grid := known.start) is None else ((grid.objective, grid.plan), grid.instance)
    rows = {part.training: instance.trained(part.training) for part in parts}
    least = {one: max(lower_bound(of) * times_in_a_step(of), known.bounds.get(one, 0)) for one, of in rows.items()}
    return [_Found(one, least[one.training], start=begun if one is own else None) for one in parts]


def _with(grid: GridFound | None, parts: list[Instance], whole: Instance) -> list[Instance]:
    """Return the parts, the one that a grid was priced of as it was then."""
    if grid is None:
        return parts
    of, kept = grid.instance, whole.constraints
    return [of if one.training == of.training and one.constraints is kept else one for one in parts]


def _reduced(parts: Sequence[Instance], limits: Limits, grid: GridFound | None) -> list[_Found] | None:
    """Return what the reduction finds out about all choices of a large question together.

    None where it does not see one of them, as where layers are free to have other orders, of which a claim about
    this one says nothing; and where it neither found a plan nor proved that there is none.
    """
    alone = len(parts[0].goals) == 1 and limits.start is None and (limits.below is None or grid is not None)
    if not alone or chooses_order(parts[0]) or not all(map(is_reduced, parts)):
        return None
    found = Jointly.run(parts, limits, None if grid is None else grid.told)
    if all(one.plan is None for _, one in found) and any(one.proof is Proof.UNKNOWN for _, one in found):
        return None
    claims = [(one, checked(one, outcome, limits.deadline)) for one, outcome in found]
    if has_other_orders(parts[0]):
        claims = [(one, _of_one_order(given_order(one, claim, limits.within(BOUND_S)))) for one, claim in claims]
    return [_Found(one, claim.bound or lower_bound(one), claim) for one, claim in claims]


def _asked(one: _Found, ask: Ask, within: Limits) -> _Found:
    """Return what is known of a choice when it has been searched. Raises what ``ask`` raises."""
    about, outcome = ask(one.instance, within)
    return _Found(about, _bound(one, outcome), outcome)


def _again(done: list[_Found], ask: Ask, limits: Limits, needed_s: float) -> list[_Found]:
    """Search open choices once more, the best one from its plan, where much more time is left than they had."""
    values = [one.value for one in done if one.value is not None]
    waiting = [one for one in done if one.outcome is not None and values and one.bound < min(values)]
    for one in sorted(waiting, key=lambda one: one.bound):
        best = min(one.value for one in done if one.value is not None)
        had_s, left_s = one.outcome.seconds if one.outcome else 0.0, limits.deadline.left_s()
        if left_s is None or left_s <= needed_s + MORE_TIME * had_s or limits.deadline.over() or one.bound >= best:
            continue
        plan = one.outcome.plan if one.outcome is not None and one.value == best else None
        within = replace(limits, below=_below(one, best)) if plan is None else replace(limits, start=plan)
        with contextlib.suppress(ValueError):
            found = _asked(one, ask, within)
            if found.value is None or found.value > best:  # stopped before it came to its plan
                found = replace(one, bound=found.bound)
            done = [found if other is one else other for other in done]
    return done


def instances_of(instance: Instance) -> Iterator[Instance]:
    """Yield an instance for each choice, and of ZB-H1 one for each number of stages.

    Where a program computes all blocks again or none, one of each.
    """
    asked = instance.constraints
    every = replace(asked, recompute=Recompute.EVERY_BLOCK)
    both = (replace(asked, recompute=Recompute.NEVER, recompute_layers=()), every)
    chosen = (instance.trained(one) for one in instance.training.choices)
    for one in itertools.chain.from_iterable(map(_by_stages, chosen)):
        if asked.one_mode and asked.recompute is Recompute.BLOCKS:
            yield from (replace(one, constraints=ways) for ways in both)
        else:
            yield one


def _by_stages(instance: Instance) -> Iterable[Instance]:
    """Return an instance of ZB-H1 for each number of stages that a plan may have, any other as it is."""
    if not instance.training.schedule.in_halves or instance.training.chunks > 1:
        return (instance,)
    demands, asked = instance.demands, instance.constraints
    most = min(instance.devices, CutSpace.of(instance).stops, demands.stages_at_most or instance.devices)
    numbers = range(demands.stages_at_least or 1, max(most, demands.stages_at_least or 1) + 1)
    return (replace(instance, constraints=replace(asked, stages_at_least=n, stages_at_most=n)) for n in numbers)


def _check_told_apart(instance: Instance) -> None:
    """Raise ValueError for a formula by which one order of the passes is as good as another."""
    formula = next((goal for goal in instance.goals if goal.timed and not goal.executed), None)
    if formula is not None and orders_open(instance.training):
        raise ValueError(
            f"{formula} is a formula, which does not tell one order of the passes from another: to choose"
            " training.schedule or training.chunks, take objective step_time"
        )


def _by_promise(waiting: list[_Found]) -> list[_Found]:
    """Sort by bounds; of those within a hundredth of the least, smaller micro-batches take less memory.

    Before all others come those that begin with a plan, the best first.
    """
    least = max(1, min(one.bound for one in waiting))
    rest = sorted(waiting, key=lambda one: (100 * one.bound // least, -one.instance.training.micro_batches))
    return sorted(rest, key=lambda one: math.inf if one.start is None else one.start[0])


def _below(one: _Found, best: int | None) -> int | None:
    """Return the value of the first goal below which a plan with this choice may be the best one."""
    if best is None:
        return None
    return ceil_div(best + (len(one.instance.goals) > 1), times_in_a_step(one.instance))


def _may_win(one: _Found, best: int) -> bool:
    """Tell whether an unasked choice may be better, or as good in the first of several goals."""
    return one.bound < best or (one.bound == best and len(one.instance.goals) > 1)


def _bound(one: _Found, outcome: Outcome) -> int:
    """Return the bound of a choice that was asked; without a plan there is nothing that it could undercut."""
    return one.bound if outcome.bound is None else max(one.bound, outcome.bound * times_in_a_step(one.instance))


def _chosen(instance: Instance, done: list[_Found], refused: list[str], below: int | None = None) -> Decision:
    open_ones = [one for one in done if one.outcome is None or one.outcome.proof is not Proof.INFEASIBLE]
    with_plan = [one for one in done if one.value is not None]
    notes = tuple(refused)
    if not with_plan:
        of, some = next((one.instance, one.outcome) for one in done if one.outcome is not None)
        if some.plan is not None:  # of a method that is blind to a rule it breaks: shown, and claims nothing
            instance, done = replace(of, constraints=instance.constraints), []
        elif open_ones:
            times = times_in_a_step(instance)
            least, of_orders = min(one.bound for one in open_ones) // times, _in_anyorder(some, done, times)
            some = replace(some, proof=Proof.UNKNOWN, bound=least, any_order_bound=of_orders)
            return Decision(instance, replace(some, solver=AUTO.name, notes=notes))
        others = tuple(Ruled(one.instance, one.outcome, None) for one in done if one.outcome)
        return Decision(instance, replace(some, bound=None, notes=(*some.notes, *notes)), others)
    best = min(with_plan, key=lambda one: one.rank)
    outcome = best.outcome
    if outcome is None or best.value is None:
        raise ValueError("no choice has a plan")
    bound = min((one.bound for one in open_ones), default=best.value)
    tied = [one for one in open_ones if one.bound <= best.value and one is not best]
    settled = all(one.outcome is not None and one.outcome.proof is Proof.OPTIMAL for one in tied)
    proof = outcome.proof if bound >= best.value and (settled or len(instance.goals) == 1) else Proof.FEASIBLE
    times = times_in_a_step(best.instance)
    claimed = replace(
        outcome,
        proof=proof if outcome.bound is not None else outcome.proof,
        bound=None if outcome.bound is None else min(outcome.bound, bound // times),
        any_order_bound=_in_anyorder(outcome, done, times),
        notes=(*outcome.notes, _words(best, done), *notes),
    )
    others = tuple(
        Ruled(one.instance, one.outcome, below or _below(one, best.value))
        for one in sorted(_given_up(best, done, below), key=lambda one: one.outcome.seconds if one.outcome else 0)
        if one.outcome is not None
    )
    return Decision(replace(best.instance, constraints=instance.constraints), claimed, others)


def _in_anyorder(outcome: Outcome, done: list[_Found], times: int) -> int | None:
    """Return what no order of the layers undercuts with any number, for one of ``times`` micro-batches.

    None where the layers have one order. That a number has no plan in one order says nothing of others; where all
    orders are free the claim is about all of them.
    """
    if outcome.any_order_bound is None:
        return None
    free = any(one.instance.model.free_order for one in done)
    done = [one for one in done if not (free and one.outcome and one.outcome.proof is Proof.INFEASIBLE)]
    known = ((one.outcome and one.outcome.any_order_bound) for one in done)
    bounds = (
        (lower_bound(one.instance) if bound is None else bound) * times_in_a_step(one.instance)
        for one, bound in zip(done, known, strict=True)
    )
    return min(bounds) // times


def _words(best: _Found, done: list[_Found]) -> str:
    asked = [one.instance for one in done if one.outcome is not None]
    left = [one.instance for one in done if one.outcome is None]
    words = f"{named(best.instance)} chosen; searched {listed(asked)}"
    if given_up := _given_up(best, done):
        words += f"; {NOTHING} with {listed([one.instance for one in given_up])}"
    return f"{words}; bounds alone rule out or leave open {listed(left)}" if left else words


def _given_up(best: _Found, done: list[_Found], below: int | None = None) -> list[_Found]:
    """Return the choices that were only asked whether they have a better plan, and have none."""
    return [one for one in done if one.outcome and one is not best and one.bound >= (below or best.value or 0)]


DecideAsk = Callable[[Instance, Limits], Outcome]
# How long grids whose groups hold several stages are looked at before there is another plan than a grid.
GRIDS_S, KEPT = 3.0, 8
# Where that did not suffice, one part of the time in so many (KEPT) is kept for them: fewer may be better then.
# What a bound for all orders may take beside a claim about one order, or about none of them having a plan.
BOUND_S = 5.0


def decide(
    instance: Instance, ask: DecideAsk, limits: Limits, solver: str = AUTO.name, *, cross_check: bool = False
) -> tuple[Instance, Outcome]:
    """Return what was chosen, and the claim about it (:func:`decided`); with ``cross_check`` as others see it."""
    limits = limits.begun()
    found = decided(instance, ask, limits, solver)
    return found.instance, found.checked(limits) if cross_check else found.outcome


def decided(instance: Instance, ask: DecideAsk, limits: Limits, solver: str = AUTO.name) -> Decision:
    """Choose what an instance leaves open, searching with ``ask``; return what was chosen, and the claim about it.

    ``solver`` is the name of who is asked: another one than the fastest answers by himself, choice by choice.
    The instance that comes back differs from the given one in what its training leaves open and in the order of
    its layers at most. What is too large for everybody has the best grid, or a simple plan. Raises what ``ask``
    raises where nothing could be searched, and FalseClaimError if two methods contradict each other.
    """
    began_s = time.monotonic()
    limits, in_the_best_order = limits.begun(), partial(_ordered, ask)
    # Whoever begins with a plan of his own, or only asks for better ones, wants no other.
    begun = limits.start is not None or limits.below is not None
    grid = None if begun else best_grid(instance, limits)
    values = [one for one in (grid and grid.step, limits.below) if one is not None]
    asked, dealt = instance, DealtGrids.of(instance, min(values, default=None), limits.share(PART).within(GRIDS_S))
    waiting = not dealt.whole
    if waiting and dealt.grid is None:
        dealt, instance = DealtGrids(), without_grids(instance)
        grid = grid and replace(grid, instance=without_grids(grid.instance))
    limits = given = replace(limits, progress=partial(_of_all, limits.progress, instance, dealt))
    limits = limits.share(KEPT / (KEPT - 1)) if waiting else limits
    # What bounds plans of one order of the layers says nothing of others.
    known = Widened({}, grid) if begun or has_other_orders(instance) else widened(instance, limits, grid)
    if not begun and known.start is grid:
        known = replace(known, start=narrower_plan(instance, limits, grid))
    start, training = known.start, instance.training
    limits = replace(limits, below=dealt.grid.step) if start and dealt.grid else limits
    others: tuple[Ruled, ...] = ()
    try:
        halves = training.schedule.in_halves and training.chunks == 1
        if training.choices == (training,) and not halves and len([*instances_of(instance)]) == 1:
            found = in_the_best_order(instance, limits if start is None else replace(limits, start=start.plan))
        else:
            chosen = best_training(instance, in_the_best_order, limits, known, solver)
            found, others = (chosen.instance, chosen.outcome), chosen.others
    except TooLargeError as error:
        deadline = limits.within(BOUND_S).deadline
        if (one := (start.instance, start.plan) if start else simplest(instance, deadline)) is None:
            raise
        bound = least_of(instances_of(instance), one[0], deadline)
        found = one[0], checked(one[0], there_is(*one, AUTO.name, str(error), bound))
    of, outcome = found if start is None else start.no_worse(*found)
    if waiting:
        of, outcome, dealt = _dealt(asked, of, outcome, dealt, given)
    spent_s = time.monotonic() - began_s
    claim = known.raised(of, replace(outcome, seconds=spent_s if outcome.solver == AUTO.name else outcome.seconds))
    return _among_grids(Decision(of, claim, others, spent_s), dealt)


def simplest(instance: Instance, deadline: Deadline) -> tuple[Instance, Plan] | None:
    """Return the best simple plan of all choices that are come to in time, and of which it is a plan."""
    found: list[tuple[int, Instance, Plan]] = []
    with contextlib.suppress(StoppedError):
        for one in in_time(instances_of(instance), deadline):
            if (simple := simple_plan(one, 0.0, deadline.left_s() or 0.0)) is not None:
                found.append((simple[0] * times_in_a_step(one), one, simple[1]))
    return min(found, key=lambda one: one[0])[1:] if found else None


def least_of(parts: Iterable[Instance], about: Instance, deadline: Deadline) -> int | None:
    """Return what needs no search and no plan of some instances undercuts, for one of them; None without time."""
    with contextlib.suppress(StoppedError):
        least = min(lower_bound(one) * times_in_a_step(one) for one in in_time(parts, deadline))
        return least // times_in_a_step(about)
    return None


def without_grids(instance: Instance) -> Instance:
    """Return an instance that asks about no grids whose groups hold several stages beside all other plans."""
    return replace(instance, training=replace(instance.training, dealt=()))


def _dealt(
    asked: Instance, of: Instance, found: Outcome, known: DealtGrids, limits: Limits
) -> tuple[Instance, Outcome, DealtGrids]:
    """Look at grids whose groups hold several stages once a good plan rules most of them out.

    ``known`` is the best of them so far, and what none undercuts. Return what was found, which is about these too
    then; where time does not suffice a note says so.
    """
    below = limits.below if found.objective is None else found.objective * times_in_a_step(of)
    values = [one for one in (known.grid and known.grid.step, below) if one is not None]
    dealt = DealtGrids.of(asked, min(values, default=None), limits)
    dealt = replace(dealt, grid=dealt.grid or known.grid, bound=max(dealt.bound, known.bound))
    if dealt.whole or dealt.grid:
        return replace(of, training=replace(of.training, dealt=asked.training.dealt)), found, dealt
    notes = ("interleaved grids are left out: no time to look at them", *found.notes)
    return of, replace(found, notes=notes), DealtGrids()


def _of_all(tell: Callable[[Progress], None], asked: Instance, dealt: DealtGrids, progress: Progress) -> None:
    """Tell of progress: what no plan of one stage a group undercuts is no bound of grids that are asked about."""
    if progress.whole and progress.bound is not None:
        bound = progress.bound if dealt.grid is None else min(progress.bound, dealt.bound)
        progress = replace(progress, bound=bound, instance=progress.instance or asked)
    tell(progress)


def _among_grids(found: Decision, dealt: DealtGrids) -> Decision:
    """Return what was chosen, or a plain grid whose groups hold several stages if that is better.

    The claim is about both: no plan whose groups hold one stage is better, and no such grid.
    """
    outcome, grid = found.outcome, dealt.grid
    nothing, least = outcome.proof is Proof.INFEASIBLE, outcome.bound or 0
    if grid is None or (outcome.objective is not None and outcome.objective <= grid.step):
        if dealt.whole or dealt.bound >= (outcome.objective or FORBIDDEN):
            return found
        proof = Proof.UNKNOWN if nothing else Proof.FEASIBLE if outcome.proof is Proof.OPTIMAL else outcome.proof
        return replace(found, outcome=replace(outcome, proof=proof, bound=min(least, dealt.bound)))
    least = grid.step if nothing else least
    bound = min(grid.step if dealt.whole else dealt.bound, least)
    others = (*[Ruled(found.instance, outcome, grid.step)] * (least >= grid.step), *found.others)
    note = f"a plain grid; with one stage a group no plan takes less than {outcome.amount(least)}"
    claim = Outcome(outcome.solver, Proof.FEASIBLE, grid.plan, grid.step, bound, outcome.seconds, (note,))
    return replace(found, instance=grid.instance, outcome=checked(grid.instance, claim), others=others)


def _ordered(ask: DecideAsk, instance: Instance, limits: Limits) -> tuple[Instance, Outcome]:
    if not has_other_orders(instance):
        return instance, ask(instance, limits)
    within = limits.within(BOUND_S)
    free = instance.model.free_order
    if free and limits.below and bound_of_all(instance, limits.below, within).bound_ns < limits.below:
        # That one order has nothing better does not mean that none has.
        limits = replace(limits, below=None)
    if free and limits.below is None:
        found = any_order(instance, ask, limits)
        return found.instance, _of_all_orders(found, limits)
    found = given_order(instance, ask(instance, limits), replace(within, below=limits.below))
    return instance, _of_all_orders(found, within) if free else _of_one_order(found)


def _of_one_order(found: AnyOrder) -> Outcome:
    """Return the claim about the given order, and beside it what holds for all."""
    outcome = found.outcome
    if outcome.objective is None:
        return replace(outcome, any_order_bound=found.bound) if outcome.proof is Proof.UNKNOWN else outcome
    _check_bound(found)
    return replace(outcome, any_order_bound=min(found.bound, outcome.objective))


def _of_all_orders(found: AnyOrder, limits: Limits) -> Outcome:
    """Return the outcome as a claim about all orders: what was proved of one of them proves nothing of others.

    Of several goals the first alone has a bound that holds for all orders, unless all of these were asked.
    """
    outcome, bound = found.outcome, found.bound
    if outcome.objective is None:
        if (
            outcome.proof is Proof.INFEASIBLE
            and not found.settled
            and not impossible(found.instance, limits.within(BOUND_S))
        ):
            notes = (*outcome.notes, f"no plan in {_searched(found)}; others may have one")
            return replace(outcome, proof=Proof.UNKNOWN, bound=bound, any_order_bound=bound, notes=notes)
        if outcome.proof is Proof.INFEASIBLE:
            return outcome
        return replace(outcome, bound=None if outcome.bound is None else bound, any_order_bound=bound)
    _check_bound(found)
    bound = min(bound, outcome.objective)
    notes = (*outcome.notes, *_words_decide(found))
    if outcome.proof is Proof.UNKNOWN or outcome.bound is None:
        known = None if outcome.bound is None else bound
        return replace(outcome, bound=known, any_order_bound=bound, notes=notes)
    if found.settled:
        further = tuple(replace(claim, bound=claim.value) for claim in outcome.further)
        proved, bound = True, outcome.objective
    else:
        further = tuple(replace(claim, bound=None) for claim in outcome.further)
        proved = bound == outcome.objective and not further
    proof = Proof.OPTIMAL if proved else Proof.FEASIBLE
    return replace(outcome, proof=proof, bound=bound, any_order_bound=bound, further=further, notes=notes)


def _check_bound(found: AnyOrder) -> None:
    """Raise FalseClaimError where a plan is below what no order is said to undercut."""
    outcome = found.outcome
    if outcome.proof in (Proof.OPTIMAL, Proof.FEASIBLE) and (outcome.objective or 0) < found.bound:
        limit, value = outcome.amount(found.bound), outcome.amount(outcome.objective or 0)
        raise FalseClaimError(f"no order of layers is said to be below {limit}, but there is a plan of {value}")


def _words_decide(found: AnyOrder) -> Iterator[str]:
    """Say how many orders were searched, what that gained, and how far what is proved goes."""
    outcome, before = found.outcome, found.first.objective
    if before is not None and (outcome.objective or 0) < before:
        yield f"{_searched(found)} searched; the best plan of the traced one has {outcome.amount(before)}"
    if found.settled:
        yield f"{_searched(found)} asked, which hold all plans: none has a better one"
    elif outcome.proof is Proof.OPTIMAL and not found.proved:
        yield f"proved of this order of the layers alone; {_searched(found)} searched"


def _searched(found: AnyOrder) -> str:
    return f"{found.asked} {plural(found.asked, 'order')} of the layers"
