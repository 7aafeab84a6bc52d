"""Why is there no plan? The limits that clash, and the smallest changes that help.

A *clash* is a set of limits (``solvers.explain.loosening``) that no plan keeps together, and minimal: with any one
of them left out, the others can be kept. It is found by deletion: leave limits out, in blocks that are halved, for
as long as there is still no plan; those that cannot be left out are the clash. Every step is a proof by CP-SAT
(``solvers.explain.possible``). An instance can have several clashes; here they share no limit, and with all of
their limits left out there is a plan.

A *way out* of a clash loosens one of its limits. Numbers are loosened by the least amount, found by bisection down
to a byte or a stage: every plan that turns up says how much it needs, and "no plan with one less" is proved. All
other limits stay as they are, but for those of other clashes.

Before that, what a scenario leaves out unless it says otherwise (``solvers.explain.loosening.openings``) is tried:
each choice alone, and where none is enough all at once, less what is not needed. Such a way out comes with a plan.

Everything said is about all that the instance leaves open: "no plan" means with none of its choices.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from formulation.constraints.devices.memory import memory_slack
from formulation.constraints.loosening import Limit, Slack
from formulation.costs.amounts import scaled_size
from formulation.evaluate import evaluate
from formulation.limits.deadline import StoppedError
from formulation.outcome import FalseClaimError, GoalClaim, Limits, Outcome, Proof, begin
from formulation.problem.instance import Instance
from solvers.auto.solve import plan as best_plan
from solvers.choices.decide import decide
from solvers.choices.trainings import times_in_a_step
from solvers.explain.loosening import Opening, left_out, limits_of, opened, openings, without
from solvers.explain.possible import Possibility, Possible

NOTHING_CLASHES = "there is a plan, so nothing clashes"
"""What is noted where the limits can be kept after all."""
EXPLAIN = "explain"
"""Who a plan is by that only answers whether there is one."""
QUESTION_PARTS = 4
"""One question of a bisection gets the time that is left divided by this."""


@dataclass(frozen=True, slots=True)
class WayOut:
    """A change after which the clash is gone: of which limits, in words, and for numbers by how much.

    ``amount`` is None where a limit is left out altogether. ``least`` is a proved lower limit of the amount; it
    is the amount itself unless the search was stopped.
    """

    paths: tuple[str, ...]
    words: str
    amount: int | None = None
    least: int | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Clash:
    """Limits that cannot be kept together. ``minimal``: proved that any one of them can be left out."""

    limits: tuple[Limit, ...]
    minimal: bool
    ways_out: tuple[WayOut, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenedPlan:
    """A way out that opens choices which are off: what is written in the scenario, and a plan with its claim.

    ``instance`` has them open, and all that it leaves open chosen as in the plan.
    """

    lines: tuple[str, ...]
    instance: Instance
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why there is no plan. ``complete``: every question was answered; else ``notes`` say what is open.

    ``opened`` are the ways out that need no limit loosened. ``left_out`` names the choices that the instance
    leaves out, which were tried; ``hopeless``: proved that there is no plan with all of them open either.
    """

    clashes: tuple[Clash, ...]
    complete: bool
    seconds: float
    notes: tuple[str, ...] = ()
    opened: tuple[OpenedPlan, ...] = ()
    left_out: tuple[str, ...] = ()
    hopeless: bool = False


def explain(instance: Instance, limits: Limits | None = None, closed: Collection[str] = ()) -> Explanation:
    """Explain why an instance has no plan; an explanation without a clash says that it has one.

    ``closed`` are keys of a scenario that may not be opened. Cost: about as many searches as there are limits and
    choices that are off, and some thirty for each number that is loosened.
    """
    began = time.monotonic()
    possible = Possible(begin(limits))
    off = openings(instance, closed)
    ways, hopeless, answered = _opened_plans(instance, off, possible)
    told: dict[str, Any] = {"opened": ways, "left_out": left_out(off), "hopeless": hopeless}
    if all(one.chunks > 1 for one in instance.training.choices):
        note = (
            f"what clashes is not searched where groups hold {instance.training.chunks} stages; a plan needs two"
            " groups or more, whose number divides the micro-batches, and a run of layers for each of their stages"
        )
        return Explanation((), False, time.monotonic() - began, (note,), **told)
    clashes: list[Clash] = []
    notes: list[str] = []
    complete = True
    try:
        _find_clashes(instance, possible, clashes)
        for at, clash in enumerate(clashes):
            others = [limit for other in clashes if other is not clash for limit in other.limits]
            found, known = _ways_out(instance, others, clash.limits, possible)
            clashes[at] = replace(clash, ways_out=tuple(found))
            complete = complete and known
    except StoppedError:
        complete = False
    if not (complete and answered):
        notes.append("stopped early: not every question was answered")
    if complete and not clashes:
        notes.append(NOTHING_CLASHES)
    notes += [f"{len(clashes)} independent clashes: each needs a way out"] * (len(clashes) > 1)
    done = complete and answered
    return Explanation(tuple(clashes), done, time.monotonic() - began, tuple(notes), **told)


