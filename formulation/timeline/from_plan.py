"""A plan's durations and memory, ready for a timeline.

Passes are those of ``formulation.costs.passes``. With ``BoundaryCharge.RECEIVER`` devices stand still to fetch
tensors. The optimiser is a part of synchronisation, under a roofline only.

Where this differs from ``evaluate``, by how much, is told in ``docs/schedules.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from pipecut.formulation.costs import times
from pipecut.formulation.costs.memory import stage_parts
from pipecut.formulation.costs.passes import stage_passes
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import BoundaryCharge, Synchronisation
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.schedules.catalogue import schedule_of
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.formulation.schedules.table import PipelineSchedule
from pipecut.formulation.timeline.durations import Contention, Durations, Execution, Transfers
from pipecut.formulation.timeline.measures import Footprint


@dataclass(frozen=True, slots=True)
class PlanRun:
    """All that ``timeline.run`` and ``Footprint.over_time`` take, made from a plan."""

    schedule: PipelineSchedule
    durations: Durations
    execution: Execution
    footprint: Footprint

    @staticmethod
    def of(instance: Instance, plan: Plan, *, steps: int = 1, contention: Contention = Contention.NONE) -> PlanRun:
        """Return schedule, durations, execution and footprint of a plan, on one rank for each of its groups.

        ``steps`` optimiser steps are run through without a break; more than one only for a schedule without a
        flush, in which weights are updated, as ``evaluate`` has it, every ``training.micro_batches``
        micro-batches. Raises ValueError for other steps. Cost: linear in layers, edges and actions.
        """
        training = instance.training
        flush = training.schedule.flushes
        if steps < 1 or (flush and steps > 1):
            raise ValueError(
                f"steps is {steps}, expected 1{'' if flush else ' or more'} under {training.schedule}"
            )
        receives = instance.cost.boundary_charge is BoundaryCharge.RECEIVER
        return PlanRun(
            schedule=schedule_of(training, len(plan), steps, warm_ups=plan.warm_ups(training)),
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
    """Return the times of a plan's stages and boundaries, passes split as ``formulation.costs.passes`` says."""
    passes = [stage_passes(instance, stage, halves=True) for stage in plan.stages]
    crossed = [(plan.stages[at].span.first, plan.link_before(instance, at)) for at in range(1, len(plan))]
    activation_link, gradient_link = _link_numbers(instance, [stage.group for stage in plan.stages])
    return Durations(
        forward_ns=tuple(one.forward_ns for one in passes),
        backward_ns=tuple(one.backward_ns for one in passes),
        weight_gradient_ns=tuple(one.weight_ns for one in passes),
        recompute_ns=tuple(one.again_ns for one in passes),
        sync_ns=tuple(one.sync_ns for one in passes),
        activation_ns=tuple(times.activation_ns(instance, *where) for where in crossed),
        gradient_ns=tuple(times.gradient_ns(instance, *where) for where in crossed),
        activation_link=activation_link,
        gradient_link=gradient_link,
    )


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
    """Return the memory of a plan's stages: the parts of ``MemoryParts.of_stage``, by when they come and go.

    What a stage holds anyway are its gradients, optimiser state, working set (all the time here) and weights: one
    version, or the two of double buffering; of layers that are computed again also the stash of one micro-batch,
    with backward passes in halves of as many as wait for the second, and their gradients of outputs.
    Where a group holds several stages, working set and computed again are the largest of them, and stand at the
    first: one of them works at a time. In a V what waits between two halves comes and goes with the micro-batches.
    """
    training = instance.training
    doubled = training.schedule is Schedule.DOUBLE_BUFFERED
    static: list[int] = []
    between: list[int] = []
    once: list[tuple[int, int]] = []
    stash: list[int] = []
    versions: list[int] = []
    for index, stage in enumerate(plan.stages):
        parts = stage_parts(instance, stage)
        idle = Keeps(versions=2 if doubled else 1, in_flight=0, again=0)
        static.append(replace(parts, working_set=0).times(idle, stage.group.mode).total)
        again = 0 if training.schedule.in_a_v else Keeps.of(training, index, len(plan)).again
        once.append((parts.working_set, again * (parts.recomputed + parts.output_gradients)))
        between.append((parts.recomputed + parts.output_gradients) * training.schedule.in_a_v)
        stash.append(parts.received + parts.stash)
        versions.append(0 if doubled else parts.weights)
    for rank in range(training.ranks(len(plan))):
        of_rank = (once[stage] for stage in training.stages_of(rank, len(plan)))
        static[rank] += sum(map(max, zip(*of_rank, strict=True)))
    return Footprint(tuple(static), tuple(stash), version_bytes=tuple(versions), between_bytes=tuple(between))
