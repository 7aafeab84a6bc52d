"""Every plan of a small instance, from the page of the formulation alone: an oracle for solvers.

It knows what a plan is (stages of layers in order, numbers of devices of every server, replicas, recomputation,
forms) and leaves every rule on it to the evaluator. Unlike the solvers it asks nobody which groups are possible,
takes no two servers for alike, and prices whole plans only. ``solvers.exhaustive`` is one of those that are
compared with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from formulation.evaluate import evaluate
from formulation.problem.groups import Group
from formulation.problem.instance import Instance
from formulation.problem.layers import Split
from formulation.problem.modes import Mode
from formulation.problem.options import Placement, Recompute
from formulation.problem.plan import Plan, Span, Stage


@dataclass(frozen=True, slots=True)
class Truth:
    """The best plan there is and its values of all goals in order (None: no plan keeps every rule)."""

    plan: Plan | None
    values: tuple[int, ...] | None
    plans: int


def truth(instance: Instance) -> Truth:
    """Price every plan."""
    best: tuple[tuple[int, ...], Plan] | None = None
    number = 0
    for plan in every_plan(instance):
        number += 1
        found = evaluate(instance, plan)
        if found.feasible and found.objective is not None:
            values = (found.objective, *found.further)
            if best is None or values < best[0]:
                best = values, plan
    return Truth(None, None, number) if best is None else Truth(best[1], best[0], number)


def more_plans_than(instance: Instance, most: int) -> bool:
    """Tell whether there are more plans than this."""
    return next(itertools.islice(every_plan(instance), most, None), None) is not None


def every_plan(instance: Instance) -> Iterator[Plan]:
    """Yield every plan that has devices for its stages, and many that break a rule."""
    for cuts in _cuts(len(instance.layers)):
        for held in _devices(instance, len(cuts) - 1, tuple(server.devices for server in instance.servers)):
            rows = zip(itertools.pairwise(cuts), held, strict=True)
            choices = [list(_stages(instance, Span(*span), counts)) for span, counts in rows]
            for stages in itertools.product(*choices):
                yield Plan(stages)


def _cuts(layers: int) -> Iterator[tuple[int, ...]]:
    """Yield all sets of cuts, both ends included."""
    for number in range(layers):
        for inner in itertools.combinations(range(1, layers), number):
            yield (0, *inner, layers)


def _devices(instance: Instance, stages: int, left: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield numbers of devices of every server for so many stages, none empty, no server overdrawn."""
    if stages == 0:
        yield ()
        return
    for own in itertools.product(*(range(count + 1) for count in left)):
        if not any(own) or (instance.constraints.placement is Placement.LINE and _leaves_a_gap(own, left)):
            continue
        after = tuple(count - taken for count, taken in zip(left, own, strict=True))
        if stages > 1 and not any(after):
            continue
        for others in _devices(instance, stages - 1, after):
            yield (own, *others)


def _leaves_a_gap(own: tuple[int, ...], left: tuple[int, ...]) -> bool:
    """Tell whether a stage skips devices of the line: it takes of a server while an earlier one has some left."""
    return any(
        own[server] and any(left[before] > own[before] for before in range(server)) for server in range(len(own))
    )


def _stages(instance: Instance, span: Span, counts: tuple[int, ...]) -> Iterator[Stage]:
    """Yield every way in which these devices may hold these layers."""
    held = tuple((server, count) for server, count in enumerate(counts) if count)
    devices, asked = sum(counts), instance.constraints.recompute
    again = {Recompute.NEVER: (False,), Recompute.ALLOWED: (False, True), Recompute.ALWAYS: (True,)}[asked]
    for degree in range(1, devices + 1):
        if devices % degree:
            continue
        if degree not in (instance.constraints.tensor_parallel_degrees or (devices,)):
            continue
        forms = [
            (0,) if degree == 1 or row.split is Split.FOLLOW else row.allowed_forms
            for row in instance.layers[span.first : span.stop]
        ]
        for chosen in itertools.product(*forms):
            for recompute in again:
                yield Stage(span, Group(held, Mode(devices // degree, recompute)), chosen)
