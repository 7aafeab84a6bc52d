"""What a timeline says in a few numbers: the period, the bubble, how busy devices and links are.

Fractions are exact, so that they can be compared with closed forms by ``==``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from formulation.schedules.actions import Kind
from formulation.schedules.dependencies import NONE, positions, rank_of_actions
from formulation.schedules.table import Integers
from formulation.timeline.durations import Transfers
from formulation.timeline.timeline import Timeline
from formulation.timeline.updates import OPTIMIZER, SYNC


@dataclass(frozen=True, slots=True)
class TimelineMeasures:
    """The numbers of a timeline."""

    timeline: Timeline

    @property
    def period_ns(self) -> Fraction | None:
        """The time from one micro-batch to the next in the middle of the run; None for a single micro-batch.

        Measured over half of the micro-batches: how far apart their backward passes stop at the first stage. Where
        the last stage does all its forward passes before any backward pass (GPipe), a micro-batch takes both, and
        how far apart its forward passes start is added. The period of a run too short to become steady means
        little.
        """
        schedule, times = self.timeline.schedule, self.timeline.times
        total = schedule.micro_batches
        if total < 2:
            return None
        length = _whole_rounds(self.timeline, max(1, total // 2))
        middle = (total - length) // 2 + np.array([0, length])
        forward = positions(schedule, Kind.FORWARD)[-1]
        gradient = positions(schedule, Kind.BACKWARD, Kind.INPUT_GRADIENT)
        spacing = int(np.diff(times.stop_ns[gradient[0, middle]])[0])
        replicas = len(schedule.stage_ranks[-1])
        own = slice(int(middle[0]) % replicas, None, replicas)
        if gradient[-1, own].min() > forward[own].max():
            spacing += int(np.diff(times.start_ns[forward[middle]])[0])
        return Fraction(spacing, length)

    @property
    def compute_ns(self) -> list[int]:
        """How long each rank computes: its actions, with what they recompute."""
        actions = len(self.timeline.schedule)
        return _sums(
            rank_of_actions(self.timeline.schedule),
            self.timeline.program.duration[:actions],
            self.timeline.schedule.ranks,
        )

    @property
    def occupied_ns(self) -> list[int]:
        """How long each rank computes, updates weights, and stands still for transfers or synchronisation."""
        program, schedule = self.timeline.program, self.timeline.schedule
        occupied = self.compute_ns
        for index in range(len(schedule), len(program)):
            duration = int(program.duration[index])
            if program.kind[index] == OPTIMIZER:
                occupied[program.queue_rank[program.queue_of(index)]] += duration
            elif program.kind[index] == SYNC and not program.execution.overlap_sync:
                for rank in schedule.stage_ranks[int(program.stage[index])]:
                    occupied[rank] += duration
        for rank, held in enumerate(_held(self.timeline)):
            occupied[rank] += held
        return occupied

    @property
    def bubble_of_total(self) -> Fraction:
        """Idle device time over all device time: GPipe's convention, (S - 1) / (M + S - 1) if uniform."""
        whole = self.timeline.schedule.ranks * self.timeline.makespan_ns
        return Fraction(whole - sum(self.occupied_ns), whole) if whole else Fraction(0)

    @property
    def bubble_of_ideal(self) -> Fraction:
        """Idle device time over the time without idling: Megatron-LM's convention, (S - 1) / M if uniform."""
        occupied = sum(self.occupied_ns)
        whole = self.timeline.schedule.ranks * self.timeline.makespan_ns
        return Fraction(whole - occupied, occupied) if occupied else Fraction(0)

    @property
    def device_utilisation(self) -> list[Fraction]:
        """The share of the makespan in which each rank computes."""
        return [Fraction(time, max(1, self.timeline.makespan_ns)) for time in self.compute_ns]

    @property
    def link_utilisation(self) -> dict[int, Fraction]:
        """The time of all messages of each link over the makespan.

        Without contention it can be above 1: then the plan asks for more than the link carries.
        """
        program = self.timeline.program
        sends = np.flatnonzero(program.link != NONE)
        links, place = np.unique(program.link[sends], return_inverse=True)
        times = _sums(place, program.message_ns[sends], len(links))
        return {
            link: Fraction(time, max(1, self.timeline.makespan_ns))
            for link, time in zip(links.tolist(), times, strict=True)
        }


def _whole_rounds(timeline: Timeline, most: int) -> int:
    """Return a number of micro-batches of at most ``most``, in whole rounds of the replicas or ranks if they fit.

    Micro-batches come in groups: one for each replica, or, interleaved, one for each rank.
    """
    schedule = timeline.schedule
    rounds = lcm(*(len(ranks) for ranks in schedule.stage_ranks))
    rounds = schedule.ranks if rounds == 1 else rounds
    return most - most % rounds or most


def _held(timeline: Timeline) -> list[int]:
    """Return how long each rank stands still for its transfers, including its wait for a busy link."""
    program, schedule = timeline.program, timeline.schedule
    transfers = program.execution.transfers
    ranks = rank_of_actions(schedule)
    if transfers is Transfers.OVERLAPPED:
        return [0] * schedule.ranks
    if transfers is Transfers.SENDER:
        sends = np.flatnonzero(program.link != NONE)
        return _sums(ranks[sends], timeline.times.arrive_ns[sends] - timeline.times.stop_ns[sends], schedule.ranks)
    takes = np.flatnonzero(program.needs != NONE)
    sources = program.needs[takes]
    return _sums(
        ranks[takes], timeline.times.arrive_ns[sources] - timeline.times.depart_ns[sources], schedule.ranks
    )


def _sums(place: Integers, time: Integers, places: int) -> list[int]:
    """Return the whole sum of times at each place, without going through floating-point numbers."""
    sums = np.zeros(places, dtype=np.int64)
    np.add.at(sums, place, time)
    return sums.tolist()
