"""Which process runs what: stages on processes, and the samples of a micro-batch that each of them takes.

A rank of the schedule stands for the devices of its stages; every device is a process. Of a micro-batch of B
samples device ``i`` of ``n`` takes samples ``i B // n`` to ``(i + 1) B // n``, so B need not be a multiple of n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from execution.errors import StagesError
from formulation.problem.plan import Plan
from formulation.schedules.table import PipelineSchedule
from formulation.schedules.validate import validate

__all__ = ["layout_of"]


@dataclass(frozen=True, slots=True)
class Shipment:
    """Samples ``first`` to before ``stop`` of a micro-batch, which a process sends to another one."""

    sender: int
    receiver: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class RunLayout:
    """Processes of a run: ``processes[s]`` are those of stage s, in order of the samples that they take.

    ``rank_of[p]`` is the rank of the schedule that process p belongs to.
    """

    schedule: PipelineSchedule
    micro_batch: int
    processes: tuple[tuple[int, ...], ...]
    rank_of: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of processes."""
        return len(self.rank_of)

    def stages_of(self, process: int) -> tuple[int, ...]:
        """Return the stages that a process runs."""
        return tuple(stage for stage, held in enumerate(self.processes) if process in held)

    def samples(self, stage: int, process: int) -> range:
        """Return the samples of a micro-batch that a process of a stage takes."""
        held = self.processes[stage]
        at = held.index(process)
        return range(at * self.micro_batch // len(held), (at + 1) * self.micro_batch // len(held))

    def pieces(self, stage: int) -> tuple[Shipment, ...]:
        """Return what crosses the cut behind a stage forward, each piece from one process to another."""
        found = []
        for sender in self.processes[stage]:
            for receiver in self.processes[stage + 1]:
                mine, theirs = self.samples(stage, sender), self.samples(stage + 1, receiver)
                first, stop = max(mine.start, theirs.start), min(mine.stop, theirs.stop)
                if first < stop:
                    found.append(Shipment(sender, receiver, first, stop))
        return tuple(found)


def layout_of(
    plan: Plan, schedule: PipelineSchedule, micro_batch: int, layers: Sequence[str] | None = None
) -> RunLayout:
    """Return the processes that run a plan in the order of a schedule.

    ``layers`` are the names of the layers that the plan numbers, for messages. Raises StagesError where schedule
    and plan do not fit, where stages of one rank have different numbers of devices, where a device would get no
    sample, and for what cannot be run yet; ScheduleError for a schedule that cannot be executed.
    """
    validate(schedule)
    _check_forms(plan, layers)
    if not schedule.flush:
        raise StagesError(f"schedule {schedule.name} has no flush: weights of several versions cannot be run yet")
    if schedule.stages != len(plan):
        raise StagesError(f"schedule {schedule.name} has {schedule.stages} stages, the plan {len(plan)}")
    widths: dict[int, int] = {}
    for stage, ranks in enumerate(schedule.stage_ranks):
        devices = plan.stages[stage].group.devices
        if len(ranks) > 1:
            raise StagesError(f"stage {stage}: ranks that take turns with micro-batches cannot be run yet")
        rank = min(ranks)
        if widths.setdefault(rank, devices) != devices:
            raise StagesError(
                f"stage {stage} has {devices} devices, and another stage of its rank {widths[rank]}: "
                "stages of one rank need equally many"
            )
        if devices > micro_batch:
            raise StagesError(
                f"stage {stage}: {devices} devices share micro-batches of {micro_batch} samples, so one would get "
                "none; take larger micro-batches or fewer devices"
            )
    first: dict[int, int] = {}
    rank_of: list[int] = []
    for rank in range(schedule.ranks):
        first[rank] = len(rank_of)
        rank_of += [rank] * widths[rank]
    held = [range(first[rank], first[rank] + widths[rank]) for (rank, *_) in schedule.stage_ranks]
    return RunLayout(schedule, micro_batch, tuple(map(tuple, held)), tuple(rank_of))


def _check_forms(plan: Plan, layers: Sequence[str] | None) -> None:
    """Raise StagesError for a layer whose weights are divided: samples are, so far."""
    for at, stage in enumerate(plan.stages):
        degree = stage.group.tensor_parallel_degree
        for layer in stage.span.layers if degree > 1 else ():
            if stage.form(layer) != 0:
                name = layer if layers is None else layers[layer]
                raise StagesError(
                    f"stage {at}: layer {name} has form {stage.form(layer)} on {degree} devices, and only form 0 "
                    "(by samples) can be run yet: plan with constraints.tensor_parallel_degrees: [1]"
                )
