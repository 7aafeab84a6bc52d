"""The accelerated solver: whole stages from the tables of the dynamic programme (``solvers.cpsat.stages``)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from ortools.sat.python import cp_model

from formulation.evaluate import evaluate
from formulation.groups import possible_groups
from formulation.instance import Instance
from formulation.options import Placement
from formulation.outcome import Limits, Outcome
from formulation.plan import Plan, Span, Stage
from formulation.tables import FORBIDDEN, Tables, Times, build_tables
from solvers import line_dp
from solvers.cpsat import layered
from solvers.cpsat.model import build_model
from solvers.cpsat.reading import read_plan
from solvers.cpsat.search import Question, Search
from solvers.cpsat.stage_limits import StageLimits
from solvers.cpsat.stages import Refusal, applies, stage_families
from solvers.cpsat.start import first_plan
from solvers.cpsat.valid import ceiling_ns, floors, lower_bound_ns
from solvers.cpsat.variables import Variables
from solvers.hybrid import StageTimes, best_forms, stage_times
from solvers.line_threshold import LineReach
from solvers.thrifty import Thrift

NAME = "cpsat_stages"


def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Find the best plan and prove it with stage times of the dynamic programme.

    Where a stage's time depends on its neighbours (receivers pay, or times are summed), or a demand speaks of
    single layers, the layered model is used instead, and the outcome says so. Raises ValueError as
    ``solvers.hybrid.stage_times`` does.
    """
    began = time.monotonic()
    tables = build_tables(instance, possible_groups(instance))
    if not applies(tables):
        outcome = layered.solve(instance, limits)
        return replace(outcome, solver=NAME, notes=(*outcome.notes, "layered model: stages are not independent"))
    stages = Stages(stage_times(tables))
    families = stage_families(stages.limits, stages.refused)
    return Search(
        instance=instance,
        question=Question(
            lambda threshold_ns: build_model(tables, threshold_ns, families, layered=False),
            stages.read,
            stages.objective_values(),
        ),
        limits=limits or Limits(),
        began=began,
        plan=_start(instance, stages, _over(limits or Limits(), began)),
        lower=lower_bound_ns(tables, floors(tables)),
        upper=ceiling_ns(tables) + 1,
    ).outcome(NAME)


def _over(limits: Limits, began: float) -> Callable[[], bool]:
    def over() -> bool:
        late = limits.time_limit_s is not None and time.monotonic() - began > limits.time_limit_s
        return late or limits.stopped()

    return over


@dataclass(slots=True)
class Stages:
    """Stage tables of an instance, and the stages that were refused so far."""

    times: StageTimes
    refused: list[Refusal] = field(default_factory=list)
    limits: StageLimits = field(init=False)
    _thrift: Thrift | None = field(init=False)

    def __post_init__(self) -> None:
        self.limits = StageLimits(self.times)
        held = self.limits.held
        self._thrift = None if held is None else Thrift(self.tables, held)

    @property
    def tables(self) -> Tables:
        """The cost tables."""
        return self.times.tables

    def read(self, v: Variables, solver: cp_model.CpSolver) -> Plan | None:
        """Read a plan and fill in its forms; None, and a refusal noted, if a stage has none that fit."""
        return self.with_forms(read_plan(v, solver), v.threshold_ns)

    def with_forms(self, plan: Plan, threshold_ns: int) -> Plan | None:
        """Give every stage its best forms within the threshold and its memory; note stages that have none."""
        kind_of = dict(zip(self.tables.groups, self.tables.kind_of, strict=True))
        filled: list[Stage] = []
        for index, stage in enumerate(plan.stages):
            slot, kind = len(plan) - 1 - index, kind_of[stage.group]
            if self._thrift is None:
                forms = best_forms(self.tables, kind, stage.span)
            else:
                forms = self._thrift.forms(slot, kind, stage.span, threshold_ns)
            if forms is None:
                self.refused.append(Refusal(slot, kind, stage.span.first, stage.span.stop, threshold_ns))
            else:
                filled.append(replace(stage, forms=forms))
        return Plan(tuple(filled)) if len(filled) == len(plan) else None

    def objective_values(self) -> Times | None:
        """Return, ascending, values that include every value the slowest stage or boundary can have.

        None under a memory limit: a stage may need slower forms than the tables know, so any number is possible.
        """
        if self._thrift is not None:
            return None
        real = self.times.time[self.times.time < FORBIDDEN]
        return np.unique(np.concatenate([real, (self.tables.activation + self.tables.gradient).ravel()]))


def _start(instance: Instance, stages: Stages, over: Callable[[], bool]) -> Plan | None:
    """Return the best of some plans that keep every rule; None if there is none among them."""
    line = stages
    if instance.constraints.placement is not Placement.LINE:
        ordered = replace(instance, constraints=replace(instance.constraints, placement=Placement.LINE))
        line = Stages(stage_times(build_tables(ordered, possible_groups(ordered))))
    first = first_plan(stages.tables)
    dearest = None if first is None else evaluate(instance, first).objective_ns
    exact = stages.limits.held is None
    on_line = line_dp.solve(instance).plan if exact else line_plan(line, dearest, over)
    candidates = [plan for plan in (first, on_line) if plan is not None]
    priced = [(evaluate(instance, plan), plan) for plan in candidates]
    kept = [(found.objective_ns or 0, plan) for found, plan in priced if found.feasible]
    return min(kept, key=lambda pair: pair[0])[1] if kept else None


def line_plan(stages: Stages, dearest_ns: int | None, over: Callable[[], bool]) -> Plan | None:
    """Return a plan of the line, at the least threshold for which the threshold programme proposes one that works.

    The threshold is bisected by paths alone; forms and links are looked at from there upwards, in growing steps.
    ``dearest_ns`` is the price of a plan that is known.
    """
    tables = stages.tables
    slots = min(len(tables.instance.layers), tables.instance.devices)
    low, high = lower_bound_ns(tables, floors(tables)), dearest_ns or ceiling_ns(tables)
    while low < high and not over():
        middle = (low + high) // 2
        found = LineReach(stages.limits, middle, slots).path() is not None
        low, high = (low, middle) if found else (middle + 1, high)
    step = max(1, high // 10_000)
    while high <= (dearest_ns or ceiling_ns(tables)) and not over():
        path = LineReach(stages.limits, high, slots).path()
        plan = None if path is None else stages.with_forms(_bare(tables, path), high)
        if plan is not None and evaluate(tables.instance, plan).feasible:
            return plan
        high, step = high + step, 2 * step
    return None


def _bare(tables: Tables, path: list[tuple[int, int, int, int]]) -> Plan:
    """Return the plan of a path, with form 0 everywhere."""
    return Plan(
        tuple(
            Stage(Span(first, stop), tables.groups[index], (0,) * (stop - first)) for _, index, first, stop in path
        )
    )
