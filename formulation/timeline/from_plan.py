"""A plan's durations and memory, ready for a timeline: the prices of ``formulation.costs.times``, split by pass.

``formulation.evaluate`` charges a stage one number for a micro-batch; the timeline needs to know what of it
belongs to the forward pass, what to the backward pass, and what to the end of a step:

===============================  =============================================================================
price                            where it goes
===============================  =============================================================================
compute, eq. (3)                 forward and backward of the class that is slowest in both together, layer by layer
weight gradients                 synchronisation, whole, once a step; beside other work where it is overlapped
recomputation                    the forward pass once more, before the backward pass
inside a layer, form 1           forward: the all-reduce of the output
inside a layer, form 2           backward: the all-reduce of the input's gradient
between layers, to whole         forward: the tensor is gathered; its gradient already lies as it should
between layers, from whole       backward, for the same reason
between layers, rows to columns  half and half, the odd nanosecond forward; also columns to rows
boundary                         transfers, over the slowest link between the two groups
===============================  =============================================================================

With ``StageTime.OVERLAP`` communication hides behind the computation of its own pass, so a pass takes the larger
of both. With ``BoundaryCharge.RECEIVER`` devices stand still to fetch tensors. The optimiser takes no time: an
instance does not know of it.

Where this differs from ``evaluate``, by how much, is told in ``docs/schedules.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from formulation.costs import forms, times
from formulation.costs.memory import Keeps, stage_parts
from formulation.problem.groups import Group, GroupKind, group_kind, link_between
from formulation.problem.instance import FormEdge, Instance
from formulation.problem.layers import Split
from formulation.problem.options import BoundaryCharge, Schedule, StageTime, Synchronisation
from formulation.problem.plan import Plan, Stage
from formulation.problem.units import ceil_fraction
from formulation.schedules.catalogue import SCHEDULES
from formulation.schedules.table import PipelineSchedule
from formulation.timeline.durations import Contention, Durations, Execution, Transfers
from formulation.timeline.footprint import Footprint

__all__ = ["PlanRun", "from_plan"]


@dataclass(frozen=True, slots=True)
class PlanRun:
    """All that ``timeline.run`` and ``memory_over_time`` take, made from a plan."""

    schedule: PipelineSchedule
    durations: Durations
    execution: Execution
    footprint: Footprint


def from_plan(
    instance: Instance, plan: Plan, *, steps: int = 1, contention: Contention = Contention.NONE
) -> PlanRun:
    """Return schedule, durations, execution and footprint of a plan, on one rank for each of its groups.

    ``steps`` optimiser steps are run through without a break; more than one only for a schedule without a flush,
    in which weights are updated, as ``evaluate`` has it, every ``training.micro_batches`` micro-batches.
    Raises ValueError for other steps. Cost: linear in layers, edges and actions.
    """
    training = instance.training
    flush = training.schedule.flushes
    if steps < 1 or (flush and steps > 1):
        raise ValueError(f"steps is {steps}, expected 1{'' if flush else ' or more'} under {training.schedule}")
    receives = instance.cost.boundary_charge is BoundaryCharge.RECEIVER
    return PlanRun(
        schedule=SCHEDULES[training.schedule](len(plan), training.micro_batches * steps),
        durations=durations_of(instance, plan),
        execution=Execution(
            contention=contention,
            transfers=Transfers.RECEIVER if receives else Transfers.OVERLAPPED,
            overlap_sync=instance.cost.synchronisation is Synchronisation.OVERLAPPED,
            updates_every=training.micro_batches,
        ),
        footprint=footprint_of(instance, plan),
    )


def durations_of(instance: Instance, plan: Plan) -> Durations:
    """Return the times of a plan's stages and boundaries, split as in the table above."""
    passes = [_stage_passes(instance, stage) for stage in plan.stages]
    groups = [stage.group for stage in plan.stages]
    cuts = [stage.span.first for stage in plan.stages[1:]]
    links = [link_between(instance, one, other) for one, other in pairwise(groups)]
    activation_link, gradient_link = _link_numbers(instance, groups)
    return Durations(
        forward_ns=tuple(one.forward_ns for one in passes),
        backward_ns=tuple(one.backward_ns for one in passes),
        recompute_ns=tuple(
            one.forward_ns * stage.group.recompute for one, stage in zip(passes, plan.stages, strict=True)
        ),
        sync_ns=tuple(one.sync_ns for one in passes),
        activation_ns=tuple(times.activation_ns(instance, *where) for where in zip(cuts, links, strict=True)),
        gradient_ns=tuple(times.gradient_ns(instance, *where) for where in zip(cuts, links, strict=True)),
        activation_link=activation_link,
        gradient_link=gradient_link,
    )


@dataclass(frozen=True, slots=True)
class StagePasses:
    """Times of one stage: forward and backward pass of a micro-batch, synchronisation once a step."""

    forward_ns: int
    backward_ns: int
    sync_ns: int


