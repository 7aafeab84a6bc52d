"""The declarative model on atoms: cut points, device groups and links in CP-SAT, stages in tables of their own.

Layers between two places to cut, and their forms, are no variables. How far a stage may reach is read from the
best splits of atoms (``solvers.atoms``), without any programme over devices; a plan that the model proposes gets
its forms there, or is refused and never proposed again. Questions begin a little above the lower limit and move
up: far above the optimum many more forms would have to be compared.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from ortools.sat.python import cp_model

from pipecut.formulation.costs.bounds import ceiling
from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.limits import in_time
from pipecut.formulation.outcome import Limits, Outcome, begin
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.atoms.stages import AtomStages
from pipecut.solvers.cpsat.engine import halfway, search, without_relaxation
from pipecut.solvers.cpsat.model import floors, lower_bound, stage_threshold_ns, thresholds_of
from pipecut.solvers.cpsat.on_atoms.charges import Charges
from pipecut.solvers.cpsat.on_atoms.families import families_of, tables_of_places
from pipecut.solvers.cpsat.on_atoms.support import accepts
from pipecut.solvers.cpsat.variables import Variables, make_variables, read_plan
from pipecut.solvers.search.first_plan import first_plan
from pipecut.solvers.search.incumbent import Incumbent
from pipecut.solvers.search.stoppable import stoppable, tell_first

NAME = "cpsat_atoms"
STEP = 8
"""The first question is this part of the lower limit above it."""


@stoppable(NAME, best=True)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Find the best plan and prove it, or the best within the limits with an honest bound.

    Raises ValueError where :func:`accepts` has a reason, and TooLargeError before it takes too much memory, or
    where the forms of too many layers matter at once.
    """
    began_s, limits = time.monotonic(), begin(limits)
    accepts(instance).refuse()
    tell_first(instance, limits)
    tables = all_tables(instance, limits.deadline)
    space, floor = CutSpace.of(instance), floors(tables)
    stages, charges = AtomStages(tables, space), Charges.of(tables, space)
    families, places = families_of(stages, charges), tables_of_places(stages)

    def build(threshold: int) -> Variables:
        within = thresholds_of(tables, threshold)
        slots = min(places.rows, instance.devices)
        v = make_variables(places, within, stage_threshold_ns(tables, within), slots, layered=False)
        for family in families:
            for _ in in_time(family.post(v), tables.deadline):
                pass
        return v

    def read(v: Variables, solver: cp_model.CpSolver) -> Plan | None:
        plan = read_plan(v, solver)
        return stages.with_forms(plan, charges.left(plan, v.threshold_ns))

    upper, lower = ceiling(tables, instance.goals[0]) + 1, lower_bound(tables, floor)
    known = Incumbent(NAME, instance, limits, upper, lower, began_s=began_s)
    known.offer(first_plan(tables))
    return search(known, build, read, _Ahead(known).choose, without_relaxation)


@dataclass(slots=True)
class _Ahead:
    """Asks a little above the lower limit while there is no plan, or one far above it.

    Each "no" doubles how far ahead it asks; a proposal that is refused does not.
    """

    known: Incumbent
    further: int = 1
    lower: int = -1

    def choose(self) -> int:
        """Return the next threshold."""
        known = self.known
        if known.upper <= 2 * known.lower:
            return halfway(known)
        if known.lower > self.lower >= 0:
            self.further *= 2
        self.lower = known.lower
        return min(known.upper - 1, known.lower + max(1, known.lower) * self.further // STEP)
