"""What of the price of a stage belongs to which pass: the prices of ``formulation.costs.times``, split.

``formulation.evaluate`` charges a stage one number for a micro-batch; what is executed needs to know what of it
belongs to the forward pass, what to the backward pass, and what to the end of a step:

===============================  =============================================================================
price                            where it goes
===============================  =============================================================================
compute                          forward and backward of the class that is slowest in both together, layer by layer
weight gradients                 synchronisation, whole, once a step; beside other work where it is overlapped
halves of a backward pass        to weights: what it takes more than with frozen weights, and adding them to parts
divided weights and gradients    gathered before each pass; gradients added to parts in the backward pass
recomputation                    the forward pass of layers computed again, before the backward pass
inside a layer                   sums and gatherings of output and input forward, of their gradients backward
between layers, to whole         forward: the tensor is gathered; its gradient already lies as it should
between layers, from whole       backward, for the same reason
between layers, rows to columns  half and half, the odd nanosecond forward; also columns to rows
boundary                         transfers, over the slowest link between the two groups
===============================  =============================================================================

With ``StageTime.OVERLAP`` communication hides behind the computation of its own pass, so a pass takes the larger
of both. With ``BoundaryCharge.RECEIVER`` devices stand still to fetch tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import add

from pipecut.formulation.costs import times
from pipecut.formulation.costs.once import once
from pipecut.formulation.costs.prices import form_of
from pipecut.formulation.executed import PipelinePasses
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FormEdge, into
from pipecut.formulation.problem.modes import forward_passes
from pipecut.formulation.problem.options import BoundaryCharge, StageTime
from pipecut.formulation.problem.plan import Plan, Stage
from pipecut.formulation.problem.precision import Copy


@dataclass(frozen=True, slots=True)
class StagePasses:
    """Times of one stage: forward and backward pass of a micro-batch, synchronisation once a step.

    ``again_ns`` is what the stage computes again before the backward pass, ``weight_ns`` what of this pass is for
    the gradients of weights, which may wait.
    """

    forward_ns: int
    backward_ns: int
    sync_ns: int
    again_ns: int
    weight_ns: int


_computed, _for_weights = once()(times.passes_of), once()(times.weight_gradient_ns)


@once()
def stage_passes(instance: Instance, stage: Stage, *, halves: bool) -> StagePasses:
    """Return the passes of one stage, with ``halves`` also what of the backward pass is for weights.

    Cost: linear in its layers and the form edges of the model.
    """
    kinds = stage.kinds(GroupKind.of(instance, stage.group))
    # Backward passes whole, and what of them is for the gradients of weights.
    backward, backward_sent, sync = [0, 0], [0, 0], 0
    # Forward passes by how often they run: all, and those of the layers that are computed again.
    forward, forward_sent = [0, 0], [0, 0]
    for layer, kind in kinds.items():
        form, copy = form_of(instance, stage, layer), instance.copied(layer, stage.span.first)
        of = instance, instance.alike[layer], form, kind
        computed, sent = _computed(*of), _inside(*of, copy)
        for run in range(forward_passes(instance, kind.mode, layer)):
            forward[run], forward_sent[run] = forward[run] + computed[0], forward_sent[run] + sent[0]
        backward[0], backward_sent[0], sync = backward[0] + computed[1], backward_sent[0] + sent[1], sync + sent[2]
        if halves:
            backward[1] += _for_weights(*of)
            backward_sent[1] += sent[3]
    for edge in into(instance.form_edges, stage.span.layers):
        if edge.source in stage.span:
            kind = kinds[edge.consumer]
            ends = stage.form(edge.source), stage.form(edge.consumer)
            changed = times.change_ns(instance, edge, *ends, kind)
            for run in range(forward_passes(instance, kind.mode, edge.consumer)):
                forward_sent[run] += changed[0]
            backward_sent[0] += changed[1]
    taken = max if instance.cost.stage_time is StageTime.OVERLAP else add
    own, again = map(taken, forward, forward_sent)
    whole = taken(backward[0], backward_sent[0])
    inputs = taken(backward[0] - backward[1], backward_sent[0] - backward_sent[1])
    return StagePasses(own, whole, sync, again, whole - inputs)


def layer_passes(
    instance: Instance, layer: int, form: int, kind: GroupKind, copy: Copy | None = None
) -> tuple[int, int, int, int]:
    """Return what one layer takes in a stage where passes add up, with what it copies there, if anything.

    Forward pass, backward pass with what is computed again, and synchronisation, in ns; and under a schedule with
    backward passes in halves what of them is for the gradients of weights.
    """
    *parts, sync, computed, sent = layer_parts(instance, layer, form, kind, copy)
    forward, backward, again = map(add, parts[:3], parts[3:])
    return forward, backward + again, sync, computed + sent


def layer_parts(
    instance: Instance, layer: int, form: int, kind: GroupKind, copy: Copy | None = None
) -> tuple[int, ...]:
    """Return the same in parts: computing and then communicating, each forward, backward, and what is run again.

    Then the synchronisation, and what of the backward pass is for weights: of computing and of communicating, 0
    under a schedule without halves.
    """
    computed, sent = times.passes_of(instance, layer, form, kind), _inside(instance, layer, form, kind, copy)
    again, halves = forward_passes(instance, kind.mode, layer) - 1, instance.training.schedule.in_halves
    weights = (times.weight_gradient_ns(instance, layer, form, kind), sent[3]) if halves else (0, 0)
    return *computed, again * computed[0], *sent[:2], again * sent[0], sent[2], *weights


@once()
def _inside(
    instance: Instance, layer: int, form: int, kind: GroupKind, copy: Copy | None
) -> tuple[int, int, int, int]:
    """Return communication inside a layer: in the forward pass, in the backward pass, at the end of a step.

    And what of that in the backward pass is for the gradients of weights.
    """
    once = _once(kind)
    forward, backward = times.passes_ns(instance, layer, form, once)
    sync = times.synchronisation_ns(instance, layer, form, once, copy)
    sync += times.exchange_ns(instance, layer, form, once, copy)
    before, behind, weights = times.sharded_ns(instance, layer, form, kind, copy)
    return forward + before, backward + behind, sync, weights


def change_passes(instance: Instance, edge: FormEdge, source: int, form: int, kind: GroupKind) -> tuple[int, int]:
    """Return the change of layout at an edge in ns: in the forward pass, and in the backward pass.

    The latter with what is computed again.
    """
    forward, backward, again = change_parts(instance, edge, source, form, kind)
    return forward, backward + again


def change_parts(
    instance: Instance, edge: FormEdge, source: int, form: int, kind: GroupKind
) -> tuple[int, int, int]:
    """Return the same with what is run again apart, behind the backward pass."""
    forward, backward = times.change_ns(instance, edge, source, form, kind)
    return forward, backward, forward * (forward_passes(instance, kind.mode, edge.consumer) - 1)


def _once(kind: GroupKind) -> GroupKind:
    """Return the kind without what it computes again."""
    return replace(kind, mode=replace(kind.mode, recompute=False)) if kind.mode.recompute else kind


def pipeline_passes(instance: Instance, plan: Plan) -> PipelinePasses:
    """Return the passes of a whole plan, recomputation included, transfers with who pays for them.

    Cost: linear in layers and edges of every stage.
    """
    halves = instance.training.schedule.in_halves
    own = [stage_passes(instance, stage, halves=halves) for stage in plan.stages]
    crossed = [(plan.stages[at].span.first, plan.link_before(instance, at)) for at in range(1, len(plan))]
    passes = PipelinePasses(
        forward_ns=tuple(one.forward_ns for one in own),
        backward_ns=tuple(one.backward_ns + one.again_ns for one in own),
        sync_ns=tuple(one.sync_ns for one in own),
        activation_ns=tuple(times.activation_ns(instance, *where) for where in crossed),
        gradient_ns=tuple(times.gradient_ns(instance, *where) for where in crossed),
        weight_ns=tuple(one.weight_ns for one in own),
    )
    return passes.fetched() if instance.cost.boundary_charge is BoundaryCharge.RECEIVER else passes