def _stage_passes(instance: Instance, stage: Stage) -> StagePasses:
    again, kind = stage.group.recompute, group_kind(instance, stage.group)
    kind = replace(kind, mode=replace(kind.mode, recompute=False))
    forward = backward = forward_sent = backward_sent = sync = 0
    for layer in stage.span.layers:
        computed = _compute(instance, layer, kind, forwards=1 + again)
        forward, backward = forward + computed[0], backward + computed[1]
        sent = _inside(instance, stage, layer, kind)
        forward_sent, backward_sent, sync = forward_sent + sent[0], backward_sent + sent[1], sync + sent[2]
    for edge in instance.form_edges:
        if edge.source in stage.span and edge.consumer in stage.span:
            changed = _between(instance, stage, edge, kind)
            forward_sent, backward_sent = forward_sent + changed[0], backward_sent + changed[1]
    if instance.cost.stage_time is StageTime.OVERLAP:
        return StagePasses(max(forward, forward_sent), max(backward, backward_sent), sync)
    return StagePasses(forward + forward_sent, backward + backward_sent, sync)


def _compute(instance: Instance, layer: int, kind: GroupKind, *, forwards: int) -> tuple[int, int]:
    """Return forward and backward time on the class that sets the pace of ``times.compute_ns``."""
    shares = [
        (
            ceil_fraction(instance.forward_ns[one][layer] * share),
            ceil_fraction(instance.backward_ns[one][layer] * share),
        )
        for one, share in zip(kind.classes, kind.shares.by_class, strict=True)
    ]
    return max(shares, key=lambda share: forwards * share[0] + share[1])


def _inside(instance: Instance, stage: Stage, layer: int, kind: GroupKind) -> tuple[int, int, int]:
    """Return communication inside a layer: in the forward pass, in the backward pass, at the end of a step."""
    source = times.layout_form(instance, stage.span, layer)
    form = 0 if source is None else stage.form(source)
    spent = times.passes_ns(instance, layer, form, kind)
    sync = times.synchronisation_ns(instance, layer, form, kind)
    return (spent, 0, sync) if form == 1 else (0, spent, sync)


def _between(instance: Instance, stage: Stage, edge: FormEdge, kind: GroupKind) -> tuple[int, int]:
    """Return the change of layout at an edge: in the forward pass, and in the backward pass."""
    source, form = stage.form(edge.source), stage.form(edge.consumer)
    spent = times.between_ns(instance, edge, source, form, kind)
    have = forms.MADE[source]
    matrix = instance.layers[edge.consumer].split is Split.MATRIX
    want = (forms.TAKEN_BY_MATRIX if matrix else forms.MADE)[form]
    if forms.WHOLE in (have, want):
        return (spent, 0) if want == forms.WHOLE else (0, spent)
    return spent - spent // 2, spent // 2


def _link_numbers(instance: Instance, groups: list[Group]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the link of each boundary forward and backward: one for each ordered pair of servers.

    A boundary uses the pair of servers with the narrowest link, the first of several. Inside a server activations
    share one link and gradients another: links carry both directions at once.
    """
    numbers: dict[tuple[int, int, bool], int] = {}
    forward: list[int] = []
    backward: list[int] = []
    for one, other in pairwise(groups):
        pairs = [(a, b) for a, _ in one.counts for b, _ in other.counts]
        a, b = min(pairs, key=lambda pair: _bits_per_second(instance, *pair))
        forward.append(numbers.setdefault((a, b, False), len(numbers)))
        backward.append(numbers.setdefault((b, a, a == b), len(numbers)))
    return tuple(forward), tuple(backward)


def _bits_per_second(instance: Instance, one: int, other: int) -> float:
    """Return the bandwidth between two servers; without end inside one that has a single device."""
    link = instance.links[one][other]
    return inf if link is None else link.bits_per_second


def footprint_of(instance: Instance, plan: Plan) -> Footprint:
    """Return the memory of a plan's stages: the parts of ``memory.stage_memory``, by when they come and go.

    What a stage holds anyway are its gradients, optimiser state, working set (all the time here) and weights: one
    version, or the two of double buffering. With recomputation it is also the stash of one micro-batch.
    """
    doubled = instance.training.schedule is Schedule.DOUBLE_BUFFERED
    static: list[int] = []
    stash: list[int] = []
    versions: list[int] = []
    for stage in plan.stages:
        parts, mode = stage_parts(instance, stage), stage.group.mode
        idle = Keeps(versions=2 if doubled else 1, in_flight=0)
        static.append(parts.times(idle, mode).total)
        stash.append(parts.received + (0 if mode.recompute else parts.stash))
        versions.append(0 if doubled else parts.weights)
    return Footprint(tuple(static), tuple(stash), version_bytes=tuple(versions))
