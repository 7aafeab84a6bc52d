"""A plan that needs no table: what is left to say, with ``costs.lower_bound``, when time is over at once.

The whole model on one device, on the first servers of the line, and cut into nearly equal work for every server or
for every device; each in every way in which the devices may work together. What keeps every rule is compared at
the evaluator's price.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence

from formulation.evaluate import evaluate
from formulation.limits.deadline import NEVER, Deadline, StoppedError, in_time
from formulation.limits.size import TooLargeError
from formulation.problem.cuts import CutSpace
from formulation.problem.groups import Group, forms_on
from formulation.problem.instance import Instance
from formulation.problem.layers import FORMS, Layer, Split
from formulation.problem.modes import modes
from formulation.problem.plan import Plan, Span, Stage
from solvers.search.fitting import fitting_plans

PATIENCE_S, MOST_PATIENCE_S = 0.6, 0.9
"""After how long no further plan is tried if there is one, and if there is none."""


def simple_plan(
    instance: Instance, patience_s: float = PATIENCE_S, most_patience_s: float = MOST_PATIENCE_S
) -> tuple[int, Plan] | None:
    """Return the best simple plan that keeps every rule, with its value of the first goal; None if none does.

    None, too, where groups and times are too large to look at.

    Cost: one evaluation a try; no try begins after ``patience_s`` if there is a plan, else ``most_patience_s``.
    """
    best: tuple[int, Plan] | None = None
    some, most = NEVER.within(patience_s), NEVER.within(most_patience_s)
    fitting = _until(fitting_plans(instance, deadline=most), most)
    with contextlib.suppress(TooLargeError):
        for plan in _in_turn(fitting, simple_plans(instance)):
            if most.over() or (best is not None and some.over()):
                break
            found = evaluate(instance, plan)
            if found.feasible and found.objective is not None and (best is None or found.objective < best[0]):
                best = found.objective, plan
    return best


def _until(plans: Iterator[Plan], deadline: Deadline) -> Iterator[Plan]:
    """Yield plans for as long as there is time; whoever looks for the next one may be stopped."""
    with contextlib.suppress(StoppedError):
        yield from in_time(plans, deadline)


def _in_turn(*kinds: Iterator[Plan]) -> Iterator[Plan]:
    """Yield one of each kind after another, until there are no more."""
    for row in itertools.zip_longest(*kinds):
        yield from (plan for plan in row if plan is not None)


def simple_plans(instance: Instance) -> Iterator[Plan]:
    """Yield plans that are plans; their rules are not looked at."""
    ends = list(itertools.accumulate(server.devices for server in instance.servers))
    whole = [[end] for end in dict.fromkeys((ends[-1], 1, *ends))]
    parts = [ends, *whole[:2], list(range(1, instance.devices + 1)), *whole[2:]]
    for stops in parts:
        cuts = even_cuts(instance, len(stops))
        if len(cuts) == len(stops) + 1:
            for groups in _ways(instance, [0, *stops]):
                spans = (Span(first, stop) for first, stop in itertools.pairwise(cuts))
                pairs = zip(spans, groups, strict=True)
                yield Plan(tuple(Stage(span, group, _forms(instance, span, group)) for span, group in pairs))


def even_cuts(instance: Instance, stages: int) -> list[int]:
    """Return 0, possible cuts between runs of nearly equal work, and N; fewer where there are too few of them."""
    work = [f + b for f, b in zip(instance.forward_ns[0], instance.backward_ns[0], strict=True)]
    sums = list(itertools.accumulate(work, initial=0))
    cuts, at = [0], 1
    places = CutSpace.of(instance).places
    for stage in range(1, stages):
        # The first place at which so much of the work is done; one run at least is left for each stage behind.
        while at < len(places) - 1 - (stages - stage) and sums[places[at]] * stages < sums[-1] * stage:
            at += 1
        if at >= len(places) - 1:
            break
        cuts.append(places[at])
        at += 1
    return [*cuts, len(work)]


def _ways(instance: Instance, stops: Sequence[int]) -> Iterator[list[Group]]:
    """Yield the groups between the stops of the line, all in their first, second, ... way of working together."""
    spans = [(first, stop - first) for first, stop in itertools.pairwise(stops)]
    ways = {size: modes(instance, size) for _, size in spans}
    if not all(ways.values()):
        return
    for at in range(max(len(row) for row in ways.values())):
        yield [
            Group.on_line(instance, first, size, ways[size][min(at, len(ways[size]) - 1)]) for first, size in spans
        ]


def _forms(instance: Instance, span: Span, group: Group) -> tuple[int, ...]:
    return tuple(_form(row, group) for row in instance.layers[span.first : span.stop])


def _form(layer: Layer, group: Group) -> int:
    return FORMS[0] if layer.split is Split.FOLLOW else (forms_on(layer, group) or layer.allowed_forms)[0]
