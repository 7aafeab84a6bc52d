"""What a timeline says in a few numbers: the period, the bubble, how busy devices and links are.

Fractions are exact, so that they can be compared with closed forms by ``==``.

What a step takes at least, and of uniform stages exactly, without executing it.

S stages, M micro-batches; ``f_s`` and ``b_s`` are the forward and backward times of stage s (the latter with what
is computed again). Transfers do not wait for each other, and run beside computation. What papers say of schedules
stands in ``report.simulation``.

Memory over time: what every device holds from moment to moment.

A stage always holds its ``static_bytes`` (weights, gradients, optimiser state, work space). The forward pass of a
micro-batch adds its activation stash when it starts; the backward pass gives it back when it stops. Split
backward passes give back all but ``weight_stash_bytes`` with ``I``, and the rest with ``W``. Without a flush every
micro-batch in flight but the first keeps one more version of the weights, ``version_bytes``, until its ``B`` or
``I`` is done: the weight gradient is made of activations and output gradients, without the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from itertools import accumulate
from math import lcm

import numpy as np

from pipecut.formulation.schedules.table import NONE, Integers, Kind, positions, rank_of_actions
from pipecut.formulation.timeline.durations import Durations, Transfers
from pipecut.formulation.timeline.program import OPTIMIZER, SYNC
from pipecut.formulation.timeline.timeline import Timeline


def uniform_iteration_ns(
    ranks: int, micro_batches: int, forward_ns: int, backward_ns: int, chunks: int = 1
) -> int:
    """Return the iteration time of uniform stages, (v m + p - 1) (f + b).

    Exact for GPipe and 1F1B (v = 1) and interleaved 1F1B, whose stages are 1/v as long. Source: Megatron-LM, arXiv
    2104.04473, §2.2.
    """
    return (chunks * micro_batches + ranks - 1) * (forward_ns + backward_ns)


def iteration_lower_bound_ns(durations: Durations, micro_batches: int) -> int:
    """Return a lower bound of the iteration time of stages on devices of their own, with whole backward passes.

    The larger of the latency and, over stages s, fill + M (f_s + b_s) + drain: stage s cannot begin before its
    first activation has come through all stages before it, nor the step end before its last gradient has gone back
    through them. Equal to the iteration time for uniform stages without transfers. Where ``I`` and ``W`` are apart
    (zero bubble), gradients travel on before ``B`` would be done, and a step can be shorter.
    """
    passes = [f + b for f, b in zip(durations.forward_ns, durations.whole_backward_ns, strict=True)]
    boundaries = [a + g for a, g in zip(durations.activation_ns, durations.gradient_ns, strict=True)]
    around = accumulate((p + t for p, t in zip(passes, boundaries, strict=False)), initial=0)
    busy = max(before + micro_batches * own for before, own in zip(around, passes, strict=True))
    return max(busy, durations.latency_ns)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes on one device of each stage.

    ``stash_bytes`` is kept for each micro-batch in flight; ``weight_stash_bytes`` the part of it that the weight
    gradient still needs after the input gradient (default: all of it); ``version_bytes`` one more version of the
    weights (default: none); ``between_bytes`` what is there for each micro-batch from the start of ``I`` to the
    end of ``W`` (default: nothing).
    """

    static_bytes: tuple[int, ...]
    stash_bytes: tuple[int, ...]
    weight_stash_bytes: tuple[int, ...] = ()
    version_bytes: tuple[int, ...] = ()
    between_bytes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        stages = len(self.static_bytes)
        for name, default in (
            ("stash_bytes", ()),
            ("weight_stash_bytes", self.stash_bytes),
            ("version_bytes", (0,) * stages),
            ("between_bytes", (0,) * stages),
        ):
            values = tuple(getattr(self, name)) or default
            if len(values) != stages:
                raise ValueError(f"{name} has {len(values)} entries, expected {stages}")
            object.__setattr__(self, name, values)
        for name in (one.name for one in fields(self)):
            if any(type(value) is not int or value < 0 for value in getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)}, expected whole numbers, 0 or more")

    def over_time(self, timeline: Timeline, rank: int) -> DeviceMemory:
        """Return what a device holds over time. Cost: linear in its actions times its stages.

        Two moments for each action, its start and its stop, in the order of execution: an action gives back what
        it frees before the next one takes anything.
        """
        schedule = timeline.schedule
        if len(self.static_bytes) != schedule.stages:
            raise ValueError(f"a footprint of {len(self.static_bytes)} stages for {schedule.stages}")
        row = schedule.row(rank)
        time_ns = np.stack([timeline.times.start_ns[row], timeline.times.stop_ns[row]], axis=1).ravel()
        held = np.zeros(len(time_ns), dtype=np.int64)
        for stage in (stage for stage, ranks in enumerate(schedule.stage_ranks) if rank in ranks):
            live, waits, begun = schedule.counts_in_flight(rank, stage)
            stash, kept = self.stash_bytes[stage], self.weight_stash_bytes[stage]
            held += self.static_bytes[stage] + live * stash + waits * kept + begun * self.between_bytes[stage]
            if not schedule.flush:
                held += np.maximum(live - 1, 0) * self.version_bytes[stage]
        if len(held) == 0:
            static = sum(self.static_bytes[stage] for stage, on in enumerate(schedule.stage_ranks) if rank in on)
            return DeviceMemory(rank, np.zeros(1, dtype=np.int64), np.full(1, static, dtype=np.int64), static, 0)
        peak = int(np.argmax(held))
        return DeviceMemory(rank, time_ns, held, int(held[peak]), int(time_ns[peak]))


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMemory:
    """Bytes on one device: ``held_bytes[i]`` from ``time_ns[i]`` on; the peak and its first moment."""

    rank: int
    time_ns: Integers
    held_bytes: Integers
    peak_bytes: int
    peak_ns: int


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
        spacing = abs(int(np.diff(times.stop_ns[gradient[0, middle]])[0]))  # the last may be the first to go back
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
    def device_utilisation(self) -> list[Fraction]:
        """The share of the makespan in which each rank computes."""
        return [Fraction(time, max(1, self.timeline.makespan_ns)) for time in self.compute_ns]


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
