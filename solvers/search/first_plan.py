"""A first plan, so that a search never starts empty-handed: simple, fast, and owed to no dynamic programme.

Two candidates: the whole model on the first device, and stages of one device each, packed greedily along the
line under the smallest threshold for which packing succeeds (found by bisection). Where neither keeps the rules,
and of a large instance, plain grids (``solvers.search.grids``).

Simple plans that fit into memory, if luck has it: a quick "yes" to the question whether there is a plan.

First come plain grids. Then the line of devices, or a part of it that ends with a server, is cut into 1, 2, 3, ...
groups of nearly equal size, all of which hold their stages in the same mode; every layer takes the same form where
it can. Each stage takes as many layers as fit, from the front, where single blocks may be computed again also with
all of them.

A plan that needs no table: what is left to say, with ``costs.lower_bound``, when time is over at once.

The whole model on one device, on the first servers of the line, and cut into nearly equal work for every server or
for every device; each in every way in which the devices may work together. What keeps every rule is compared at
the evaluator's price.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.memory import capacity_bytes, stage_parts
from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER, Deadline, StoppedError, TooLargeError, in_time
from pipecut.formulation.problem.constraints import Goal, Recompute
from pipecut.formulation.problem.cuts import CutSpace, single_blocks
from pipecut.formulation.problem.groups import Group, forms_on, line
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FORMS, Split
from pipecut.formulation.problem.modes import ONE_COPY, modes
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.solvers.search.grids import Grids
from pipecut.solvers.search.pieces import ShortModel

LARGE = 10_000
"""Layers times devices from which a search may not come to a good plan by itself."""
Forms = tuple[int, ...]
"""Of all layers of the model."""


def balanced_plans(instance: Instance, deadline: Deadline = NEVER) -> Iterator[Plan]:
    """Yield the plain grids of an instance, those that promise most by the first goal first.

    Raises StoppedError after the deadline. Cost: that of ``solvers.search.grids``, of the model as it is.
    """
    grids = Grids(ShortModel.itself(instance), deadline)
    yield from (grids.plan(found) for found in grids.plans([instance.training]))


def is_large(instance: Instance) -> bool:
    """Tell whether a search of an instance may not come to a good plan by itself."""
    return len(instance.layers) * instance.devices >= LARGE


def divided(instance: Instance, stops: Sequence[int]) -> Iterator[list[Group]]:
    """Yield the groups between places of the line, in their first, second, ... mode; of one size all alike."""
    spans = [(first, stop - first) for first, stop in itertools.pairwise(stops)]
    ways = {size: modes(instance, size) for size in {size for _, size in spans}}
    for at in range(max(map(len, ways.values())) if all(ways.values()) else 0):
        yield [Group.on_line(instance, first, n, ways[n][min(at, len(ways[n]) - 1)]) for first, n in spans]


BALANCED, KEPT = 8, 4
"""How many plans of equal groups are priced at most, and of those that keep the rules."""


def first_plan(tables: Tables) -> Plan | None:
    """Return the best candidate that keeps every rule; None if none does (memory may forbid all of them).

    Cost: O(devices x layers) for each of some 40 thresholds.
    """
    instance = tables.instance
    candidates = [_plan(instance, cuts) for cuts in ([0, len(instance.layers)], _packed(tables)) if cuts]
    kept = list(_priced(instance, candidates))
    if not kept or (is_large(instance) and instance.goals[0] in (Goal.ITERATION_TIME, Goal.STEP_TIME)):
        balanced = itertools.islice(balanced_plans(instance), BALANCED)
        kept += itertools.islice(_priced(instance, balanced), KEPT)
    return min(kept, key=lambda pair: pair[0], default=(0, None))[1]


def _priced(instance: Instance, plans: Iterable[Plan]) -> Iterator[tuple[int, Plan]]:
    """Yield the plans that keep every rule, with their values."""
    for plan in plans:
        found = evaluate(instance, plan)
        if found.feasible and found.objective is not None:
            yield found.objective, plan


def _plan(instance: Instance, cuts: list[int]) -> Plan:
    mode = next(iter(modes(instance, 1)), ONE_COPY)
    stages = [
        Stage(Span(first, stop), Group.on_line(instance, index, 1, mode), (0,) * (stop - first))
        for index, (first, stop) in enumerate(itertools.pairwise(cuts))
    ]
    return Plan(tuple(stages))


def _packed(tables: Tables) -> list[int]:
    """Return cut points 0 .. N of the best greedy packing, none if the first device takes all anyway."""
    instance = tables.instance
    alone = [Group.on_line(instance, at, 1) for at in range(instance.devices)]
    links = [Group.link_between(instance, *pair) for pair in itertools.pairwise(alone)]
    # By device, what its link takes to the next at each place: behind the last device nothing.
    both = np.pad(tables.activation + tables.gradient, ((0, 1), (0, 0)))
    crossing = both[[*(tables.links.index(link) for link in links if link is not None), -1]]
    work = np.add(instance.forward_ns, instance.backward_ns).astype(np.int64)
    sums = np.pad(work.cumsum(axis=1), ((0, 0), (1, 0)))
    rows = sums[[instance.class_index(server) for server in line(instance)]]
    low, high, best = 0, int(rows[:, -1].max()), list[int]()
    while low < high:
        middle = (low + high) // 2
        cuts = _pack(rows, crossing, middle)
        low, high, best = (low, middle, cuts) if cuts else (middle + 1, high, best)
    return best


def _pack(rows: NDArray[np.int64], crossing: NDArray[np.int64], threshold_ns: int) -> list[int]:
    """Fill device after device up to the threshold, ending each stage at the last cut that is cheap enough."""
    cuts = [0]
    for row, boundary in zip(rows, crossing, strict=True):
        furthest = np.searchsorted(row, row[cuts[-1]] + threshold_ns, side="right")
        cuts.append(int(np.flatnonzero(boundary[:furthest] <= threshold_ns)[-1]))
        if cuts[-1] == len(row) - 1 or cuts[-1] <= cuts[-2]:
            return cuts if cuts[-1] > cuts[-2] else []
    return []


def fitting_plans(instance: Instance, *, thorough: bool = False, deadline: Deadline = NEVER) -> Iterator[Plan]:
    """Yield plans that keep the memory limit; other rules are not looked at. All devices, or thorough: parts too.

    Raises StoppedError after the deadline, also between plans that take long to find.
    Cost: O(devices * layers * log(layers)) for each of at most ``3 * devices`` tries in each mode, thorough: times
    the servers.
    """
    ends = list(itertools.accumulate(server.devices for server in instance.servers))
    yield from balanced_plans(instance, deadline)
    for used in (1, *ends) if thorough else ends[-1:]:
        for stages in range(1, min(used, len(instance.layers)) + 1):
            stops = [index * used // stages for index in range(stages + 1)]
            for groups, form in itertools.product(divided(instance, stops), FORMS):
                asked = None if groups[0].mode.recompute else instance.constraints.recompute
                for again in (False, True)[asked is Recompute.EVERY_BLOCK : 1 + bool(asked and asked.by_blocks)]:
                    plan = _filled(instance, groups, form, deadline, again=again)
                    if plan is not None:
                        yield plan


def _filled(
    instance: Instance, groups: Sequence[Group], form: int, deadline: Deadline, *, again: bool
) -> Plan | None:
    """Fill group after group; None if layers are left over, or too few to go round.

    ``again``: every block is computed again by itself.
    """
    space = CutSpace.of(instance)

    def made(span: Span, group: Group, forms: Forms) -> Stage:
        stage = Stage(span, group, forms[span.first : span.stop])
        return replace(stage, again=single_blocks(instance, span, group.mode)) if again else stage

    places, at = space.places, 0
    stages: list[Stage] = []
    by_size = {group.devices: _in_form(instance, group, form) for group in groups}
    for index, group in enumerate(in_time(groups, deadline)):
        forms = by_size[group.devices]
        low, high = at, len(places) - 1 - (len(groups) - index - 1)
        while low < high:
            middle = (low + high + 1) // 2
            span = Span(places[at], places[middle])
            if _fits(instance, made(span, group, forms), index, len(groups)):
                low = middle
            else:
                high = middle - 1
        if low == at:
            return None
        stages.append(made(Span(places[at], places[low]), group, forms))
        at = low
    return Plan(tuple(stages)) if at == len(places) - 1 else None


def _fits(instance: Instance, stage: Stage, index: int, stages: int) -> bool:
    """Tell whether a stage fits; its memory depends on the others only by their number."""
    if not instance.constraints.memory:
        return True
    held = stage_parts(instance, stage).times(Keeps.of(instance.training, index, stages), stage.group.mode)
    return held.total <= capacity_bytes(instance, stage.group)


def _in_form(instance: Instance, group: Group, form: int = -1) -> Forms:
    """Return the forms of all layers: this one where a layer may have it, else its first one, as by default."""
    choices = (
        FORMS[:1] if row.split is Split.FOLLOW else forms_on(row, group) or row.allowed_forms
        for row in instance.layers
    )
    return tuple(form if form in row else row[0] for row in choices)


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
    with contextlib.suppress(StoppedError, TooLargeError):
        for plan in _in_turn(fitting_plans(instance, deadline=most), simple_plans(instance)):
            if most.over() or (best is not None and some.over()):
                break
            found = evaluate(instance, plan)
            if found.feasible and found.objective is not None and (best is None or found.objective < best[0]):
                best = found.objective, plan
    return best


def _in_turn(*kinds: Iterator[Plan]) -> Iterator[Plan]:
    """Return one of each kind after another, until there are no more."""
    return (plan for row in itertools.zip_longest(*kinds) for plan in row if plan is not None)


def simple_plans(instance: Instance) -> Iterator[Plan]:
    """Yield plans that are plans; their rules are not looked at."""
    ends = list(itertools.accumulate(server.devices for server in instance.servers))
    whole = [[end] for end in dict.fromkeys((ends[-1], 1, *ends))]
    parts = [ends, *whole[:2], list(range(1, instance.devices + 1)), *whole[2:]]
    for stops in parts:
        cuts = even_cuts(instance, len(stops))
        if len(cuts) == len(stops) + 1:
            for groups in divided(instance, [0, *stops]):
                rows = ((Span(*ends), on) for ends, on in zip(itertools.pairwise(cuts), groups, strict=True))
                yield Plan(tuple(Stage(own, on, _in_form(instance, on)[own.first : own.stop]) for own, on in rows))


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
