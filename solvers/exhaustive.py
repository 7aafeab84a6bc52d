"""Every plan there is, priced by the evaluator: the answer that needs no argument, for small instances.

Plans are enumerated as the rules define them (formulation.constraints.rules): stages cover the layers in order; on
the line each takes the next devices and idle ones come last, under free placement it takes any that are left;
every layer takes one of its forms. Rules on what a plan needs, such as memory, are left to the evaluator. No
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
from formulation.costs.forms import forms_on
from formulation.costs.lower_bound import lower_bound
from formulation.evaluate import evaluate
from formulation.outcome import Limits, Outcome, Progress, Proof, begin
from formulation.problem.groups import Group, line_group
from formulation.problem.instance import Instance
from formulation.problem.layers import FORMS, Split
from formulation.problem.modes import every_mode
from formulation.problem.options import Placement
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
    least = sum(math.comb(total - 1, cuts) for cuts in range(min(total, instance.devices)))
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

    @cache
    def onward(first: int, used: Used) -> int:
        if first == total:
            return 1
        return sum(
            math.prod(len(choice) for choice in _choices(instance, first, stop, group.tensor_parallel_degree))
            * onward(stop, _with(used, group))
            for stop in range(first + 1, total + 1)
            for group in _groups(instance, used)
        )

    return onward(0, (0,) * len(instance.servers))


def plans(instance: Instance) -> Iterator[Plan]:
    """Yield every plan that keeps the rules on layers, devices and forms, in a fixed order."""
    for stages in _stages(instance, 0, (0,) * len(instance.servers)):
        yield Plan(stages)


def _stages(instance: Instance, first: int, used: Used) -> Iterator[tuple[Stage, ...]]:
    """Yield every way to put the layers from ``first`` on the devices that are left."""
    total = len(instance.layers)
    if first == total:
        yield ()
        return
    for stop in range(first + 1, total + 1):
        for group in _groups(instance, used):
            for rest in _stages(instance, stop, _with(used, group)):
                for forms in itertools.product(*_choices(instance, first, stop, group.tensor_parallel_degree)):
                    yield (Stage(Span(first, stop), group, forms), *rest)


def _groups(instance: Instance, used: Used) -> Iterator[Group]:
    """Yield the groups that the next stage may have."""
    if instance.constraints.placement is Placement.LINE:
        place = sum(used)
        groups = (line_group(instance, place, count) for count in range(1, instance.devices - place + 1))
    else:
        left = [range(server.devices - taken + 1) for server, taken in zip(instance.servers, used, strict=True)]
        counts = (tuple((at, count) for at, count in enumerate(row) if count) for row in itertools.product(*left))
        groups = (Group(row) for row in counts if row)
    most = instance.constraints.max_servers
    return (
        one
        for group in groups
        if most is None or len(group.counts) <= most
        for one in (replace(group, mode=mode) for mode in every_mode(group.devices))
        if not any(check_mode(instance, 0, one))
    )


def _with(used: Used, group: Group) -> Used:
    """Return the devices used of each server, those of a group included."""
    taken = dict(group.counts)
    return tuple(count + taken.get(server, 0) for server, count in enumerate(used))


def _choices(instance: Instance, first: int, stop: int, degree: int) -> list[tuple[int, ...]]:
    """Return the forms that each layer of a stage may take."""
    return [
        FORMS[:1] if layer.split is Split.FOLLOW else forms_on(layer.allowed_forms, degree)
        for layer in instance.layers[first:stop]
    ]


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
