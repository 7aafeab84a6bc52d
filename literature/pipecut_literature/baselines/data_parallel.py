"""Pure data parallelism, the baseline of PipePar's Fig. 4: one stage on all devices, weights copied to each."""

from __future__ import annotations

import time

from pipecut.formulation.costs.tables import build_tables
from pipecut.formulation.outcome import Limits, Outcome
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Span
from pipecut.solvers.reference.algorithm_1 import best_forms
from pipecut_literature.common.one_stage import in_forms
from pipecut_literature.common.priced import in_rows

NAME = "data_parallel"


def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Return the plan with all layers on all devices in form 0, priced by the evaluator (proof FEASIBLE).

    Layers that may not take form 0 take, of their own forms, those with the least communication. ``limits`` do
    not bind. Cost: one run of :func:`solvers.reference.algorithm_1.best_forms`.
    """
    start = time.perf_counter()
    # With form 0 as the only choice wherever it is one, the search over forms has only the other layers left.
    tables = build_tables(in_rows(instance), (Group.on_line(instance, 0, instance.devices),))
    return in_forms(NAME, instance, best_forms(tables, 0, Span(0, len(instance.layers))), start=start)
