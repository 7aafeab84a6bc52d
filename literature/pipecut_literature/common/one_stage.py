"""One stage on all devices: what planners without a pipeline choose is a form for each layer, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from pipecut.formulation.costs.tables import Tables, build_tables
from pipecut.formulation.limits import NEVER, Deadline, in_time
from pipecut.formulation.outcome import Outcome
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FORMS, FormEdge, Layer
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.units import ceil_fraction
from pipecut.solvers.reference.algorithm_1 import best_forms
from pipecut.solvers.search.support import blind_to
from pipecut_literature.common.priced import priced, with_layers

accepts = blind_to("memory", "devices")
"""What a planner of one stage makes of an instance (``solvers.search.support``)."""

InsideCosts = Sequence[Sequence[int]]
"""By layer and form: what the layer costs by itself, as the planner sees it."""
BetweenCosts = Sequence[Sequence[Sequence[int]]]
"""By form edge, form of its source and form of its consumer: what the change of layout costs."""


def tables_of(instance: Instance, rows: tuple[Layer, ...]) -> Tables:
    """Return pipecut's own costs of one stage on all devices, its layers taking the forms that ``rows`` allow.

    Of 0, 1 and 2, which papers know. Raises ValueError as :func:`prefer` does.
    """
    narrowed = with_layers(instance, tuple(prefer(row, FORMS) for row in rows))
    return build_tables(narrowed, (Group.on_line(instance, 0, instance.devices),))


def least_forms(tables: Tables, inside: InsideCosts, between: BetweenCosts) -> tuple[int, ...]:
    """Return the allowed forms with the least sum of a planner's own costs, one per layer (FOLLOW layers: 0).

    Exact for any layer graph (:mod:`solvers.reference.algorithm_1`). Costs are whole numbers of any unit and
    size: a planner may count bytes for every pair of devices, so they stay Python's integers.
    """
    edges = len(tables.instance.form_edges)
    own = replace(
        tables,
        inside=np.array([inside], dtype=np.object_),
        between=np.array([between], dtype=np.object_).reshape(1, edges, 3, 3),
    )
    return best_forms(own, 0, Span(0, len(tables.instance.layers)))


def sum_of_costs(instance: Instance, forms: Sequence[int], inside: InsideCosts, between: BetweenCosts) -> int:
    """Return what a planner believes forms to cost. A FOLLOW layer has the form of its source (0 without one)."""
    layouts = [0 if source is None else forms[source] for source in instance.sources]
    edges = zip(instance.form_edges, between, strict=True)
    return sum(row[form] for row, form in zip(inside, layouts, strict=True)) + sum(
        cells[forms[edge.source]][forms[edge.consumer]] for edge, cells in edges
    )


def rounded(
    instance: Instance,
    inside: Callable[[int, int], Fraction],
    between: Callable[[FormEdge, int, int], Fraction],
    deadline: Deadline = NEVER,
) -> tuple[InsideCosts, BetweenCosts]:
    """Fill both tables of a planner's own costs, (layer, form) and (edge, form of source, form), rounding up.

    Raises StoppedError after the deadline.
    """
    return (
        [
            [ceil_fraction(inside(layer, form)) for form in FORMS]
            for layer in in_time(range(len(instance.layers)), deadline)
        ],
        [
            [[ceil_fraction(between(edge, source, form)) for form in FORMS] for source in FORMS]
            for edge in in_time(instance.form_edges, deadline)
        ],
    )


def in_forms(
    name: str, instance: Instance, forms: tuple[int, ...], notes: tuple[str, ...] = (), start: float | None = None
) -> Outcome:
    """Return the outcome of one stage on all devices (:func:`pipecut_literature.common.priced.priced`)."""
    group, span = Group.on_line(instance, 0, instance.devices), Span(0, len(instance.layers))
    return priced(name, instance, Plan((Stage(span, group, forms),)), accepts, notes, start=start)


def prefer(layer: Layer, forms: tuple[int, ...]) -> Layer:
    """Return a layer that may take only those of its allowed forms that are listed; of 0, 1 and 2 if none is.

    Raises ValueError for one that may take none of these either, as with ``constraints.forms: [3]``.
    """
    known = tuple(form for form in layer.allowed_forms if form in FORMS)
    if not known:
        allowed = ", ".join(map(str, layer.allowed_forms))
        raise ValueError(f"layer {layer.name} may take form {allowed} only, which planners of a paper do not know")
    return replace(layer, allowed_forms=tuple(form for form in known if form in forms) or known)
