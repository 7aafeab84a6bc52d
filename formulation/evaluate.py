"""The price of any plan, recomputed from the instance alone: no solver, no table, no cleverness.

``evaluate`` is what makes a solver's claim checkable: it re-derives every time from ``formulation.times`` layer
by layer, and is compared with ``==`` to what the solver said.
"""

from __future__ import annotations

from dataclasses import dataclass

from formulation import times
from formulation.groups import group_kind, link_between
from formulation.instance import Instance
from formulation.memory import capacity_bytes, stage_memory_bytes
from formulation.options import BoundaryCharge, Combine, StageTime
from formulation.plan import Plan, Stage
from formulation.rules import RULES, Violation, structure_violations


@dataclass(frozen=True, slots=True)
class StageCost:
    """Where the time of one stage goes, per micro-batch, and its peak memory.

    ``boundary_ns`` is the time of the boundary before this stage (activations in and gradients out), 0 for the
    first; ``received_ns`` what the stage itself pays of its boundaries (only if receivers pay); ``total_ns``
    the time of the stage, without boundaries that links pay.
    """

    compute_ns: int
    inside_ns: int
    between_ns: int
    received_ns: int
    total_ns: int
    boundary_ns: int
    memory_bytes: int
    capacity_bytes: int

    @property
    def communication_ns(self) -> int:
        """Communication of the stage: inside its layers, between them, and what it pays of its boundaries."""
        return self.inside_ns + self.between_ns + self.received_ns


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The price of a plan and the rules that it breaks. No objective for a plan that is none (see rules)."""

    objective: int | None
    stages: tuple[StageCost, ...]
    violations: tuple[Violation, ...]

    @property
    def feasible(self) -> bool:
        """Tell whether the plan keeps every rule."""
        return not self.violations


def evaluate(instance: Instance, plan: Plan) -> Evaluation:
    """Price a plan and list the rules that it breaks. Cost: linear in layers and edges of every stage."""
    broken = tuple(structure_violations(instance, plan))
    if broken:
        return Evaluation(None, (), broken)
    stages = tuple(_stage_cost(instance, plan, index) for index in range(len(plan)))
    violations = tuple(found for rule in RULES for found in rule.check(instance, plan))
    return Evaluation(bottleneck_ns(instance, stages), stages, violations)


def bottleneck_ns(instance: Instance, stages: tuple[StageCost, ...]) -> int:
    """Combine stage and boundary times: the largest (bottleneck), or the sum of all (eq. 1)."""
    paid_by_link = instance.cost.boundary_charge is BoundaryCharge.LINK
    terms = [stage.total_ns for stage in stages]
    terms += [stage.boundary_ns for stage in stages if paid_by_link]
    return max(terms) if instance.cost.combine is Combine.MAX else sum(terms)


def _stage_cost(instance: Instance, plan: Plan, index: int) -> StageCost:
    stage = plan.stages[index]
    kind = group_kind(instance, stage.group)
    compute = sum(times.compute_ns(instance, layer, kind) for layer in stage.span.layers)
    inside = sum(
        times.inside_ns(instance, layer, _layout(instance, stage, layer), kind) for layer in stage.span.layers
    )
    between = sum(
        times.between_ns(instance, edge, stage.form(edge.source), stage.form(edge.consumer), kind)
        for edge in instance.form_edges
        if edge.source in stage.span and edge.consumer in stage.span
    )
    activation, gradient, received = _boundaries(instance, plan, index)
    communication = inside + between + received
    overlap = instance.cost.stage_time is StageTime.OVERLAP
    return StageCost(
        compute_ns=compute,
        inside_ns=inside,
        between_ns=between,
        received_ns=received,
        total_ns=max(compute, communication) if overlap else compute + communication,
        boundary_ns=activation + gradient,
        memory_bytes=stage_memory_bytes(instance, plan, index),
        capacity_bytes=capacity_bytes(instance, stage.group),
    )


def _layout(instance: Instance, stage: Stage, layer: int) -> int:
    source = times.layout_form(instance, stage.span, layer)
    return 0 if source is None else stage.form(source)


def _boundaries(instance: Instance, plan: Plan, index: int) -> tuple[int, int, int]:
    """Activation and gradient time of the boundary before a stage, and what the stage pays as a receiver."""
    stage = plan.stages[index]
    activation = gradient = outgoing = 0
    if index > 0:
        link = link_between(instance, plan.stages[index - 1].group, stage.group)
        activation = times.activation_ns(instance, stage.span.first, link)
        gradient = times.gradient_ns(instance, stage.span.first, link)
    if index + 1 < len(plan):
        link = link_between(instance, stage.group, plan.stages[index + 1].group)
        outgoing = times.gradient_ns(instance, stage.span.stop, link)
    receives = instance.cost.boundary_charge is BoundaryCharge.RECEIVER
    return activation, gradient, activation + outgoing if receives else 0
