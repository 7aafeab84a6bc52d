"""From stages that the model proposes to plans: forms within time and memory, and what had to be refused."""

from __future__ import annotations

import numpy as np
from ortools.sat.python import cp_model

from formulation.costs.tables import FORBIDDEN, Times
from formulation.limits.deadline import StoppedError
from formulation.problem.plan import Plan
from solvers.cpsat.base.reading import read_plan
from solvers.cpsat.base.variables import Variables
from solvers.dynamic.tables.stage_table import StageTable
from solvers.search.distinct import distinct


class Stages(StageTable):
    """Stage tables of an instance, and the stages that were refused so far, as the search of CP-SAT asks."""

    def read(self, v: Variables, solver: cp_model.CpSolver) -> Plan | None:
        """Read a plan and fill in its forms; None, and a refusal noted, if a stage has none that fit."""
        return self.with_forms(read_plan(v, solver), v.threshold_ns)

    def objective_values(self) -> Times | None:
        """Return, ascending, values that include every value the slowest stage or boundary can have.

        None under a memory limit: a stage may need slower forms than the tables know, so any number is possible;
        and after the deadline, when nobody will ask.
        """
        if self.limits.held is not None:
            return None
        real = self.atoms.times.time[self.atoms.times.time < FORBIDDEN]
        crossing = (self.tables.activation + self.tables.gradient).ravel()
        try:
            return distinct(np.concatenate([real, crossing]), self.tables.deadline)
        except StoppedError:
            return None
