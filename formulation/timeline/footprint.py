"""Memory over time: what every device holds from moment to moment.

A stage always holds its ``static_bytes`` (weights, gradients, optimiser state, work space). The forward pass of a
micro-batch adds its activation stash when it starts; the backward pass gives it back when it stops. Split
backward passes give back all but ``weight_stash_bytes`` with ``I``, and the rest with ``W``. Without a flush every
micro-batch in flight but the first keeps one more version of the weights, ``version_bytes``, until its ``B`` or
``I`` is done: the weight gradient is made of activations and output gradients, without the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from formulation.schedules.actions import Kind
from formulation.schedules.table import Integers, PipelineSchedule
from formulation.timeline.timeline import Timeline


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
            live, waits, begun = _counts(schedule, rank, stage)
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


def _counts(schedule: PipelineSchedule, rank: int, stage: int) -> tuple[Integers, Integers, Integers]:
    """Return, at the moments of a rank, the micro-batches before their input gradient, and then before ``W``.

    A whole backward pass ends both. And those from the start of their input gradient on, until the end of ``W``.
    """
    row = schedule.row(rank)
    kind = np.where(schedule.stage[row] == stage, schedule.kind[row], -1)
    forward, ends = kind == Kind.FORWARD, (kind == Kind.BACKWARD) | (kind == Kind.INPUT_GRADIENT)
    halves, weights = kind == Kind.INPUT_GRADIENT, kind == Kind.WEIGHT_GRADIENT
    at_stop = halves.astype(np.int64) - weights
    live = np.stack([forward.astype(np.int64), -ends.astype(np.int64)], axis=1).ravel()
    waits = np.stack([np.zeros_like(at_stop), at_stop], axis=1).ravel()
    begun = np.stack([halves.astype(np.int64), -weights.astype(np.int64)], axis=1).ravel()
    return np.cumsum(live), np.cumsum(waits), np.cumsum(begun)


def peak_in_flight(schedule: PipelineSchedule, *, until_weights: bool = True) -> list[int]:
    """Return the most micro-batches in flight at each stage, on any one of its ranks.

    A micro-batch is in flight from the start of its forward pass to the end of its backward pass: of ``B`` or
    ``W``, or with ``until_weights`` false of ``B`` or ``I``. It follows from the order alone, without any time.
    """
    peaks = [0] * schedule.stages
    for stage, ranks in enumerate(schedule.stage_ranks):
        for rank in ranks:
            live, waits, _ = _counts(schedule, rank, stage)
            counts = live + waits if until_weights else live
            peaks[stage] = max(peaks[stage], int(counts.max(initial=0)))
    return peaks
