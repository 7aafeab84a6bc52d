"""One stage on all devices, in form 0 wherever it may be: a plan of any instance, made without a planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipecut.formulation.costs.tables import build_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome, Proof
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Layer
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.reference.algorithm_1 import best_forms
from pipecut.solvers.search.support import blind_to


def with_layers(instance: Instance, layers: Sequence[Layer]) -> Instance:
    """Return the instance with other rows for its layers: a planner that knows fewer forms leaves some out.

    Without splits along further axes, which add forms to those of the rows.
    """
    alone = replace(instance.constraints, splits=())
    return replace(instance, model=replace(instance.model, layers=tuple(layers)), constraints=alone)


def one_stage(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Return the plan, priced; it sees neither memory nor what is asked of devices, and proves nothing."""
    group, span = Group.on_line(instance, 0, instance.devices), Span(0, len(instance.layers))
    rows = (replace(row, allowed_forms=(0,)) if 0 in row.allowed_forms else row for row in instance.layers)
    tables = build_tables(with_layers(instance, tuple(rows)), (group,))
    plan = Plan((Stage(span, group, best_forms(tables, 0, span)),))
    blind = blind_to("memory", "devices")(instance).unseen
    return Outcome("one_stage", Proof.FEASIBLE, plan, evaluate(instance, plan).objective, blind_to=blind)
