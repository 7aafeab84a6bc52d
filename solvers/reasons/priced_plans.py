"""Plans with their price, and what a neighbour costs at least before it is priced.

A *neighbour* of a plan differs from it in one move: a cut, the devices of a stage, its mode, its forms. What its
stages take is known from tables (``solvers.reasons.priced_plans``): first at least, whatever their forms; then
with the fastest forms. Whatever is said of a neighbour is what the evaluator says of it.

Stages on one kind of group, by tables: what they take and hold, their fastest forms, and the fastest that fit.

Tables are made for many kinds at once (``KindTables``), as most of what they cost is the same for all.

Stages put on other devices: what the cuts, the devices and the idle devices of a plan are asked with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise

import numpy as np

from pipecut.formulation.constraints.constraint import Violation
from pipecut.formulation.constraints.rules import RULES, structure_violations
from pipecut.formulation.costs import times
from pipecut.formulation.costs.goals import goal_value
from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.prices import StageCost
from pipecut.formulation.costs.tables import Times as Rows
from pipecut.formulation.costs.tables import build_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER, Deadline
from pipecut.formulation.problem.constraints import Goal, Placement
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.modes import modes
from pipecut.formulation.problem.options import BoundaryCharge, StageTime
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.shares import same_servers
from pipecut.formulation.problem.units import Link
from pipecut.solvers.atoms.chains import Chains, Chosen
from pipecut.solvers.reference.algorithm_1 import MAX_LIVE, best_forms, last_uses

Forms = tuple[int, ...]
Times = tuple[int, int]
"""Computation and communication of a stage in ns, without what it receives over boundaries."""


class KindTables:
    """What is known of some kinds of groups; of memory only once it is asked for."""

    def __init__(self, instance: Instance, groups: tuple[Group, ...], deadline: Deadline) -> None:
        self.tables, self.space = build_tables(instance, groups, deadline), CutSpace.of(instance)
        self.places = frozenset(self.space.places)

    @cached_property
    def last(self) -> tuple[int, ...]:
        """By layer the last one whose communication depends on its form."""
        return last_uses(self.tables)

    @cached_property
    def held(self) -> MemoryTables:
        """What layers hold."""
        return MemoryTables.of(self.tables)

    @cached_property
    def chains(self) -> Chains:
        """The stages that fit."""
        return Chains(self.tables, self.held, self.space)


class StagesOnKind:
    """Prices stages of any span and forms on one kind of group."""

    def __init__(self, known: KindTables, kind: int) -> None:
        self._known, self._kind = known, kind
        self.tables, self.instance = known.tables, known.tables.instance
        instance = self.instance
        inside = self.tables.inside[kind].min(axis=1)
        self._compute = np.append(0, self.tables.compute[kind].cumsum())
        self._inside = np.append(0, np.minimum(inside, FORBIDDEN // len(inside)).cumsum())
        ends = [(edge.source, edge.consumer) for edge in instance.form_edges]
        self._ends = np.array(ends, dtype=np.int64).reshape(len(ends), 2)
        # Without a source, or with one in another stage, a layer lies by rows: as nothing is at place -1.
        sources = [-1 if source is None else source for source in instance.sources]
        self._sources = np.array(sources, dtype=np.int64)
        self._fastest: dict[Span, Forms | None] = {}
        self._wide: dict[Span, bool] = {}
        self._fitting: dict[tuple[Span, int], tuple[int, Chosen | None]] = {}

    def at_least(self, span: Span) -> Times:
        """Return what a stage takes at least, whatever its forms."""
        first, stop = span.first, span.stop
        computed, moved = (int(row[stop] - row[first]) for row in (self._compute, self._inside))
        return computed, moved

    def times(self, span: Span, forms: Forms) -> Times:
        """Return what a stage takes with these forms; the least of all forms where it may not have these."""
        own, lies = np.array(forms, dtype=np.int64), self._lies(span, forms)
        inside = self.tables.inside[self._kind, np.arange(span.first, span.stop), lies]
        if (inside >= FORBIDDEN).any():
            return self.at_least(span)
        moved = int(inside.sum())
        for (earlier, layer), copies in self.tables.copies.items():
            if earlier < span.first <= layer < span.stop:
                moved += int(copies[self._kind, lies[layer - span.first]])
        inner = np.flatnonzero((self._ends[:, 0] >= span.first) & (self._ends[:, 1] < span.stop))
        source, consumer = (own[self._ends[inner, end] - span.first] for end in (0, 1))
        moved += int(self.tables.between[self._kind, inner, source, consumer].sum())
        return int(self._compute[span.stop] - self._compute[span.first]), moved

    def holds(self, span: Span, forms: Forms, slot: int) -> tuple[int, int]:
        """Return what a stage holds with these forms, without what it received, and what there is room for."""
        lies, layers = self._lies(span, forms), np.arange(span.first, span.stop)
        held, kind = self._known.held, self._kind
        lasting, working = held.in_stage(slot, kind, span.first, held.lasting(slot, kind))
        needed = int(lasting[layers, lies].sum() + working[layers, lies].max())
        return needed, held.room(slot, kind, span.first)

    def fastest(self, span: Span) -> Forms | None:
        """Return the forms with the least communication; None where too many layers matter at once."""
        if span not in self._fastest:
            self._fastest[span] = None if self._is_wide(span) else best_forms(self.tables, self._kind, span)
        return self._fastest[span]

    def fitting(self, span: Span, slot: int, limit_ns: int | None) -> Chosen | None:
        """Return the fastest choice that fits into memory; None where none do within a limit (None: none at all).

        None too where a stage may not begin or end there, or too many layers matter at once. Raises StoppedError.
        """
        if not self.can_fit(span) or self._never_fits(span, slot):
            return None
        within, found = self._fitting.get((span, slot), (-1, None))
        asked = FORBIDDEN if limit_ns is None else limit_ns
        if found is None and within < asked:
            run, chains = self._known.space.run(span), self._known.chains
            if limit_ns is None:
                found = chains.fastest(slot, self._kind, run, 2 * sum(self.at_least(span)) + 1)
            else:
                found = chains.forms(slot, self._kind, run, limit_ns)
            self._fitting[span, slot] = asked, found
        return found

    def _never_fits(self, span: Span, slot: int) -> bool:
        """Tell whether a stage needs too much even if every layer has the form in which it holds least."""
        held, keeps, layers = self._known.held, self._known.held.keeps(slot), slice(span.first, span.stop)
        once, weights, stash = (
            int(held.least(part, self._kind)[layers].sum())
            for part in (held.once, held.by_version, held.by_micro_batch)
        )
        lasting = once + keeps.versions * weights + keeps.in_flight * stash
        working = int(held.least(held.working_set, self._kind)[layers].max())
        return lasting + working > held.room(slot, self._kind, span.first)

    def can_fit(self, span: Span) -> bool:
        """Tell whether forms that fit can be looked for: in whole atoms, where few layers matter at once."""
        return {span.first, span.stop} <= self._known.places and not self._is_wide(span)

    def _lies(self, span: Span, forms: Forms) -> Rows:
        """Return by layer of a stage the form that it has, or of whose layer it keeps the layout."""
        sources, own = self._sources[span.first : span.stop], np.array(forms, dtype=np.int64)
        within = (sources >= span.first) & (sources < span.stop)
        return np.where(within, own[np.where(within, sources - span.first, 0)], 0)

    def _is_wide(self, span: Span) -> bool:
        """Tell whether more layers with a choice of forms matter at once than can be searched."""
        if self.tables.kinds[self._kind].tensor_parallel_degree == 1:
            return False
        if span not in self._wide:
            self._wide[span] = self._looked_through(span)
        return self._wide[span]

    def _looked_through(self, span: Span) -> bool:
        last, layers = self._known.last, self.instance.layers
        live: list[int] = []
        for layer in span.layers:
            if layers[layer].split is not Split.FOLLOW and len(layers[layer].allowed_forms) > 1:
                live.append(layer)
            if len(live) > MAX_LIVE:
                return True
            live = [one for one in live if last[one] > layer]
        return False


def put(plan: Plan, index: int, stage: Stage) -> Plan:
    """Return the plan with another stage in the place of one."""
    return Plan((*plan.stages[:index], stage, *plan.stages[index + 1 :]))


def idle_devices(instance: Instance, plan: Plan) -> dict[int, int]:
    """Return by server how many of its devices no stage has, of servers that have some."""
    left = {at: server.devices for at, server in enumerate(instance.servers)}
    for stage in plan.stages:
        for server, count in stage.group.counts:
            left[server] -= count
    return {server: count for server, count in left.items() if count > 0}


def regrouped(instance: Instance, stage: Stage, counts: Mapping[int, int]) -> Iterator[tuple[str, Stage]]:
    """Yield a stage on these devices in every mode that they may have, with words for the mode.

    Layers keep their forms, but where replicas are not split. Nothing where no mode is allowed.
    """
    held = tuple(sorted((server, count) for server, count in counts.items() if count > 0))
    devices = sum(count for _, count in held)
    for mode in modes(instance, devices) if devices else ():
        words = mode.in_words(devices)
        yield f" ({words})" if words else "", stage.on(Group(held, mode))


def laid(instance: Instance, plan: Plan) -> Plan:
    """Return a plan with as many devices for every stage, one stage behind the other along the line.

    Devices of stages behind the end of the line are left as they are: the rules say what is wrong with them.
    """
    stages: list[Stage] = []
    first = 0
    for stage in plan.stages:
        devices = stage.group.devices
        group = Group.on_line(instance, first, devices, stage.group.mode)
        stages.append(replace(stage, group=group if group.devices == devices else stage.group))
        first += devices
    return Plan(tuple(stages))


Rank = tuple[tuple[int, ...], int]
"""The values of all goals, in order, and the time of all stages and boundaries together."""
NO_MEMORY = MemoryParts()
ROUNDED = 4
"""Of how many parts the time of a layer is put together, each rounded up to a whole ns."""


@dataclass(frozen=True, slots=True)
class PricedPlan:
    """A plan and what the evaluator says of it: the value of every goal of the instance, and the rules it breaks.

    ``work_ns`` is the time of all stages and boundaries together, which orders plans of equal values.
    """

    plan: Plan
    values: tuple[int, ...]
    memory_bytes: int
    work_ns: int
    violations: tuple[Violation, ...]

    @property
    def feasible(self) -> bool:
        """Tell whether the plan keeps every rule."""
        return not self.violations

    @property
    def rank(self) -> tuple[bool, Rank]:
        """What plans are compared by: first whether they keep the rules, then every goal in order."""
        return bool(self.violations), (self.values, self.work_ns)


class Pricing:
    """Prices the neighbours of a plan; tables of the kinds of groups that it meets are made once.

    ``deadline`` is that of the question which is asked (:meth:`ask`): the time is shared among all questions.
    """

    def __init__(self, instance: Instance, plan: Plan, deadline: Deadline = NEVER, questions: int = 1) -> None:
        self.instance, self.deadline = instance, deadline
        self._whole, self._questions = deadline, questions
        line = instance.constraints.placement is Placement.LINE
        self.on_line = line and laid(instance, plan).stages == plan.stages
        """Whether the plan lies on the line, where its neighbours lie too."""
        self._on_kind: dict[GroupKind, StagesOnKind] = {}
        self._priced: dict[Plan, PricedPlan | None] = {}
        self.kind: Callable[[Group], GroupKind] = cache(lambda group: GroupKind.of(instance, group))
        self._link = cache(lambda one, other: Group.link_between(instance, one, other))
        self._times: Callable[[Stage], Times] = cache(lambda stage: self.of(stage).times(stage.span, stage.forms))
        self._crossing = cache(self._crossing_of)

    @cached_property
    def alike(self) -> dict[int, int]:
        """Return for every server one that stands for it and those that neither links nor demands tell from it."""
        rows, apart = same_servers(self.instance), self.instance.demands.tell_apart
        pairs = ((server, row) for row in rows for server in row)
        return {at: next(one for one in row if one == at or not apart(one, at)) for at, row in pairs}

    def ask(self) -> None:
        """Begin the next question, which has a third of the time that is left for all, unless it is the last."""
        self.deadline = self._whole.share(min(max(1, self._questions), 3))
        self._questions -= 1

    def prepare(self, plans: Iterable[Plan]) -> None:
        """Make the tables of all kinds of groups that these plans have. Raises StoppedError after the deadline."""
        groups = dict.fromkeys(stage.group for plan in plans for stage in plan.stages)
        new = {kind: group for group in groups if (kind := self.kind(group)) not in self._on_kind}
        if not new:
            return
        stopped = Deadline(stopped=lambda: self.deadline.over())
        beside = list[Group]()
        if self.instance.constraints.recompute.by_blocks:
            beside = [replace(group, mode=replace(group.mode, recompute=True)) for group in new.values()]
        known = KindTables(self.instance, tuple(dict.fromkeys((*new.values(), *beside))), stopped)
        self._on_kind |= {kind: StagesOnKind(known, at) for at, kind in enumerate(known.tables.kinds)}

    def price(self, plan: Plan) -> PricedPlan | None:
        """Return a plan with its price; None for one that has none, as a stage is empty or has no devices."""
        if plan not in self._priced:
            self._priced[plan] = self._evaluated(plan)
        return self._priced[plan]

    def _evaluated(self, plan: Plan) -> PricedPlan | None:
        found = evaluate(self.instance, plan)
        if found.objective is None:
            return None
        memory = goal_value(Goal.MEMORY, self.instance, plan, found.stages)
        work = sum(cost.total_ns + cost.boundary_ns for cost in found.stages)
        return PricedPlan(plan, (found.objective, *found.further), memory, work, found.violations)

    def joints(self, plan: Plan) -> tuple[Link | None, ...]:
        """Return the links between the stages of a plan."""
        training, pairs = self.instance.training, enumerate(pairwise(plan.stages), 1)
        return tuple(
            None if training.turns_at(at, len(plan)) else self._link(one.group, other.group)
            for at, (one, other) in pairs
        )

    def of(self, stage: Stage) -> StagesOnKind:
        """Return what prices the stages on the group of one, which is prepared."""
        return self._on_kind[self.kind(stage.group)]

    def broken(self, plan: Plan) -> bool:
        """Tell whether a plan breaks a rule other than that of memory."""
        if self.instance.training.chunks > 1 and any(structure_violations(self.instance, plan)):
            return True
        rules = (rule for rule in RULES if rule.name != "memory")
        return any(True for rule in rules for _ in rule.check(self.instance, plan))

    def at_least(self, plan: Plan, unknown: frozenset[int]) -> Rank:
        """Return what the rank of a plan is at least, whatever the forms of the ``unknown`` stages; else exact.

        Of memory nothing is known, and of executed times what the busiest stage takes.
        """
        own = [
            self.of(stage).at_least(stage.span) if at in unknown else self._times(stage)
            for at, stage in enumerate(plan.stages)
        ]
        costs = self._costs(plan, own)
        values = tuple(self._value(goal, plan, costs) for goal in self.instance.goals)
        return values, sum(cost.total_ns + cost.boundary_ns for cost in costs)

    def limit_ns(self, most: Rank) -> int | None:
        """Return what a stage of a plan whose rank is no more can take at most; None if that says nothing."""
        goal, value = self.instance.goals[0], most[0][0]
        if goal in (Goal.BOTTLENECK, Goal.ITERATION_TIME):
            return value
        return None

    def _value(self, goal: Goal, plan: Plan, costs: tuple[StageCost, ...]) -> int:
        if not goal.executed:
            return goal_value(goal, self.instance, plan, costs)
        # All passes of a stage are run one after another; what is written once for a micro-batch is rounded up.
        steps = self.instance.training.micro_batches if goal is Goal.STEP_TIME else 1
        rows = zip(costs, plan.stages, strict=True)
        return steps * max(0, *(cost.total_ns - ROUNDED * len(stage.span) for cost, stage in rows))

    def _costs(self, plan: Plan, own: list[Times]) -> tuple[StageCost, ...]:
        """Return stage costs made of these times, without memory."""
        receives = self.instance.cost.boundary_charge is BoundaryCharge.RECEIVER
        overlap = self.instance.cost.stage_time is StageTime.OVERLAP
        cuts = [(stage.span.first, link) for stage, link in zip(plan.stages[1:], self.joints(plan), strict=True)]
        crossing = [(0, 0), *(self._crossing(*cut) for cut in cuts), (0, 0)]
        costs: list[StageCost] = []
        for at, (compute, moved) in enumerate(own):
            received = crossing[at][0] + crossing[at + 1][1] if receives else 0
            sent = moved + received
            total = max(compute, sent) if overlap else compute + sent
            costs.append(StageCost(compute, moved, 0, received, total, sum(crossing[at]), NO_MEMORY, 0))
        return tuple(costs)

    def _crossing_of(self, cut: int, link: Link | None) -> Times:
        """Return what crosses a cut forward and back in ns; tables know the links of their own groups."""
        if link is None:
            return 0, 0
        tables = next(iter(self._on_kind.values())).tables
        if link not in tables.links:
            return times.activation_ns(self.instance, cut, link), times.gradient_ns(self.instance, cut, link)
        at = tables.links.index(link)
        return int(tables.activation[at, cut]), int(tables.gradient[at, cut])
