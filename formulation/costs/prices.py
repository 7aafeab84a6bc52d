"""What every stage of a plan costs, from ``formulation.costs.times``, layer by layer: no table, no cleverness."""

from __future__ import annotations

from dataclasses import dataclass

from pipecut.formulation.costs import times
from pipecut.formulation.costs.memory import MemoryParts, capacity_bytes
from pipecut.formulation.costs.once import once
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import into
from pipecut.formulation.problem.options import BoundaryCharge, Compute, StageTime, Synchronisation
from pipecut.formulation.problem.plan import Plan, Stage
from pipecut.formulation.problem.units import ceil_div


@dataclass(frozen=True, slots=True)
class StageCost:
    """Where the time of one stage goes, per micro-batch, and its peak memory by kind.

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
    memory: MemoryParts
    capacity_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Peak memory of one device."""
        return self.memory.total

    @property
    def communication_ns(self) -> int:
        """Communication of the stage: inside its layers, between them, and what it pays of its boundaries."""
        return self.inside_ns + self.between_ns + self.received_ns

    @staticmethod
    def keys() -> tuple[str, ...]:
        """Return the prices that plan files and reports have, by their names there."""
        times_ns = ("compute_ns", "inside_ns", "between_ns", "received_ns", "total_ns", "boundary_ns")
        return (*times_ns, "memory_bytes", "capacity_bytes")

    def fields(self) -> dict[str, int]:
        """Return the cost of a stage as plain data: times in ns, memory in bytes."""
        return {key: getattr(self, key) for key in self.keys()}


@once(4)
def stage_costs(instance: Instance, plan: Plan) -> tuple[StageCost, ...]:
    """Return the cost of every stage of a plan that is one. Cost: linear in layers and edges of every stage.

    The last few answers are kept: goals, limits on them and memory speak of the same stages.
    """
    return tuple(_stage_cost(instance, plan, index) for index in range(len(plan)))


_compute, _inside = once()(times.compute_ns), once()(times.inside_ns)


@once()
def _within(instance: Instance, stage: Stage) -> tuple[int, int, int]:
    """Return what layers take to compute, communicate inside them and between them, boundaries left out."""
    kinds, first = stage.kinds(GroupKind.of(instance, stage.group)), stage.span.first
    compute = inside = 0
    for layer, kind in kinds.items():
        form, copy = form_of(instance, stage, layer), instance.copied(layer, first)
        of = instance, instance.alike[layer], form, kind
        compute, inside = compute + _compute(*of), inside + _inside(*of, copy)
    between = sum(
        times.between_ns(instance, edge, stage.form(edge.source), stage.form(edge.consumer), kinds[edge.consumer])
        for edge in into(instance.form_edges, stage.span.layers)
        if edge.source in stage.span
    )
    return compute, inside, between


def _stage_cost(instance: Instance, plan: Plan, index: int) -> StageCost:
    stage = plan.stages[index]
    compute, inside, between = _within(instance, stage)
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
        memory=MemoryParts.of_stage(instance, plan, index),
        capacity_bytes=capacity_bytes(instance, stage.group),
    )


def updates_ns(instance: Instance, stage: Stage) -> tuple[int, int]:
    """Return the time of the optimiser on the devices of a stage: once a step, and what a micro-batch is charged.

    It is a part of the synchronisation (``times.synchronisation_ns``), and so of ``StageCost.inside_ns``. 0
    without a roofline, and where the host updates weights. Cost: linear in the layers of the stage.
    """
    if instance.cost.compute is not Compute.ROOFLINE or stage.group.mode.optimizer_on_host:
        return 0, 0
    once = [
        times.update_ns(
            instance, layer, form_of(instance, stage, layer), kind, instance.copied(layer, stage.span.first)
        )
        for layer, kind in stage.kinds(GroupKind.of(instance, stage.group)).items()
    ]
    charged = instance.cost.synchronisation is Synchronisation.CHARGED
    return sum(once), charged * sum(ceil_div(one, instance.training.micro_batches) for one in once)


def form_of(instance: Instance, stage: Stage, layer: int) -> int:
    """Return the form that a layer of a stage has, or whose layout it keeps; 0 where it came over a boundary."""
    source = times.layout_form(instance, stage.span, layer)
    return 0 if source is None else stage.form(source)


def _boundaries(instance: Instance, plan: Plan, index: int) -> tuple[int, int, int]:
    """Activation and gradient time of the boundary before a stage, and what the stage pays as a receiver."""
    stage = plan.stages[index]
    activation = gradient = outgoing = 0
    if index > 0:
        at = instance, stage.span.first, plan.link_before(instance, index)
        activation, gradient = times.activation_ns(*at), times.gradient_ns(*at)
    if index + 1 < len(plan):
        outgoing = times.gradient_ns(instance, stage.span.stop, plan.link_before(instance, index + 1))
    receives = instance.cost.boundary_charge is BoundaryCharge.RECEIVER
    return activation, gradient, activation + outgoing if receives else 0
