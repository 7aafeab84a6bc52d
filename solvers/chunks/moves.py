"""Better plans by small moves: an atom goes from one stage to another, and stages between are shifted by one."""

from __future__ import annotations

from collections.abc import Iterator

from formulation.limits.deadline import Deadline
from formulation.problem.cuts import CutSpace
from formulation.problem.instance import Instance
from solvers.chunks.case import Case, Dealt
from solvers.chunks.layouts import GroupLayout
from solvers.search.simple import even_cuts

__all__: list[str] = []


def first_plan(instance: Instance, layout: GroupLayout) -> Dealt | None:
    """Return stages of nearly equal work on the first groups that there are; None where these run out."""
    left = [server.devices for server in instance.servers]
    choice: list[int] = []
    for row in layout.choices:
        fits = (q for q, one in enumerate(row) if all(left[server] >= count for server, count in one.counts))
        chosen = next(fits, None)
        if chosen is None:
            return None
        choice.append(chosen)
        for server, count in row[chosen].counts:
            left[server] -= count
    stages, places = layout.ranks * instance.training.chunks, CutSpace.of(instance).places
    cuts = even_cuts(instance, stages)
    if len(cuts) < stages + 1:
        return None
    return Dealt(tuple(places.index(cut) for cut in cuts), tuple(choice))


def improved(case: Case, dealt: Dealt, value: int, deadline: Deadline) -> tuple[Dealt, int]:
    """Return a plan that no single move makes better, and its value; or the best so far after the deadline.

    ``value`` is that of ``dealt``, or above every value where it breaks a rule.
    """
    better = True
    while better:
        better = False
        for other in _neighbours(dealt):
            if deadline.over():
                return dealt, value
            found = case.value(other, value)
            if found is not None:
                dealt, value, better = other, found, True
    return dealt, value


def _neighbours(dealt: Dealt) -> Iterator[Dealt]:
    """Yield every plan in which one stage has an atom less and another one more."""
    stages = len(dealt.places) - 1
    for one in range(stages):
        for other in range(one + 1, stages):
            for step in (1, -1):
                moved = [place + step * (one < at <= other) for at, place in enumerate(dealt.places)]
                if moved[one] < moved[one + 1] and moved[other] < moved[other + 1]:
                    yield Dealt(tuple(moved), dealt.choice)