def _opened_plans(
    instance: Instance, off: Sequence[Opening], possible: Possible
) -> tuple[tuple[OpenedPlan, ...], bool, bool]:
    """Return plans with choices open that are off, whether none is proved to exist, and whether all is answered.

    Half of the time is for finding them, and a third of the rest for better ones. Simple plans are tried first, of
    each choice; a search is made where none of these is one. Once there is a way out, others need not be known.
    """
    asking, found, hopeless = possible.share(2), dict[int, Possibility](), dict[int, bool]()
    for quick in (True, False):
        for at, one in enumerate(off):
            if hopeless.get(at) or (found and not quick) or any(off[other].key == one.key for other in found):
                continue  # where the same key opened less, that is enough
            plan, hopeless[at] = _asked(instance, (one,), asking.share(len(off) + 1 - at), quick=quick)
            found |= {} if plan is None else {at: plan}
    ways = [((off[at],), plan) for at, plan in found.items()]
    if not found and off:
        plan, none = _asked(instance, off, asking, quick=False)
        if plan is None:
            return (), none, none
        ways = [_fewest(instance, off, plan, asking)]
    planning = possible.share(3)
    parts = range(len(ways), 0, -1)
    best = [_planned(instance, *one, planning.limits.share(part)) for part, one in zip(parts, ways, strict=True)]
    return tuple(best), not off, True


def _asked(
    instance: Instance, some: Sequence[Opening], possible: Possible, *, quick: bool
) -> tuple[Possibility | None, bool]:
    """Return a plan with some choices open, if one is found, and whether it is proved that there is none."""
    wider = opened(instance, some)
    if wider is None:
        return None, True
    try:
        plan = possible.plan(wider, likely=True, quick=quick)
    except StoppedError:
        return None, False
    return plan, plan is None


def _fewest(
    instance: Instance, off: Sequence[Opening], plan: Possibility, possible: Possible
) -> tuple[tuple[Opening, ...], Possibility]:
    """Leave choices out again, the last first, for as long as a plan is found in time."""
    kept = list(off)
    for at, one in enumerate(reversed(off)):
        fewer = [other for other in kept if other is not one]
        found, _ = _asked(instance, fewer, possible.share(len(off) - at), quick=False)
        if found is not None:
            kept, plan = fewer, found
    last = {one.key: one for one in kept}  # of one key the later opens more
    return tuple(last.values()), plan


def _planned(instance: Instance, some: Sequence[Opening], plan: Possibility, limits: Limits) -> OpenedPlan:
    """Return the best plan with some choices open that a search within limits finds, or the one that is known."""
    lines, wider = tuple(one.line for one in some), opened(instance, some) or instance
    known = evaluate(*plan)
    further = tuple(
        GoalClaim(goal, value, None, looked_at=False)
        for goal, value in zip(instance.goals[1:], known.further, strict=True)
    )
    first = Outcome(EXPLAIN, Proof.FEASIBLE, plan[1], known.objective, further=further, goals=instance.goals)
    with contextlib.suppress(ValueError, StoppedError):
        chosen, best = decide(wider, lambda one, within: best_plan(one, within, cross_check=False), limits)
        if best.proof is Proof.INFEASIBLE:
            raise FalseClaimError(
                f"{best.solver} claims that no plan exists with {'; '.join(lines)}, but there is one"
            )
        if best.proof is not Proof.UNKNOWN and _of_a_step(chosen, best) <= _of_a_step(plan[0], first):
            return OpenedPlan(lines, chosen, best)
    return OpenedPlan(lines, plan[0], first)


def _of_a_step(instance: Instance, outcome: Outcome) -> int:
    """Return the first goal of a plan for a whole step, so that numbers of micro-batches compare."""
    return (outcome.objective or 0) * times_in_a_step(instance)


