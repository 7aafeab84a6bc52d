"""Every plan there is, priced by the evaluator: the answer that needs no argument, for small instances.

Plans are enumerated as the rules define them (formulation.constraints.rules): stages cover the layers in order; on
the line each takes the next devices and idle ones come last, under free placement it takes any that are left;
every layer takes one of its forms; where warm-ups are to be chosen and matter, each stage one of those that it may
have. Rules on what a plan needs, such as memory, are left to the evaluator. No
table, no recurrence and no bound is shared with the other solvers.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from formulation.constraints.rules import check_mode
from formulation.costs.lower_bound import lower_bound
from formulation.evaluate import evaluate
from formulation.outcome import Limits, Outcome, Progress, Proof, begin
from formulation.problem.cuts import CutSpace
from formulation.problem.groups import Group, forms_on
from formulation.problem.instance import Instance
from formulation.problem.layers import FORMS, Split
from formulation.problem.modes import Mode
from formulation.problem.options import Goal, Placement, Recompute
from formulation.problem.plan import Plan, Span, Stage
from solvers.search.support import Support

__all__: list[str] = []

Used = tuple[int, ...]
"""Devices used of each server."""

NAME = "brute_force"
MAX_PLANS = 200_000


def accepts(instance: Instance) -> Support:
    """Say what the enumeration makes of an instance. Cost: that of :func:`count_plans`."""
    try:
        _counted(instance, MAX_PLANS)
    except ValueError as error:
        return Support(reason=str(error))
    return Support(proves=True)


def solve(
    instance: Instance,
    limits: Limits | None = None,
    accept: Callable[[Plan], bool] | None = None,
    max_plans: int = MAX_PLANS,
) -> Outcome:
    """Return the best plan that keeps every rule and that ``accept`` accepts; the first such one in a tie.

    OPTIMAL if all plans were seen, INFEASIBLE if none was good; stopped before the end: FEASIBLE or UNKNOWN, with
    the bound of ``formulation.costs.lower_bound``, which a complete answer does not use. Raises ValueError where
    there are more than ``max_plans`` plans. Cost: one evaluation for each of :func:`count_plans` plans.
    """
    limits, start = begin(limits), time.perf_counter()
    number = _counted(instance, max_plans)
    best: tuple[int, Plan] | None = None
    complete = True
    for plan in plans(instance):
        if limits.deadline.over():
            complete = False
            break
        price = _price(instance, plan, accept)
        if price is not None and (best is None or price < best[0]):
            best = (price, plan)
            limits.progress(Progress(price, None))
    outcome = _outcome(best, complete, number, time.perf_counter() - start)
    return outcome if complete else replace(outcome, bound=lower_bound(instance))


def _counted(instance: Instance, most: int) -> int:
    """Return how many plans there are. Raises ValueError if they are more than ``most``."""
    total = len(instance.layers)
    # Cut points alone, before anything is counted exactly: counting the plans of a long model takes minutes.
    depths = (groups * instance.training.chunks for groups in _numbers_of_groups(instance))
    least = sum(math.comb(total - 1, depth - 1) for depth in depths)
    number = least if least > most else count_plans(instance)
    if number > most:
        said = f"over {least}" if number == least else number
        raise ValueError(f"{instance.name}: {said} plans to price one by one, expected at most {most}")
    return number


def count_plans(instance: Instance) -> int:
    """Return how many plans :func:`plans` yields, exactly, without making them.

    Cost: O(layers**2 x groups) for each way that servers can be used up, of which the line has one a device.
    """
    total = len(instance.layers)
    if instance.training.chunks > 1:
        return sum(
            math.prod(map(len, choices)) * math.prod(len(_runs(instance, span, groups[0])) for span in spans)
            for spans, groups, choices in _dealt(instance)
        )

    @cache
    def onward(first: int, used: Used, ahead: int) -> int:
        if first == total:
            return sum(1 for _ in _warm_ups(instance, ahead))
        return sum(
            math.prod(len(choice) for choice in _choices(instance, first, stop, group))
            * len(_runs(instance, Span(first, stop), group))
            * onward(stop, _with(used, group), ahead + 1)
            for stop in range(first + 1, total + 1)
            for group in _groups(instance, used)
        )

    return onward(0, (0,) * len(instance.servers), 0)


def plans(instance: Instance) -> Iterator[Plan]:
    """Yield every plan that keeps the rules on layers, devices and forms, in a fixed order."""
    if instance.training.chunks > 1:
        for spans, groups, choices in _dealt(instance):
            held = [groups[instance.training.rank_of(at, len(spans))] for at in range(len(spans))]
            runs = [_runs(instance, span, group) for span, group in zip(spans, held, strict=True)]
            for forms, again in itertools.product(itertools.product(*choices), itertools.product(*runs)):
                rows = zip(spans, held, again, strict=True)
                yield Plan(tuple(Stage(at, own, forms[at.first : at.stop], again=one) for at, own, one in rows))
        return
    for stages in _stages(instance, 0, (0,) * len(instance.servers)):
        for warm_ups in _warm_ups(instance, len(stages)):
            yield Plan(tuple(replace(one, warm_up=own) for one, own in zip(stages, warm_ups, strict=True)))


def _warm_ups(instance: Instance, stages: int) -> Iterator[tuple[int | None, ...]]:
    """Yield the forward passes before the first backward pass that stages may choose, if that matters.

    Each at least as many as there are stages from it on, none more than the stage before it. Fewer matter to no
    goal but the executed step, as each holds a micro-batch.
    """
    most = instance.training.micro_batches
    if not instance.training.chooses_warm_ups or Goal.STEP_TIME not in instance.goals:
        yield (None,) * stages
        return
    least = [min(stages - stage, most) for stage in range(stages)]
    for chosen in itertools.product(*(range(one, most + 1) for one in least)):
        if all(one >= other for one, other in itertools.pairwise(chosen)):
            yield chosen


Dealt = tuple[tuple[Span, ...], tuple[Group, ...], list[tuple[int, ...]]]
"""Spans of stages, groups that they are dealt out to, and the forms that each layer may take."""


def _numbers_of_groups(instance: Instance) -> Iterator[int]:
    """Yield on how many groups a plan may run, if there are enough layers."""
    chunks = instance.training.chunks
    for groups in range(1, min(instance.devices, len(instance.layers) // chunks) + 1):
        if chunks == 1 or (groups > 1 and instance.training.dealt_to(groups)):
            yield groups


def _dealt(instance: Instance) -> Iterator[Dealt]:
    """Yield every way to deal stages out to groups of one size and mode, round and round or as a V."""
    total, chunks = len(instance.layers), instance.training.chunks
    for number in _numbers_of_groups(instance):
        for groups in _alike(instance, number, (0,) * len(instance.servers)):
            for inner in itertools.combinations(range(1, total), number * chunks - 1):
                spans = tuple(Span(*ends) for ends in itertools.pairwise((0, *inner, total)))
                yield spans, groups, _choices(instance, 0, total, groups[0])


def _alike(instance: Instance, number: int, used: Used) -> Iterator[tuple[Group, ...]]:
    """Yield so many groups, one after another, that have as many devices and the same mode."""
    for group in _groups(instance, used):
        if number == 1:
            yield (group,)
            continue
        for rest in _alike(instance, number - 1, _with(used, group)):
            if (rest[0].devices, rest[0].mode) == (group.devices, group.mode):
                yield (group, *rest)


def _stages(instance: Instance, first: int, used: Used) -> Iterator[tuple[Stage, ...]]:
    """Yield every way to put the layers from ``first`` on the devices that are left."""
    total = len(instance.layers)
    if first == total:
        yield ()
        return
    for stop in range(first + 1, total + 1):
        for group in _groups(instance, used):
            for rest in _stages(instance, stop, _with(used, group)):
                span = Span(first, stop)
                for forms in itertools.product(*_choices(instance, first, stop, group)):
                    yield from (
                        (Stage(span, group, forms, again=again), *rest) for again in _runs(instance, span, group)
                    )


def _groups(instance: Instance, used: Used) -> Iterator[Group]:
    """Yield the groups that the next stage may have."""
    if instance.constraints.placement is Placement.LINE:
        place = sum(used)
        groups = (Group.on_line(instance, place, count) for count in range(1, instance.devices - place + 1))
    else:
        left = [range(server.devices - taken + 1) for server, taken in zip(instance.servers, used, strict=True)]
        counts = (tuple((at, count) for at, count in enumerate(row) if count) for row in itertools.product(*left))
        groups = (Group(row) for row in counts if row)
    most = instance.constraints.max_servers
    return (
        one
        for group in groups
        if most is None or len(group.counts) <= most
        for one in (replace(group, mode=mode) for mode in Mode.every(group.devices))
        if not any(check_mode(instance, 0, one))
    )


def _with(used: Used, group: Group) -> Used:
    """Return the devices used of each server, those of a group included."""
    taken = dict(group.counts)
    return tuple(count + taken.get(server, 0) for server, count in enumerate(used))


def _choices(instance: Instance, first: int, stop: int, group: Group) -> list[tuple[int, ...]]:
    """Return the forms that each layer of a stage may take."""
    return [
        FORMS[:1] if layer.split is Split.FOLLOW else forms_on(layer, group)
        for layer in instance.layers[first:stop]
    ]


def _runs(instance: Instance, span: Span, group: Group) -> list[tuple[Span, ...]]:
    """Return every set of blocks that a stage may compute again, each by itself; the empty one first."""
    if instance.constraints.recompute is not Recompute.BLOCKS or group.mode.recompute:
        return [()]
    inside = CutSpace.of(instance).blocks(span)
    return [some for count in range(len(inside) + 1) for some in itertools.combinations(inside, count)]


def _price(instance: Instance, plan: Plan, accept: Callable[[Plan], bool] | None) -> int | None:
    """Return the objective in ns of a plan that keeps the rules and is accepted, else None."""
    if accept is not None and not accept(plan):
        return None
    found = evaluate(instance, plan)
    return found.objective if found.feasible else None


def _outcome(best: tuple[int, Plan] | None, complete: bool, number: int, seconds: float) -> Outcome:
    notes = (f"{number} plans",) if complete else (f"{number} plans", "stopped early")
    if best is None:
        proof = Proof.INFEASIBLE if complete else Proof.UNKNOWN
        return Outcome(NAME, proof, seconds=seconds, notes=notes)
    proof = Proof.OPTIMAL if complete else Proof.FEASIBLE
    return Outcome(NAME, proof, best[1], best[0], best[0], seconds, notes)
