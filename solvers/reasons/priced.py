"""Plans with their price, and the fastest forms for stages that have changed.

A *neighbour* of a plan differs from it in one move: a cut, the devices of a stage, its mode, its forms. Forms of
the stages that a move touches are chosen anew: the fastest of all (``best_forms``), and where these need too much
memory the fastest that fit (``Thrift``); the forms that the layers had stay where they are better. Whatever is
said of a neighbour is what the evaluator says of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from formulation.constraints.violation import Violation
from formulation.costs.goals import goal_value
from formulation.costs.memory_tables import memory_tables
from formulation.costs.tables import FORBIDDEN, Tables, build_tables
from formulation.evaluate import evaluate
from formulation.limits.deadline import NEVER, Deadline
from formulation.problem.groups import Group, GroupKind, group_kind, link_between
from formulation.problem.instance import Instance
from formulation.problem.layers import Split
from formulation.problem.options import Goal, Placement
from formulation.problem.plan import Plan, Span, Stage
from solvers.dynamic.tables.best_forms import best_forms, last_uses
from solvers.dynamic.tables.forms_under_memory import Thrift
from solvers.dynamic.tables.stage_times import MAX_LIVE
from solvers.reasons.regrouping import laid

__all__: list[str] = []

Forms = tuple[int, ...]


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
    def rank(self) -> tuple[bool, tuple[int, ...], int]:
        """What plans are compared by: first whether they keep the rules, then every goal in order."""
        return bool(self.violations), self.values, self.work_ns


class Pricing:
    """Prices the neighbours of a plan; tables of the kinds of groups that it meets are made once."""

    def __init__(self, instance: Instance, plan: Plan, deadline: Deadline = NEVER) -> None:
        self.instance, self.deadline = instance, deadline
        line = instance.constraints.placement is Placement.LINE
        self.on_line = line and laid(instance, plan).stages == plan.stages
        """Whether the plan lies on the line, where its neighbours lie too."""
        self._tables: dict[GroupKind, Tables] = {}
        self._thrift: dict[GroupKind, Thrift] = {}
        self._kinds: dict[Group, GroupKind] = {}
        self._forms: dict[tuple[GroupKind, Span], Forms | None] = {}
        self._thrifty: dict[tuple[GroupKind, Span, int], Forms | None] = {}

    def price(self, plan: Plan) -> PricedPlan | None:
        """Return a plan with its price; None for one that has none, as a stage is empty or has no devices."""
        found = evaluate(self.instance, plan)
        if found.objective is None:
            return None
        memory = goal_value(Goal.MEMORY, self.instance, plan, found.stages)
        work = sum(cost.total_ns + cost.boundary_ns for cost in found.stages)
        return PricedPlan(plan, (found.objective, *found.further), memory, work, found.violations)

    def kind(self, group: Group) -> GroupKind:
        """Return the kind of a group."""
        if group not in self._kinds:
            self._kinds[group] = group_kind(self.instance, group)
        return self._kinds[group]

    def joints(self, plan: Plan) -> tuple[object, ...]:
        """Return the links between the stages of a plan."""
        return tuple(link_between(self.instance, one.group, other.group) for one, other in pairwise(plan.stages))

    def best(self, plan: Plan, changed: Iterable[int]) -> PricedPlan | None:
        """Return the best of a plan with forms chosen anew for the changed stages, and with those that it has."""
        stages, changed = list(plan.stages), list(changed)
        for index in changed:
            forms = self._fastest(stages[index])
            stages[index] = stages[index] if forms is None else replace(stages[index], forms=forms)
        anew = Plan(tuple(stages))
        fastest = self.price(anew)
        candidates = [fastest] if anew == plan else [self.price(plan), fastest]
        if fastest is not None and any(one.rule == "memory" for one in fastest.violations):
            candidates.append(self._fitted(fastest))
        priced = [one for one in candidates if one is not None]
        return min(priced, key=lambda one: one.rank) if priced else None

    def _fitted(self, priced: PricedPlan) -> PricedPlan | None:
        """Give the stages that need too much memory the fastest forms that fit; None where some have none."""
        plan = priced.plan
        stages = list(plan.stages)
        for index in {int(one.place.split()[1]) for one in priced.violations if one.rule == "memory"}:
            forms = self._thriftiest(stages[index], len(plan) - 1 - index)
            if forms is None:
                return None
            stages[index] = replace(stages[index], forms=forms)
        return self.price(Plan(tuple(stages)))

    def _fastest(self, stage: Stage) -> Forms | None:
        """Return the forms with the least communication; None where too many layers matter at once."""
        key = self.kind(stage.group), stage.span
        if key not in self._forms:
            tables = self._of(stage.group)
            wide = _is_wide(tables, stage.span) and stage.group.tensor_parallel_degree > 1
            self._forms[key] = None if wide or not len(stage.span) else best_forms(tables, 0, stage.span)
        return self._forms[key]

    def _thriftiest(self, stage: Stage, slot: int) -> Forms | None:
        kind = self.kind(stage.group)
        key = kind, stage.span, slot
        if key not in self._thrifty:
            tables = self._of(stage.group)
            if kind not in self._thrift:
                self._thrift[kind] = Thrift(tables, memory_tables(tables))
            wide = _is_wide(tables, stage.span)
            self._thrifty[key] = None if wide else self._thrift[kind].forms(slot, 0, stage.span, FORBIDDEN)
        return self._thrifty[key]

    def _of(self, group: Group) -> Tables:
        kind = self.kind(group)
        if kind not in self._tables:
            self._tables[kind] = build_tables(self.instance, (group,))
        return self._tables[kind]


def _is_wide(tables: Tables, span: Span) -> bool:
    """Tell whether more layers with a choice of forms matter at once than can be searched."""
    last, layers = last_uses(tables), tables.instance.layers
    live: list[int] = []
    for layer in span.layers:
        if layers[layer].split is not Split.FOLLOW and len(layers[layer].allowed_forms) > 1:
            live.append(layer)
        if len(live) > MAX_LIVE:
            return True
        live = [one for one in live if last[one] > layer]
    return False
