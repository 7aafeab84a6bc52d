"""Why each cut is where it is: the plans with this cut elsewhere, and the one without it.

Which cut of one plan became which cut of another: in order, and moved as little as can be.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.reasons.plan_neighbours import Candidate, Neighbour, Neighbours, neighbours
from pipecut.solvers.reasons.priced_plans import PricedPlan, Pricing, put, regrouped

QUESTIONS = 6
"""How many are asked about a cut."""


@dataclass(frozen=True, slots=True)
class CutReason:
    """The cut before stage ``stage``, at layer ``place``, beside the same plan with it elsewhere.

    ``left`` and ``right`` are one layer away (None: the stage there would be empty), ``nearest_left`` and
    ``nearest_right`` at the nearest places where the model and the rules allow a cut; ``elsewhere`` is the best of
    all other places up to the next cuts, and ``without`` that of one stage in place of the two.
    """

    stage: int
    place: int
    left: Neighbour | None
    right: Neighbour | None
    nearest_left: Neighbour | None
    nearest_right: Neighbour | None
    elsewhere: Neighbours
    without: Neighbours


def cut_reasons(pricing: Pricing, base: PricedPlan) -> tuple[CutReason, ...]:
    """Return a reason for every cut. Cost: ``QUESTIONS`` a cut."""
    places = CutSpace.of(pricing.instance).places
    return tuple(_reason(pricing, base, places, cut) for cut in range(1, len(base.plan)))


def moved_cut(plan: Plan, stage: int, place: int) -> Plan:
    """Return the plan with the cut before a stage at another layer; layers keep their forms, or get form 0.

    Those that come to a stage whose replicas are not split have form 0.
    """
    before, behind = plan.stages[stage - 1], plan.stages[stage]
    forms, first, stop = (*before.forms, *behind.forms), before.span.first, behind.span.stop
    rows = list(plan.stages)
    rows[stage - 1] = _with_span(before, Span(first, place), forms[: place - first])
    rows[stage] = _with_span(behind, Span(place, stop), forms[place - first :])
    return Plan(tuple(rows))


def merged(plan: Plan, stage: int, kept: Stage) -> Plan:
    """Return the plan with a stage and the one before it as one stage on the devices of ``kept``."""
    before, behind = plan.stages[stage - 1], plan.stages[stage]
    span = Span(before.span.first, behind.span.stop)
    one = _with_span(kept, span, (*before.forms, *behind.forms))
    return Plan((*plan.stages[: stage - 1], one, *plan.stages[stage + 1 :]))


def _with_span(stage: Stage, span: Span, forms: tuple[int, ...]) -> Stage:
    whole = stage.group.tensor_parallel_degree == 1
    return stage.over(span, (0,) * len(span) if whole else forms)


def _reason(pricing: Pricing, base: PricedPlan, places: tuple[int, ...], cut: int) -> CutReason:
    plan = base.plan
    place = plan.stages[cut].span.first
    first, stop = plan.stages[cut - 1].span.first, plan.stages[cut].span.stop

    def at(other: int | None) -> Neighbour | None:
        if other is None or not first < other < stop:
            return None
        moved = _words(pricing, place, other), moved_cut(plan, cut, other), (cut - 1, cut)
        return neighbours(pricing, base, [moved]).best

    below, above = bisect.bisect_left(places, place), bisect.bisect_right(places, place)
    return CutReason(
        cut,
        place,
        left=at(place - 1),
        right=at(place + 1),
        nearest_left=at(places[below - 1]) if below else None,
        nearest_right=at(places[above]) if above < len(places) else None,
        elsewhere=neighbours(pricing, base, _elsewhere(pricing, plan, cut, places)),
        without=neighbours(pricing, base, _without(pricing, plan, cut)),
    )


def _elsewhere(pricing: Pricing, plan: Plan, cut: int, places: tuple[int, ...]) -> Iterator[Candidate]:
    """Yield the plan with a cut at every other place between its neighbours, the nearest first."""
    place = plan.stages[cut].span.first
    first, stop = plan.stages[cut - 1].span.first, plan.stages[cut].span.stop
    others = [one for one in places if first < one < stop and one != place]
    for other in sorted(others, key=lambda one: (abs(one - place), one)):
        yield _words(pricing, place, other), moved_cut(plan, cut, other), (cut - 1, cut)


def _without(pricing: Pricing, plan: Plan, cut: int) -> Iterator[Candidate]:
    """Yield the plan with the two stages made one, on the devices of either or of both."""
    before, behind = plan.stages[cut - 1], plan.stages[cut]
    for number, kept in ((cut - 1, before), (cut, behind)):
        words = f"one stage in place of stages {cut - 1} and {cut}, on the devices of stage {number}"
        yield words, merged(plan, cut, kept), (cut - 1,)
    counts = dict(before.group.counts)
    for server, count in behind.group.counts:
        counts[server] = counts.get(server, 0) + count
    words = f"one stage in place of stages {cut - 1} and {cut}, on the devices of both"
    one = merged(plan, cut, before)
    for what, stage in regrouped(pricing.instance, one.stages[cut - 1], counts):
        yield f"{words}{what}", put(one, cut - 1, stage), (cut - 1,)


def _words(pricing: Pricing, place: int, other: int) -> str:
    moved, side = abs(other - place), "left" if other < place else "right"
    return f"cut before {pricing.instance.layers[other].name}, {moved} layer{'s' * (moved > 1)} {side}"


def matched(cuts: Sequence[int], wanted: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs of indices into both, ascending, of which there are as many as the shorter one has.

    The sum of their distances is least; so a cut without a partner lies between the partners
    of its neighbours. Cost: O(len(cuts) x len(wanted)).
    """
    if len(cuts) > len(wanted):
        return [(one, other) for other, one in matched(wanted, cuts)]
    least = [[0] * (len(wanted) + 1)]
    for at, cut in enumerate(cuts):
        row: list[int] = []
        for other in range(len(wanted) + 1):
            if other <= at:
                row.append(-1)
                continue
            here = least[at][other - 1] + abs(cut - wanted[other - 1])
            row.append(here if row[-1] < 0 else min(here, row[-1]))
        least.append(row)
    pairs: list[tuple[int, int]] = []
    at, other = len(cuts), len(wanted)
    while at:
        if other > at and least[at][other] == least[at][other - 1]:
            other -= 1
            continue
        at, other = at - 1, other - 1
        pairs.append((at, other))
    return pairs[::-1]
