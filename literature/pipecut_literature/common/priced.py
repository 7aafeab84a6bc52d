"""What planners have in common: rows of layers that know fewer forms, and an outcome priced by the evaluator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Outcome, Proof
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Layer
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.reference.flat_cluster import believes
from pipecut.solvers.search.support import Accepts


def with_layers(instance: Instance, layers: Sequence[Layer]) -> Instance:
    """Return the instance with other rows for its layers: a planner that knows fewer forms leaves some out.

    Without splits along further axes, which add forms to those of the rows.
    """
    alone = replace(instance.constraints, splits=())
    return replace(instance, model=replace(instance.model, layers=tuple(layers)), constraints=alone)


def in_rows(instance: Instance) -> Instance:
    """Return the instance with form 0 as the only one of every layer that may take it."""
    return with_layers(
        instance,
        [replace(layer, allowed_forms=(0,)) if 0 in layer.allowed_forms else layer for layer in instance.layers],
    )


def priced(
    name: str,
    instance: Instance,
    plan: Plan,
    accepts: Accepts,
    notes: tuple[str, ...] = (),
    *,
    believed: tuple[str, int] | None = None,
    start: float | None = None,
) -> Outcome:
    """Return a plan as a planner's outcome, priced by the evaluator (proof FEASIBLE, no bound).

    ``believed`` is who expects what time in ns, for the last note. ``start`` is a perf_counter, for planners that
    nobody else times (``solvers.search.stoppable``).
    """
    found = evaluate(instance, plan).objective
    if believed is not None:
        notes = (*notes, believes(*believed, instance, found))
    seconds = 0.0 if start is None else time.perf_counter() - start
    return Outcome(name, Proof.FEASIBLE, plan, found, None, seconds, notes, accepts(instance).unseen)
