"""Pure data parallelism, the baseline of PipePar's Fig. 4: one stage on all devices, weights copied to each."""

from __future__ import annotations

import time
from dataclasses import replace

from pipecut.formulation.costs.tables import build_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome, Proof
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.reference.algorithm_1 import best_forms
from pipecut.solvers.search.support import blind_to
from pipecut_literature.common.one_stage import with_layers

NAME = "data_parallel"

accepts = blind_to("memory", "devices")
"""What the planner makes of an instance (``solvers.search.support``)."""


def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Return the plan with all layers on all devices in form 0, priced by the evaluator (proof FEASIBLE).

    Layers that may not take form 0 take, of their own forms, those with the least communication. ``limits`` do
    not bind. Cost: one run of :func:`solvers.reference.algorithm_1.best_forms`.
    """
    start = time.perf_counter()
    group, span = Group.on_line(instance, 0, instance.devices), Span(0, len(instance.layers))
    # With form 0 as the only choice wherever it is one, the search over forms has only the other layers left.
    rows = tuple(
        replace(layer, allowed_forms=(0,)) if 0 in layer.allowed_forms else layer for layer in instance.layers
    )
    tables = build_tables(with_layers(instance, rows), (group,))
    plan = Plan((Stage(span, group, best_forms(tables, 0, span)),))
    found = evaluate(instance, plan).objective
    seconds = time.perf_counter() - start
    blind = accepts(instance).unseen
    return Outcome(NAME, Proof.FEASIBLE, plan, objective=found, seconds=seconds, blind_to=blind)
