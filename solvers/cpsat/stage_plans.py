"""From stages that the model proposes to plans: forms within time and memory, and what had to be refused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from ortools.sat.python import cp_model

from formulation.plan import Plan, Stage
from formulation.tables import FORBIDDEN, Tables, Times
from solvers.cpsat.reading import read_plan
from solvers.cpsat.stage_limits import StageLimits
from solvers.cpsat.stages import Refusal
from solvers.cpsat.variables import Variables
from solvers.hybrid import StageTimes, best_forms
from solvers.thrifty import Thrift


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
