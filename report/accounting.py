"""Where the time of every rank goes: five parts that add up to the makespan, to the nanosecond.

=========  ==========================================================================================
compute    the layers' own work
inside     communication inside layers: during passes, and synchronisation of weight gradients, with the optimiser
between    communication between layers of the stage, where layouts change
boundary   standing still while a tensor that it needs is on its way from a neighbour, or being fetched
idle       all else: waiting for a neighbour to compute
=========  ==========================================================================================

Communication that hides behind the computation of its own pass (``StageTime.OVERLAP``) takes no time of its own
and counts as compute; what sticks out counts as between as far as there is any, then as inside. A synchronisation
counts where the device does nothing else meanwhile; it goes before waiting for a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from formulation.schedules.dependencies import NONE
from formulation.schedules.table import Integers
from formulation.timeline.timeline import Timeline
from formulation.timeline.updates import SYNC
from report.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Spent:
    """The time of one rank over the whole run, in ns."""

    compute_ns: int
    inside_ns: int
    between_ns: int
    boundary_ns: int
    idle_ns: int


def spent_of(simulation: Simulation) -> list[Spent]:
    """Return the parts of every rank; each adds up to the makespan. Cost: linear in actions."""
    return [_spent(simulation, rank) for rank in range(len(simulation.ranks))]


def _spent(simulation: Simulation, rank: int) -> Spent:
    timeline, durations = simulation.timeline, simulation.made.durations
    compute = inside = between = 0
    for stage in simulation.ranks[rank]:
        cost = simulation.evaluation.stages[stage]
        passes = durations.forward_ns[stage] + durations.backward_ns[stage] + durations.recompute_ns[stage]
        computed = min(passes, cost.compute_ns)
        changed = min(passes - computed, cost.between_ns)
        compute += simulation.micro_batches * computed
        between += simulation.micro_batches * changed
        inside += simulation.micro_batches * (passes - computed - changed)
    alone, boundary = _gaps(timeline, rank, _synced_before(timeline, simulation.ranks[rank]))
    idle = timeline.makespan_ns - compute - between - inside - alone - boundary
    return Spent(compute, inside + alone, between, boundary, idle)


def _synced_before(timeline: Timeline, stages: tuple[int, ...]) -> Callable[[Integers], Integers]:
    """Return the function from moments to how long these stages, all of one rank, have synchronised until then.

    They take turns in one queue, so their synchronisations stand in order and never overlap.
    """
    program, times = timeline.program, timeline.times
    of_stage = program.stage == stages[0]
    for stage in stages[1:]:
        of_stage |= program.stage == stage
    mine = (program.kind == SYNC) & of_stage
    start, stop = times.start_ns[mine], times.stop_ns[mine]
    whole = (stop - start).cumsum()

    def before(moments: Integers) -> Integers:
        if len(start) == 0:
            return moments - moments
        begun = start.searchsorted(moments, side="right")
        return (begun > 0).astype(moments.dtype) * (whole[begun - 1] - (stop[begun - 1] - moments).clip(min=0))

    return before


def _gaps(timeline: Timeline, rank: int, synced: Callable[[Integers], Integers]) -> tuple[int, int]:
    """Return how long a rank, between its passes, only synchronises, and only waits for messages that travel."""
    program, times = timeline.program, timeline.times
    row = timeline.schedule.row(rank)
    start, stop, source = times.start_ns[row], times.stop_ns[row], program.needs[row]
    last = times.stop_ns.max(keepdims=True)
    alone = int(synced(start).sum() - synced(stop).sum() + synced(last).sum())
    free = stop - stop
    free[1:] = stop[:-1]
    takes = (source != NONE) & (program.link[source] != NONE)
    sent = source[takes]
    since = free[takes].clip(min=times.depart_ns[sent])
    until = start[takes].clip(max=times.arrive_ns[sent]).clip(min=since)
    return alone, int((until - since - synced(until) + synced(since)).sum())
