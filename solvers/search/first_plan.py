"""A first plan, so that a search never starts empty-handed: simple, fast, and owed to no dynamic programme.

Two candidates: the whole model on the first device, and stages of one device each, packed greedily along the
line under the smallest threshold for which packing succeeds (found by bisection). Where neither keeps the rules,
and for the time of a step, plans of equal groups in equal modes (``solvers.search.first_plan``).

Plans of equal groups in equal modes, those that promise most first, with cuts that divide the work evenly.

What a plan promises is told by one pass over the tables: what all layers take on a group of its kind, divided by
the stages, and a boundary. Groups are a server, a part of one, or several servers; the forms of all layers are the
same where they may be, or Megatron-LM's. Cuts are then made for those that are wanted, as far as memory lets them.

Simple plans that fit into memory, if luck has it: a quick "yes" to the question whether there is a plan.

The line of devices, or a part of it that ends with a server, is cut into 1, 2, 3, ... groups of nearly equal
size, all of which hold their stages in the same mode; every layer takes the same form where it can. First stages
get nearly equal work, as far as memory lets them (``solvers.search.first_plan``); then each takes as many layers
as fit, from the front, where single blocks may be computed again also with all of them.

A plan that needs no table: what is left to say, with ``costs.lower_bound``, when time is over at once.

The whole model on one device, on the first servers of the line, and cut into nearly equal work for every server or
for every device; each in every way in which the devices may work together. What keeps every rule is compared at
the evaluator's price.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.bulk.crossing import crossing_bytes
from pipecut.formulation.costs.megatron_forms import forms_in
from pipecut.formulation.costs.memory import MemoryParts, capacity_bytes, received_bytes, stage_parts
from pipecut.formulation.costs.tables import Tables, build_tables
from pipecut.formulation.costs.times import layout_form
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER, Deadline, StoppedError, TooLargeError, in_time
from pipecut.formulation.problem.constraints import Goal, Recompute
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, GroupKind, forms_on, line
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.layers import FORMS, Axis, Layer, Split
from pipecut.formulation.problem.modes import ONE_COPY, modes
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.problem.units import ceil_fraction
from pipecut.formulation.schedules.keeps import Keeps

HALVINGS = 24
"""How exactly work is balanced: to one part in 2**24 of all."""
GRIDS = 4
"""How many plans of equal groups are priced for a choice of the training."""
GRIDS_FROM = 10_000
"""Layers times devices from which a search begins with such plans, as it may not come to one by itself."""
GRIDS_PART, GRIDS_S = 4, 15.0
"""They may take one part in so many of the time, and so long at most."""
Forms = tuple[int, ...]
"""Of all layers of the model."""


def balanced_plans(instance: Instance, deadline: Deadline = NEVER) -> Iterator[Plan]:
    """Yield plans of nearly equal work on equal groups, those that promise most by the first goal first.

    What fits is worked out from sums over layers, in which a layer that follows another is counted at the larger
    of what it may hold, so a plan that fits barely can be missed. Raises StoppedError after the deadline.
    Cost: tables of the kinds of equal groups, and O(layers) for each plan.
    """
    known = Known(instance, deadline)
    sums: dict[tuple[GroupKind, Forms], _Sums] = {}
    for _, groups, forms in sorted(_promising(instance, deadline), key=lambda one: one[0]):
        key = (GroupKind.of(instance, groups[0]), forms)
        if key not in sums:
            sums[key] = _Sums.of(known, groups[0], forms)
        cuts = _balanced(sums[key], groups)
        if cuts is not None:
            spans = (Span(first, stop) for first, stop in itertools.pairwise(cuts))
            pairs = zip(spans, groups, strict=True)
            yield Plan(tuple(stage_of(span, group, forms) for span, group in pairs))


def best_grid(instance: Instance, deadline: Deadline) -> tuple[int, Plan] | None:
    """Return the best of a few balanced plans that differ in stages, replicas or recomputation, with its value.

    None where none keeps the rules, time was over before, or the instance is so small that any search comes to
    such a plan by itself. Cost: as :func:`balanced_plans`, and GRIDS prices.
    """
    if not is_large(instance):
        return None
    best: tuple[int, Plan] | None = None
    seen: set[tuple[int, int, object]] = set()
    with contextlib.suppress(StoppedError, TooLargeError):
        for plan in in_time(balanced_plans(instance, deadline), deadline):
            mode = plan.stages[0].group.mode
            alike = len(plan), mode.replicas, mode.recompute
            if alike in seen:
                continue
            seen.add(alike)
            found = evaluate(instance, plan)
            if found.feasible and found.objective is not None and (best is None or found.objective < best[0]):
                best = found.objective, plan
            if len(seen) == GRIDS:
                break
    return best


def is_large(instance: Instance) -> bool:
    """Tell whether a search of an instance may not come to a good plan by itself."""
    return len(instance.layers) * instance.devices >= GRIDS_FROM


def divided(instance: Instance, used: int, stages: int) -> Iterator[list[Group]]:
    """Yield so many groups of nearly equal size of the first devices of the line, all in one mode."""
    cuts = [index * used // stages for index in range(stages + 1)]
    sizes = [stop - first for first, stop in itertools.pairwise(cuts)]
    for mode in modes(instance, sizes[0]):
        if all(mode in modes(instance, size) for size in set(sizes)):
            yield [Group.on_line(instance, first, size, mode) for first, size in zip(cuts, sizes, strict=False)]


def stage_of(span: Span, group: Group, forms: Sequence[int]) -> Stage:
    """Return the stage of these layers, in those of the forms of all layers that are its own."""
    return Stage(span, group, tuple(forms[span.first : span.stop]))


def _promising(instance: Instance, deadline: Deadline) -> Iterator[tuple[int, list[Group], Forms]]:
    """Yield groups and forms with the value of the first goal that they promise, if work divides evenly."""
    rows = [
        groups
        for size in _sizes(instance)
        for groups in divided(instance, size * _stages(instance, size), _stages(instance, size))
    ]
    flat = [group for groups in rows for group in groups]
    kinds = GroupKind.all_of(instance, flat)
    some = dict(zip(kinds, flat, strict=True))
    tables = build_tables(instance, tuple(some.values()), deadline)
    number = dict(zip(some, tables.kind_of, strict=True))
    places = list(CutSpace.of(instance).places[1:-1]) or [0]
    crossing = int(np.median((tables.activation + tables.gradient)[:, places])) if len(tables.links) else 0
    pairs, offered = iter(kinds), _wanted(instance)
    for groups in rows:
        row = list(itertools.islice(pairs, len(groups)))
        for forms in _allowed(tables, number[row[0]], offered):
            whole = {kind: _whole_ns(tables, number[kind], forms) for kind in set(row)}
            if max(whole.values()) < FORBIDDEN:
                times = [whole[kind] // len(groups) for kind in row]
                yield _promised(instance, times, crossing), groups, forms


def _sizes(instance: Instance) -> list[int]:
    """Return the sizes of groups: whole servers, and parts of them, that leave none over."""
    servers = [server.devices for server in instance.servers]
    sizes = [size for size in range(min(servers), 0, -1) if all(one % size == 0 for one in servers)]
    if len(set(servers)) == 1:
        most = instance.constraints.max_servers or len(servers)
        sizes += [servers[0] * one for one in range(2, most + 1) if len(servers) % one == 0]
    asked = instance.demands.devices_per_stage
    return [size for size in sizes if not asked or size in asked]


def _stages(instance: Instance, size: int) -> int:
    return min(instance.devices // size, CutSpace.of(instance).stops)


def _wanted(instance: Instance) -> list[NDArray[np.int64]]:
    """Return forms of all layers, whether they are allowed or not: each the same, and Megatron-LM's.

    The latter with sequence parallelism too, where layers may take its forms.
    """
    total = len(instance.layers)
    alike = [np.full(total, form) for form in FORMS]
    sequence = (False, True)[: 1 + (Axis.SEQUENCE in instance.demands.splits)]
    return [*alike, *(np.array(forms_in(instance, [Span(0, total)], sequence=one)) for one in sequence)]


def _allowed(tables: Tables, kind: int, wanted: Sequence[NDArray[np.int64]]) -> Iterator[Forms]:
    """Yield wanted forms on a kind of groups, each once; a layer that has no such form takes its first one."""
    decides = np.array([layer.split is not Split.FOLLOW for layer in tables.instance.layers])
    if tables.kinds[kind].tensor_parallel_degree == 1:
        yield (FORMS[0],) * len(decides)
        return
    allowed = tables.inside[kind] < FORBIDDEN
    found: dict[Forms, None] = {}
    for row in wanted:
        there = np.minimum(
            row, allowed.shape[1] - 1
        )  # where no layer may take it, tables have no place for a form
        fits = (row == there) & allowed[np.arange(len(row)), there]
        kept = np.where(fits, row, allowed.argmax(axis=1))
        found[tuple(np.where(decides, kept, FORMS[0]).tolist())] = None
    yield from found


def _whole_ns(tables: Tables, kind: int, forms: Forms) -> int:
    """Return what one stage of all layers takes; FORBIDDEN where a layer has no such form."""
    instance = tables.instance
    own = [forms[at if source is None else source] for at, source in enumerate(instance.sources)]
    inside = tables.inside[kind][np.arange(len(own)), own]
    if (inside >= FORBIDDEN).any():
        return FORBIDDEN
    changes = tables.between[kind]
    between = sum(
        int(changes[at, own[edge.source], own[edge.consumer]]) for at, edge in enumerate(instance.form_edges)
    )
    return min(FORBIDDEN, int(tables.compute[kind].sum()) + int(inside.sum()) + between)


def _promised(instance: Instance, times: list[int], crossing_ns: int) -> int:
    """Return the first goal of stages that take these times; 0 for goals that are no times."""
    training, goal = instance.training, instance.goals[0]
    if goal not in (Goal.BOTTLENECK, Goal.PERIOD, Goal.ITERATION_TIME, Goal.STEP_TIME):
        return 0
    slowest = max(*times, crossing_ns) if len(times) > 1 else times[0]
    if goal in (Goal.BOTTLENECK, Goal.PERIOD) or not training.schedule.flushes:
        return slowest
    latency = sum(times) + (len(times) - 1) * crossing_ns
    naive = training.schedule is Schedule.NAIVE
    return training.micro_batches * latency if naive else latency + (training.micro_batches - 1) * slowest


class Known:
    """What layers hold on the devices of stages, found once for layers that are alike; until a deadline."""

    def __init__(self, instance: Instance, deadline: Deadline) -> None:
        self.instance, self.deadline = instance, deadline
        self._parts: dict[GroupKind, dict[tuple[object, ...], MemoryParts]] = {}
        sizes = (instance.parameter_bytes, instance.gradient_bytes, instance.optimizer_bytes)
        moved = (instance.stash_bytes, instance.input_bytes, instance.output_bytes, instance.lent_bytes)
        named = instance.demands.recompute_layers
        split = ((layer.split, at in named, instance.trains(at)) for at, layer in enumerate(instance.layers))
        self._alike = list(zip(split, *sizes, *moved, strict=True))

    def layer(self, stage: Stage, layer: int, kind: GroupKind) -> MemoryParts:
        """Return what ``formulation.costs.memory.layer_parts`` does."""
        source = layout_form(self.instance, stage.span, layer)
        form = 0 if source is None else stage.form(source)
        copy = self.instance.copied(layer, stage.span.first)
        known, key = self._parts.setdefault(kind, {}), (form, copy, *self._alike[layer])
        if key not in known:
            known[key] = MemoryParts.of_layer(self.instance, kind, layer, form, copy)
        return known[key]

    def stage(self, stage: Stage) -> MemoryParts:
        """Return what ``formulation.costs.memory.stage_parts`` does."""
        kind = GroupKind.of(self.instance, stage.group)
        received = MemoryParts(received=received_bytes(self.instance, kind, stage.span.first))
        return MemoryParts.sum((*(self.layer(stage, layer, kind) for layer in stage.span.layers), received))


@dataclass(frozen=True, slots=True)
class _Sums:
    """Prefix sums over the layers, at the places to cut, for one kind of group and one form of all layers.

    Bytes of one version of the weights, of what is held once (gradients and optimiser state), and for one
    micro-batch of the stash and of ``again``: what is computed again, and gradients of outputs. ``crossing``: the
    bytes that cross every cut.
    """

    instance: Instance
    places: NDArray[np.int64]
    work: NDArray[np.int64]
    weights: NDArray[np.int64]
    fixed: NDArray[np.int64]
    stash: NDArray[np.int64]
    again: NDArray[np.int64]
    crossing: Sequence[int]
    working: int

    @classmethod
    def of(cls, known: Known, group: Group, forms: Forms) -> _Sums:
        instance = known.instance
        whole, kind = Span(0, len(instance.layers)), GroupKind.of(instance, group)
        stage = stage_of(whole, group, forms)
        alone = (stage_of(Span(layer, layer + 1), group, forms) for layer in whole.layers)
        pairs = (
            (known.layer(stage, layer, kind), known.layer(one, layer, kind))
            for layer, one in zip(in_time(whole.layers, known.deadline), alone, strict=True)
        )
        parts = [max(pair, key=lambda found: found.total) for pair in pairs]
        slowest = instance.class_index(group.counts[0][0])
        on_device = not group.mode.optimizer_on_host
        spent = np.add(instance.forward_ns[slowest], instance.backward_ns[slowest])
        return cls(
            instance,
            np.array(CutSpace.of(instance).places, dtype=np.int64),
            _prefix(spent.tolist()),
            _prefix([one.weights for one in parts]),
            _prefix([one.gradients + on_device * one.optimizer for one in parts]),
            _prefix([one.stash for one in parts]),
            _prefix([one.recomputed + one.output_gradients for one in parts]),
            crossing_bytes(instance),
            max(one.working_set for one in parts),
        )

    def furthest(self, first: int, most_ns: int, devices: _Devices, kept: Keeps) -> int:
        """Return the last place at which a stage that begins at ``first`` may end."""
        places = self.places[self.places > first]
        allowed = self.work[places] - self.work[first] <= most_ns
        if self.instance.constraints.memory:
            received = kept.in_flight * ceil_fraction(devices.share * self.crossing[first])
            held = (
                kept.versions * (self.weights[places] - self.weights[first])
                + (self.fixed[places] - self.fixed[first])
                + kept.in_flight * (self.stash[places] - self.stash[first])
                + kept.again * (self.again[places] - self.again[first])
            )
            allowed &= held + received + self.working <= devices.capacity_bytes
        fitting = places[allowed]
        return int(fitting[-1]) if len(fitting) else first


@dataclass(frozen=True, slots=True)
class _Devices:
    """What memory depends on of the devices of a group: the smallest one, and the share of what is received."""

    capacity_bytes: int
    share: Fraction


def _prefix(values: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.array(values, dtype=np.int64))])


def _balanced(sums: _Sums, groups: Sequence[Group]) -> list[int] | None:
    """Return the cuts under the least work that any stage may have; None if the layers do not fit anyhow."""
    instance, low, high, best = sums.instance, 0, int(sums.work[-1]), None
    kinds = GroupKind.all_of(instance, groups)
    pairs = zip(groups, kinds, strict=True)
    devices = [_Devices(capacity_bytes(instance, group), kind.shares.rows.device) for group, kind in pairs]
    keeps = [Keeps.of(instance.training, index, len(groups)) for index in range(len(groups))]
    for _ in range(HALVINGS):
        middle = (low + high + 1) // 2 if best is not None else high
        cuts = [0]
        for left, own, kept in zip(reversed(range(len(groups))), devices, keeps, strict=True):
            stop = sums.furthest(cuts[-1], middle, own, kept)
            cuts.append(min(stop, int(sums.places[-1 - left])))
        if cuts[-1] == sums.places[-1] and all(one < other for one, other in itertools.pairwise(cuts)):
            best, high = cuts, middle
        elif best is None:
            return None
        else:
            low = middle
        if high - low <= 1:
            break
    return best


BALANCED, KEPT = 8, 4
"""How many plans of equal groups are priced at most, and of those that keep the rules."""


def first_plan(tables: Tables) -> Plan | None:
    """Return the best candidate that keeps every rule; None if none does (memory may forbid all of them).

    Cost: O(devices x layers) for each of some 40 thresholds.
    """
    instance = tables.instance
    candidates = [_plan(instance, [0, len(instance.layers)])]
    packed = _packed(tables)
    if packed is not None:
        candidates.append(_plan(instance, packed))
    kept = list(_priced(instance, candidates))
    if not kept or instance.goals[0] in (Goal.ITERATION_TIME, Goal.STEP_TIME):
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


def _packed(tables: Tables) -> list[int] | None:
    """Return cut points 0 .. N of the best greedy packing, or None if the first device takes all anyway."""
    classes = [tables.instance.class_index(server) for server in line(tables.instance)]
    work = [
        np.add(tables.instance.forward_ns[one], tables.instance.backward_ns[one]).astype(np.int64)
        for one in range(len(tables.instance.device_classes))
    ]
    prefix = [np.concatenate([[0], np.cumsum(row)]) for row in work]
    alone = [Group.on_line(tables.instance, at, 1) for at in range(tables.instance.devices)]
    links = [Group.link_between(tables.instance, *pair) for pair in itertools.pairwise(alone)]
    both = tables.activation + tables.gradient
    crossing = [both[tables.links.index(link)] for link in links if link is not None] + [
        np.zeros(len(prefix[0]), dtype=np.int64)
    ]
    low, high, best = 0, int(max(row[-1] for row in prefix)), None
    while low < high:
        middle = (low + high) // 2
        cuts = _pack([prefix[one] for one in classes], crossing, middle)
        if cuts is None:
            low = middle + 1
        else:
            high, best = middle, cuts
    return best


def _pack(rows: list[np.ndarray], crossing: list[np.ndarray], threshold_ns: int) -> list[int] | None:
    """Fill device after device up to the threshold, ending each stage at the last cut that is cheap enough."""
    total = len(crossing[0]) - 1
    cuts = [0]
    for row, boundary in zip(rows, crossing, strict=True):
        cheap = np.flatnonzero(boundary <= threshold_ns)
        furthest = int(np.searchsorted(row, row[cuts[-1]] + threshold_ns, side="right")) - 1
        reachable = cheap[: np.searchsorted(cheap, furthest, side="right")]
        cut = int(reachable[-1]) if len(reachable) else 0
        if cut <= cuts[-1]:
            return None
        cuts.append(cut)
        if cut == total:
            return cuts
    return None


def fitting_plans(instance: Instance, *, thorough: bool = False, deadline: Deadline = NEVER) -> Iterator[Plan]:
    """Yield plans that keep the memory limit; other rules are not looked at. All devices, or thorough: parts too.

    Raises StoppedError after the deadline, also between plans that take long to find.
    Cost: O(devices * layers * log(layers)) for each of at most ``3 * devices`` tries in each mode, thorough: times
    the servers.
    """
    ends = list(itertools.accumulate(server.devices for server in instance.servers))
    known = Known(instance, deadline)
    yield from balanced_plans(instance, deadline)
    for used in (1, *ends) if thorough else ends[-1:]:
        for stages in range(1, min(used, len(instance.layers)) + 1):
            for groups, form in itertools.product(divided(instance, used, stages), FORMS):
                blocks = instance.constraints.recompute is Recompute.BLOCKS and not groups[0].mode.recompute
                for again in (False, True)[: 1 + blocks]:
                    plan = _filled(known, groups, form, again=again)
                    if plan is not None:
                        yield plan


def _filled(known: Known, groups: Sequence[Group], form: int, *, again: bool) -> Plan | None:
    """Fill group after group; None if layers are left over, or too few to go round.

    ``again``: every block is computed again by itself.
    """
    instance, space = known.instance, CutSpace.of(known.instance)

    def made(span: Span, group: Group, forms: Forms) -> Stage:
        stage = stage_of(span, group, forms)
        return replace(stage, again=space.blocks(span)) if again else stage

    places, at = space.places, 0
    stages: list[Stage] = []
    by_size = {group.devices: _in_form(instance, group, form) for group in groups}
    for index, group in enumerate(groups):
        forms = by_size[group.devices]
        low, high = at, len(places) - 1 - (len(groups) - index - 1)
        while low < high:
            middle = (low + high + 1) // 2
            span = Span(places[at], places[middle])
            if _fits(known, made(span, group, forms), index, len(groups)):
                low = middle
            else:
                high = middle - 1
        if low == at:
            return None
        stages.append(made(Span(places[at], places[low]), group, forms))
        at = low
    return Plan(tuple(stages)) if at == len(places) - 1 else None


def _fits(known: Known, stage: Stage, index: int, stages: int) -> bool:
    """Tell whether a stage fits; its memory depends on the others only by their number."""
    instance = known.instance
    known.deadline.check()
    if not instance.constraints.memory:
        return True
    parts = stage_parts(instance, stage) if stage.again else known.stage(stage)
    held = parts.times(Keeps.of(instance.training, index, stages), stage.group.mode)
    return held.total <= capacity_bytes(instance, stage.group)


def _in_form(instance: Instance, group: Group, form: int) -> Forms:
    """Return the forms of all layers: this one where a layer may have it, else its first one."""
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
