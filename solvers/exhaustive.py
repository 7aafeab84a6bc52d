"""Every plan there is, priced by the evaluator: the answer that needs no argument, for small instances.

Plans are those that the rules define (``formulation.constraints.rules``). No table, no recurrence
and no bound is shared with the other solvers.

Stages cover the layers in order; on the line each takes the next devices and idle ones come last, under free
placement it takes any that are left; every layer takes one of its forms; where warm-ups are to be chosen and
matter, each stage one of those that it may have. Rules on what a plan needs, such as memory, are left to the
evaluator.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from pipecut.formulation.constraints.rules import check_mode
from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome, Progress, Proof, begin
from pipecut.formulation.problem.constraints import Goal, Placement, Recompute
from pipecut.formulation.problem.cuts import CutSpace, single_blocks
from pipecut.formulation.problem.groups import Group, forms_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FORMS, Split
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.search.support import Support

Used = tuple[int, ...]
"""Devices used of each server."""


def _freely() -> None:
    """Let any number be looked at."""


def plans(instance: Instance) -> Iterator[Plan]:
    """Yield every plan that keeps the rules on layers, devices and forms, in a fixed order."""
    if instance.training.chunks > 1:
        for spans, groups, choices in dealt(instance):
            held = [groups[instance.training.rank_of(at, len(spans))] for at in range(len(spans))]
            runs = [runs_of(instance, span, group) for span, group in zip(spans, held, strict=True)]
            for forms, again in itertools.product(itertools.product(*choices), itertools.product(*runs)):
                rows = zip(spans, held, again, strict=True)
                yield Plan(tuple(Stage(at, own, forms[at.first : at.stop], again=one) for at, own, one in rows))
        return
    for stages in _stages(instance, 0, (0,) * len(instance.servers)):
        for warm_ups in warm_ups_of(instance, len(stages)):
            yield Plan(tuple(replace(one, warm_up=own) for one, own in zip(stages, warm_ups, strict=True)))


def warm_ups_of(instance: Instance, stages: int) -> Iterator[tuple[int | None, ...]]:
    """Yield the forward passes before the first backward pass that stages may choose, if that matters.

    Each at least as many as there are stages from it on, none more than the stage before it. Fewer matter to no
    goal but the executed step, as each holds a micro-batch.
    """
    most = instance.training.micro_batches
    if not instance.training.chooses_warm_ups or Goal.STEP_TIME not in instance.goals:
        yield (None,) * stages
        return
    yield from _falling([min(stages - stage, most) for stage in range(stages)], most)


def _falling(least: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """Yield numbers of at least these, none more than the one before it, the first at most ``most``."""
    if not least:
        yield ()
        return
    for first in range(least[0], most + 1):
        for rest in _falling(least[1:], first):
            yield (first, *rest)


Dealt = tuple[tuple[Span, ...], tuple[Group, ...], list[tuple[int, ...]]]
"""Spans of stages, groups that they are dealt out to, and the forms that each layer may take."""


def numbers_of_groups(instance: Instance) -> Iterator[int]:
    """Yield on how many groups a plan may run, if there are enough layers."""
    chunks = instance.training.chunks
    for groups in range(1, min(instance.devices, len(instance.layers) // chunks) + 1):
        if chunks == 1 or (groups > 1 and instance.training.dealt_to(groups)):
            yield groups


def dealt(instance: Instance, look: Callable[[], None] = _freely) -> Iterator[Dealt]:
    """Yield every way to deal stages out to groups of one size and mode, round and round or as a V."""
    total, chunks = len(instance.layers), instance.training.chunks
    for number in numbers_of_groups(instance):
        for groups in _alike(instance, number, (0,) * len(instance.servers), look):
            choices = choices_of(instance, 0, total, groups[0])
            for inner in itertools.combinations(range(1, total), number * chunks - 1):
                spans = tuple(Span(*ends) for ends in itertools.pairwise((0, *inner, total)))
                yield spans, groups, choices


def _alike(instance: Instance, number: int, used: Used, look: Callable[[], None]) -> Iterator[tuple[Group, ...]]:
    """Yield so many groups, one after another, that have as many devices and the same mode."""
    for group in groups_left(instance, used, look):
        if number == 1:
            yield (group,)
            continue
        for rest in _alike(instance, number - 1, used_with(used, group), look):
            if (rest[0].devices, rest[0].mode) == (group.devices, group.mode):
                yield (group, *rest)


def _stages(instance: Instance, first: int, used: Used) -> Iterator[tuple[Stage, ...]]:
    """Yield every way to put the layers from ``first`` on the devices that are left."""
    total = len(instance.layers)
    if first == total:
        yield ()
        return
    groups = [*groups_left(instance, used)]
    for stop in range(first + 1, total + 1) if groups else ():
        for group in groups:
            for rest in _stages(instance, stop, used_with(used, group)):
                span = Span(first, stop)
                for forms in itertools.product(*choices_of(instance, first, stop, group)):
                    yield from (
                        (Stage(span, group, forms, again=again), *rest) for again in runs_of(instance, span, group)
                    )


def groups_left(instance: Instance, used: Used, look: Callable[[], None] = _freely) -> Iterator[Group]:
    """Yield the groups that the next stage may have; ``look`` is called before each one that may be none."""
    if instance.constraints.placement is Placement.LINE:
        place = sum(used)
        groups = (Group.on_line(instance, place, count) for count in range(1, instance.devices - place + 1))
    else:
        left = [range(server.devices - taken + 1) for server, taken in zip(instance.servers, used, strict=True)]
        counts = (tuple((at, count) for at, count in enumerate(row) if count) for row in itertools.product(*left))
        groups = (Group(row) for row in counts if row)
    most = instance.constraints.max_servers
    for group in groups:
        look()
        if most is not None and len(group.counts) > most:
            continue
        for mode in Mode.every(group.devices):
            look()
            one = replace(group, mode=mode)
            if not any(check_mode(instance, 0, one)):
                yield one


def used_with(used: Used, group: Group) -> Used:
    """Return the devices used of each server, those of a group included."""
    taken = dict(group.counts)
    return tuple(count + taken.get(server, 0) for server, count in enumerate(used))


def choices_of(instance: Instance, first: int, stop: int, group: Group) -> list[tuple[int, ...]]:
    """Return the forms that each layer of a stage may take."""
    return [
        FORMS[:1] if layer.split is Split.FOLLOW else forms_on(layer, group)
        for layer in instance.layers[first:stop]
    ]


def runs_of(instance: Instance, span: Span, group: Group) -> list[tuple[Span, ...]]:
    """Return every set of blocks that a stage may compute again, each by itself; the empty one first."""
    inside = single_blocks(instance, span, group.mode)
    if instance.constraints.recompute is Recompute.EVERY_BLOCK:
        return [inside]
    return [some for count in range(len(inside) + 1) for some in itertools.combinations(inside, count)]


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
        """Return the number of :func:`solvers.exhaustive.runs_of`."""
        free = self.instance.constraints.recompute is Recompute.BLOCKS
        return 1 << free * len(single_blocks(self.instance, span, group.mode))


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
