"""The accelerated solver: whole stages from the tables of the dynamic programme (``solvers.cpsat.stages``)."""

from __future__ import annotations

import time
from dataclasses import replace

from formulation.ceiling import ceiling
from formulation.instance import Instance
from formulation.outcome import Limits, Outcome, begin
from formulation.tables import all_tables
from solvers.cpsat import layered
from solvers.cpsat.bounds import lower_bound
from solvers.cpsat.model import build_model
from solvers.cpsat.search import Question, Search
from solvers.cpsat.stage_plans import Stages
from solvers.cpsat.stages import applies, stage_families
from solvers.cpsat.valid import floors
from solvers.cpsat.warm_start import best_start, moderate_space, start_of_a_neighbour
from solvers.hybrid import stage_times
from solvers.search.stoppable import stoppable, tell_first

NAME = "cpsat_stages"


@stoppable(NAME, best=True)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Find the best plan and prove it with stage times of the dynamic programme.

    Where a stage's time depends on its neighbours (receivers pay, or times are summed), or a demand speaks of
    single layers, the layered model is used instead, and the outcome says so. Raises ValueError as
    ``solvers.hybrid.stage_times`` does.
    """
    began_s, limits = time.monotonic(), begin(limits)
    tell_first(instance, limits)
    tables = all_tables(instance, limits.deadline)
    if not applies(tables):
        start = start_of_a_neighbour(instance, limits)
        outcome = layered.solve(instance, limits, start=start)
        return replace(outcome, solver=NAME, notes=(*outcome.notes, "layered model: stages are not independent"))
    stages = Stages(stage_times(tables))
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
