"""Why is there no plan? The limits that clash, and the smallest changes that help.

A *clash* is a set of limits (``solvers.explain.loosening``) that no plan keeps together, and minimal: with any one
of them left out, the others can be kept. It is found by deletion: leave limits out, in blocks that are halved, for
as long as there is still no plan; those that cannot be left out are the clash. Every step is a proof by CP-SAT
(``solvers.explain.possible``). An instance can have several clashes; here they share no limit, and with all of
their limits left out there is a plan.

A *way out* of a clash loosens one of its limits. Numbers are loosened by the least amount, found by bisection down
to a byte or a stage: every plan that turns up says how much it needs, and "no plan with one less" is proved. All
other limits stay as they are, but for those of other clashes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from formulation.constraints.devices.memory import memory_slack
from formulation.constraints.loosening import Limit, Slack
from formulation.costs.amounts import scaled_size
from formulation.limits.deadline import StoppedError
from formulation.outcome import Limits, begin
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan
from solvers.explain.loosening import limits_of, without
from solvers.explain.possible import Possible

__all__ = ["Explanation", "explain"]

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
class Explanation:
    """Why there is no plan. ``complete``: every question was answered; else ``notes`` say what is open."""

    clashes: tuple[Clash, ...]
    complete: bool
    seconds: float
    notes: tuple[str, ...] = ()


def explain(instance: Instance, limits: Limits | None = None) -> Explanation:
    """Explain why an instance has no plan; an explanation without a clash says that it has one.

    Cost: about as many searches as there are limits, and some thirty for each number that is loosened.
    """
    began = time.monotonic()
    if instance.training.chunks > 1:
        note = (
            f"what clashes is not searched where groups hold {instance.training.chunks} stages; a plan needs two"
            " groups or more, whose number divides the micro-batches, and a run of layers for each of their stages"
        )
        return Explanation((), False, time.monotonic() - began, (note,))
    possible = Possible(begin(limits))
    clashes: list[Clash] = []
    notes: list[str] = []
    complete = True
    try:
        _find_clashes(instance, possible, clashes)
        for at, clash in enumerate(clashes):
            others = [limit for other in clashes if other is not clash for limit in other.limits]
            ways, answered = _ways_out(instance, others, clash.limits, possible)
            clashes[at] = replace(clash, ways_out=tuple(ways))
            complete = complete and answered
    except StoppedError:
        complete = False
    if not complete:
        notes.append("stopped early: not every question was answered")
    if complete and not clashes:
        notes.append("there is a plan, so nothing clashes")
    notes += [f"{len(clashes)} independent clashes: each needs a way out"] * (len(clashes) > 1)
    return Explanation(tuple(clashes), complete, time.monotonic() - began, tuple(notes))


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
    enough: list[tuple[list[Limit], Plan]] = []
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


def _way_out(instance: Instance, limits: Sequence[Limit], plan: Plan, possible: Possible) -> WayOut:
    """Return the least change of limits without which there is a plan: of one, or of several memories alike."""
    paths = tuple(limit.path for limit in limits)
    slack = (
        limits[0].slack
        if len(limits) == 1
        else memory_slack([str(limit.entry) for limit in limits], instance.constraints.memory_margin)
    )
    if slack is None:
        remedy = limits[0].remedy
        return WayOut(paths, f"leave out {limits[0].path}" if remedy is None else remedy(plan))
    low, high = _least(instance, slack, plan, possible)
    words = slack.say(high)
    if low < high:
        least, most = (_amount(number, slack.unit) for number in (low, high))
        words += f" is enough; the least that is lies between {least} and {most}"
    return WayOut(paths, words, high, low, slack.unit)


def _amount(number: int, unit: str) -> str:
    return scaled_size(number) if unit == "bytes" else f"{number:,} {unit}"


def _least(instance: Instance, slack: Slack, plan: Plan, possible: Possible) -> tuple[int, int]:
    """Bisect for the least amount; return limits of it, equal unless the time was over.

    Every third question asks for one less than what is known to be enough. A question gets a part of the time
    that is left; amounts that are too hard to tell are gone around, below and above in turn.
    """
    low, high, steps = 1, slack.used(instance, plan), 0
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
            high = slack.used(instance, found)
        if hard is not None and not low <= hard[0] <= hard[1] < high:
            hard = None
    return low, high
