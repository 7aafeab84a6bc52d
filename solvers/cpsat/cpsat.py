"""The declarative solver: one model of cut points, device groups and the form of every layer.

It shares cost tables with the dynamic programmes and nothing else: no plan, no bound, no stage time of theirs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from pipecut.formulation.costs import bounds
from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.outcome import Limits, Outcome, Progress, begin
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers.cpsat.accepts import accepts
from pipecut.solvers.cpsat.engine import make_solver, search, without_relaxation
from pipecut.solvers.cpsat.model import FAMILIES, build_model, floors, lower_bound, redundant_families
from pipecut.solvers.cpsat.variables import Family
from pipecut.solvers.search.first_plan import first_plan
from pipecut.solvers.search.incumbent import Incumbent
from pipecut.solvers.search.stoppable import stoppable

NAME = "cpsat"


@stoppable(NAME, best=True)
def solve(
    instance: Instance,
    limits: Limits | None = None,
    families: Sequence[Family] = FAMILIES,
) -> Outcome:
    """Find the best plan and prove it, or the best within the limits with an honest bound.

    ``families`` are the constraints that say what a plan is and costs. Raises TooLargeError before it takes too
    much memory.
    """
    began_s, limits = time.monotonic(), begin(limits)
    limits.progress(Progress(None, bounds.lower_bound(instance)))
    accepts(instance).refuse()
    tables = all_tables(instance, limits.deadline)
    posted = (*families, *redundant_families(tables))
    upper, lower = bounds.ceiling(tables, instance.goals[0]) + 1, lower_bound(tables, floors(tables))
    known = Incumbent(NAME, instance, limits, upper, lower, began_s=began_s)
    known.begin_where_known()
    known.offer(first_plan(tables))
    make = without_relaxation if instance.goals[0].executed else make_solver
    return search(known, lambda threshold: build_model(tables, threshold, posted), make)
