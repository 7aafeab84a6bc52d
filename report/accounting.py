"""Where the time of every stage goes: five parts that add up to the makespan, to the nanosecond.

=========  ==========================================================================================
compute    the layers' own work
inside     communication inside layers: during passes, and synchronisation of weight gradients
between    communication between layers of the stage, where layouts change
boundary   standing still while a tensor that it needs is on its way from a neighbour, or being fetched
idle       all else: waiting for a neighbour to compute
=========  ==========================================================================================

Communication that hides behind the computation of its own pass (``StageTime.OVERLAP``) takes no time of its own
and counts as compute; what sticks out counts as between as far as there is any, then as inside.
"""

from __future__ import annotations

from dataclasses import dataclass

from formulation.schedules.dependencies import NONE
from formulation.timeline.timeline import Timeline
from formulation.timeline.updates import SYNC
from report.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Spent:
    """The time of one stage over the whole run, in ns."""

    compute_ns: int
    inside_ns: int
    between_ns: int
    boundary_ns: int
    idle_ns: int


def spent_of(simulation: Simulation) -> list[Spent]:
    """Return the parts of every stage; each adds up to the makespan. Cost: linear in actions."""
    timeline, durations = simulation.timeline, simulation.made.durations
    rounds = simulation.micro_batches
    found: list[Spent] = []
    for stage, cost in enumerate(simulation.evaluation.stages):
        passes = durations.forward_ns[stage] + durations.backward_ns[stage]
        sent = passes - cost.compute_ns
        between = min(sent, cost.between_ns)
        syncs = _syncs(timeline, stage)
        inside = rounds * (sent - between) + sum(stop - start for start, stop in syncs.items())
        boundary = _waits_for_tensors(timeline, stage, syncs)
        busy = rounds * (cost.compute_ns + between) + inside + boundary
        found.append(
            Spent(
                compute_ns=rounds * cost.compute_ns,
                inside_ns=inside,
                between_ns=rounds * between,
                boundary_ns=boundary,
                idle_ns=timeline.makespan_ns - busy,
            )
        )
    return found


def _syncs(timeline: Timeline, stage: int) -> dict[int, int]:
    """Return the synchronisations of a stage, stop by start."""
    program, times = timeline.program, timeline.times
    mine = (program.kind == SYNC) & (program.stage == stage)
    return dict(zip(times.start_ns[mine].tolist(), times.stop_ns[mine].tolist(), strict=True))


def _waits_for_tensors(timeline: Timeline, rank: int, syncs: dict[int, int]) -> int:
    """Return how long a rank stands still while the message for its next action travels.

    A synchronisation begins when the pass before it ends; what a message travels meanwhile is not counted twice.
    """
    program, times = timeline.program, timeline.times
    row = timeline.schedule.row(rank)
    free = total = 0
    for start, stop, source in zip(
        times.start_ns[row].tolist(), times.stop_ns[row].tolist(), program.needs[row].tolist(), strict=True
    ):
        if source != NONE and program.link[source] != NONE:
            since = max(syncs.get(free, free), int(times.depart_ns[source]))
            total += max(0, min(start, int(times.arrive_ns[source])) - since)
        free = stop
    return total
