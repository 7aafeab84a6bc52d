"""The accelerated solver: whole stages from the tables of the dynamic programme (``whole_stages.stages``)."""

from __future__ import annotations

import time
from dataclasses import replace

from formulation.costs.ceiling import ceiling
from formulation.costs.tables import all_tables
from formulation.outcome import Limits, Outcome, begin
from formulation.problem.cuts import every_cut
from formulation.problem.instance import Instance
from solvers.cpsat import solver as layered
from solvers.cpsat.bounds import lower_bound
from solvers.cpsat.model import build_model
from solvers.cpsat.search import Question, Search
from solvers.cpsat.valid import floors
from solvers.cpsat.whole_stages.stage_plans import Stages
from solvers.cpsat.whole_stages.stages import applies, stage_families
from solvers.cpsat.whole_stages.warm_start import best_start, moderate_space, start_of_a_neighbour
from solvers.dynamic.tables.atom_tables import atom_tables
from solvers.search.stoppable import stoppable, tell_first

NAME = "cpsat_stages"


@stoppable(NAME, best=True)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Find the best plan and prove it with stage times of the dynamic programme.

    Where a stage's time depends on its neighbours (receivers pay, or times are summed), or a demand speaks of
    single layers, the layered model is used instead, and the outcome says so. Raises ValueError as
    ``solvers.dynamic.tables.stage_times.stage_times`` does.
    """
    began_s, limits = time.monotonic(), begin(limits)
    tell_first(instance, limits)
    tables = all_tables(instance, limits.deadline)
    if not applies(tables):
        start = start_of_a_neighbour(instance, limits)
        outcome = layered.solve(instance, limits, start=start)
        return replace(outcome, solver=NAME, notes=(*outcome.notes, "layered model: stages are not independent"))
    stages = Stages(atom_tables(tables, every_cut(instance)))
    space = moderate_space(stages)
    families = stage_families(stages, space)
    plan = best_start(instance, stages, limits, space)
    return Search(
        instance=instance,
        question=Question(
            lambda threshold: build_model(tables, threshold, families, layered=False),
            stages.read,
            stages.objective_values(),
        ),
        limits=limits,
        began_s=began_s,
        plan=plan,
        lower=lower_bound(tables, floors(tables)),
        upper=ceiling(tables, instance.goals[0]) + 1,
    ).outcome(NAME)