def _find_clashes(instance: Instance, possible: Possible, clashes: list[Clash]) -> None:
    """Add clash after clash, each without the limits of those before. Raises StoppedError."""
    rest = list(limits_of(instance))
    every = tuple(rest)
    while rest:
        gone = [limit for limit in every if limit not in rest]
        if possible.plan(without(instance, gone)) is not None:
            return
        kept, minimal = _shrink(instance, gone, rest, possible)
        clashes.append(Clash(tuple(kept), minimal))
        if not minimal:
            raise StoppedError
        rest = [limit for limit in rest if limit not in kept]


def _shrink(
    instance: Instance, gone: Sequence[Limit], limits: Sequence[Limit], possible: Possible
) -> tuple[list[Limit], bool]:
    """Leave limits out, block by block, while no plan appears; return the others, and whether all were tried."""
    kept = list(limits)
    size = max(1, len(kept) // 2)
    try:
        while True:
            at = 0
            while at < len(kept):
                block = kept[at : at + size]
                dropped = [*gone, *(limit for limit in limits if limit not in kept), *block]
                if possible.plan(without(instance, dropped)) is None:
                    kept = [limit for limit in kept if limit not in block]
                else:
                    at += size
            if size == 1:
                return kept, True
            size //= 2
    except StoppedError:
        return kept, False


def _ways_out(
    instance: Instance, others: Sequence[Limit], limits: Sequence[Limit], possible: Possible
) -> tuple[list[WayOut], bool]:
    """Return what helps where the limits of other clashes are left out, and whether all was answered.

    First whether a change helps at all and how much of it surely does, then the least amounts, each in its share
    of the time.
    """
    base = without(instance, others)
    memories = [limit for limit in limits if limit.kind == "memory"]
    changes = [memories] * (len(memories) > 1) + [[limit] for limit in limits]
    enough: list[tuple[list[Limit], Possibility]] = []
    answered = True
    for at, change in enumerate(changes):
        try:
            plan = possible.share(len(changes) - at + 1).plan(without(instance, [*others, *change]), likely=True)
        except StoppedError:
            answered = False
            continue
        if plan is not None:
            enough.append((change, plan))
    shares = range(len(enough), 0, -1)
    ways = [_way_out(base, *one, possible.share(part)) for part, one in zip(shares, enough, strict=True)]
    return ways, answered and all(way.amount == way.least for way in ways)


def _way_out(instance: Instance, limits: Sequence[Limit], plan: Possibility, possible: Possible) -> WayOut:
    """Return the least change of limits without which there is a plan: of one, or of several memories alike."""
    paths = tuple(limit.path for limit in limits)
    slack = (
        limits[0].slack
        if len(limits) == 1
        else memory_slack([str(limit.entry) for limit in limits], instance.constraints.memory_margin)
    )
    if slack is None:
        remedy = limits[0].remedy
        return WayOut(paths, f"leave out {limits[0].path}" if remedy is None else remedy(plan[1]))
    low, high = _least(instance, slack, plan, possible)
    words = slack.say(high)
    if low < high:
        least, most = (_amount(number, slack.unit) for number in (low, high))
        words += f" is enough; the least that is lies between {least} and {most}"
    return WayOut(paths, words, high, low, slack.unit)


def _amount(number: int, unit: str) -> str:
    return scaled_size(number) if unit == "bytes" else f"{number:,} {unit}"


def _least(instance: Instance, slack: Slack, plan: Possibility, possible: Possible) -> tuple[int, int]:
    """Bisect for the least amount; return limits of it, equal unless the time was over.

    Every third question asks for one less than what is known to be enough. A question gets a part of the time
    that is left; amounts that are too hard to tell are gone around, below and above in turn.
    """
    low, high, steps = 1, _used(instance, slack, plan), 0
    hard: tuple[int, int] | None = None
    while low < high and not possible.limits.deadline.over():
        steps += 1
        if hard is None:
            middle = high - 1 if steps % 3 == 0 else (low + high) // 2
        else:
            middle = (low + hard[0]) // 2 if steps % 2 else (hard[1] + high) // 2
            if middle in hard:
                break
        try:
            found = possible.share(QUESTION_PARTS).plan(slack.by(instance, middle))
        except StoppedError:
            hard = (min(middle, hard[0]), max(middle, hard[1])) if hard else (middle, middle)
            continue
        if found is None:
            low = middle + 1
        else:
            high = min(high, _used(instance, slack, found))
        if hard is not None and not low <= hard[0] <= hard[1] < high:
            hard = None
    return low, high


def _used(instance: Instance, slack: Slack, found: Possibility) -> int:
    """Return how much more room a plan needs than an instance has, with what was chosen with it."""
    chosen, plan = found
    return slack.used(replace(instance, training=chosen.training), plan)
