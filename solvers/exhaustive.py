"""Every plan there is, priced by the evaluator: the answer that needs no argument, for small instances.

Plans are those of ``solvers.every_plan``. No table, no recurrence and no bound is shared with the other solvers.
"""

from __future__ import annotations

import bisect
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome, Progress, Proof, begin
from pipecut.formulation.problem.constraints import Recompute
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan, Span
from pipecut.solvers.every_plan import (
    Used,
    choices_of,
    dealt,
    groups_left,
    numbers_of_groups,
    plans,
    used_with,
    warm_ups_of,
)
from pipecut.solvers.search.support import Support

NAME = "brute_force"
MAX_PLANS = 200_000
MAX_GROUPS = 50_000
"""How many groups of devices are looked at to count plans: about a second."""
LARGE = 10**12
"""From here on a number of plans is told as a power of two."""


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
    the bound of ``formulation.costs.bounds``, which a complete answer does not use. Raises ValueError where
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
            limits.progress(Progress(price, None, plan))
    outcome = _outcome(best, complete, number, time.perf_counter() - start)
    return outcome if complete else replace(outcome, bound=lower_bound(instance))


def _counted(instance: Instance, most: int) -> int:
    """Return how many plans there are. Raises ValueError if these exceed ``most``, or groups MAX_GROUPS."""
    total, least = len(instance.layers), 0
    # Cut points alone, before any group is looked at.
    for groups in numbers_of_groups(instance):
        least += math.comb(total - 1, groups * instance.training.chunks - 1)
        if least > most:
            break
    number = least if least > most else count_plans(instance, most)
    if number > most:
        raise ValueError(
            f"{instance.name}: at least {_rounded(number)} plans to price one by one, expected at most {most}"
        )
    return number


def _rounded(number: int) -> str:
    return str(number) if number < LARGE else f"2^{number.bit_length() - 1}"


def count_plans(instance: Instance, most: int | None = None) -> int:
    """Return how many plans :func:`plans` yields, exactly, without making them; or some number above ``most``.

    Raises ValueError, only with ``most``, where more than MAX_GROUPS groups of devices had to be looked at.
    Cost: O(layers**2 x groups) for each way that servers can be used up, of which the line has one a device; with
    ``most`` it ends as soon as there are more.
    """
    return _Count(instance, math.inf if most is None else most).whole()


class _Count:
    """How many plans there are; once they are more than ``most`` any number above it will do."""

    def __init__(self, instance: Instance, most: float) -> None:
        self.instance, self.most = instance, most
        self.looked_at = 0
        self.places = CutSpace.of(instance).places
        self.onward = cache(self._onward)
        self.forms = cache(self._forms)
        self.groups = cache(lambda used: [*groups_left(instance, used, self._look)])

    def whole(self) -> int:
        """Return the number of all plans."""
        if self.instance.training.chunks == 1:
            return self.onward(0, (0,) * len(self.instance.servers), 0)
        found = 0
        for spans, groups, choices in dealt(self.instance, self._look):
            again = math.prod(self._again(span, groups[0]) for span in spans)
            found += math.prod(map(len, choices)) * again
            if found > self.most:
                break
        return found

    def _look(self) -> None:
        self.looked_at += 1
        if self.looked_at > MAX_GROUPS and self.most < math.inf:
            raise ValueError(
                f"{self.instance.name}: too many plans to price, of more than {MAX_GROUPS} groups of devices"
            )

    def _onward(self, first: int, used: Used, ahead: int) -> int:
        """Return in how many ways the layers from ``first`` go on with so many stages ``ahead`` of them."""
        total, found = len(self.instance.layers), 0
        if first == total:
            ways = warm_ups_of(self.instance, ahead)
            return sum(1 for _ in (ways if self.most == math.inf else itertools.islice(ways, int(self.most) + 1)))
        for group in self.groups(used):
            after = used_with(used, group)
            forms, to_the_end = self.forms(group)
            ends: Iterable[tuple[int, int]]
            if sum(after) == self.instance.devices:  # whoever comes last takes all layers that are left
                ends = ((total, to_the_end[first]),)
            else:
                ends = zip(range(first + 1, total + 1), self._products(forms[first:]), strict=True)
            for stop, ways in ends:
                if ways:
                    again = self._again(Span(first, stop), group)
                    found += ways * again * self.onward(stop, after, ahead + 1)
                if found > self.most:
                    return found
        return found

    def _forms(self, group: Group) -> tuple[list[int], list[int]]:
        """Return how many forms each layer may take, and of each layer and those behind it together."""
        each = [len(one) for one in choices_of(self.instance, 0, len(self.instance.layers), group)]
        return each, [*self._products(each[::-1])][::-1]

    def _products(self, numbers: Iterable[int]) -> Iterator[int]:
        """Yield products of the first 1, 2, ... numbers."""
        product = 1
        for number in numbers:
            product *= number
            if product > self.most:
                product = int(self.most) + 1
            yield product

    def _again(self, span: Span, group: Group) -> int:
        """Return the number of :func:`solvers.every_plan.runs_of`."""
        if self.instance.constraints.recompute is not Recompute.BLOCKS or group.mode.recompute:
            return 1
        begin = bisect.bisect_left(self.places, span.first)
        end = bisect.bisect_right(self.places, span.stop) - 1
        return 1 << max(0, end - begin)


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
