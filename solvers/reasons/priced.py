"""Plans with their price, and what a neighbour costs at least before it is priced.

A *neighbour* of a plan differs from it in one move: a cut, the devices of a stage, its mode, its forms. What its
stages take is known from tables (``solvers.reasons.on_kind``): first at least, whatever their forms; then with
the fastest forms. Whatever is said of a neighbour is what the evaluator says of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from formulation.constraints.rules import RULES, structure_violations
from formulation.constraints.violation import Violation
from formulation.costs import times
from formulation.costs.goals import goal_value
from formulation.costs.memory import MemoryParts
from formulation.costs.prices import StageCost
from formulation.evaluate import evaluate
from formulation.limits.deadline import NEVER, Deadline
from formulation.problem.constraints import Goal, Placement, Recompute
from formulation.problem.groups import Group, GroupKind
from formulation.problem.instance import Instance
from formulation.problem.options import BoundaryCharge, StageTime
from formulation.problem.plan import Plan, Stage
from formulation.problem.units import Link
from solvers.reasons.on_kind import KindTables, StagesOnKind, Times
from solvers.reasons.regrouping import laid

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
        if self.instance.constraints.recompute is Recompute.BLOCKS:
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
