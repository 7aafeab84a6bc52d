"""Which process runs what: stages on processes, and the samples of a micro-batch that each of them takes.

A rank of the schedule stands for the devices of its stages; every device is a process. Replicas of a stage, and
the devices of a replica whose layers are not divided, share the samples of a micro-batch: of B samples device
``i`` of ``n`` takes samples ``i B // n`` to ``(i + 1) B // n``, so B need not be a multiple of n, and may be less;
or as many as its speed says, where the problem shares in proportion to it. A replica without samples rests.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipecut.execution.dividing.moves import ROWS, bounds
from pipecut.execution.errors import StagesError
from pipecut.formulation.costs.amounts import counted
from pipecut.formulation.costs.forms import SHARDINGS
from pipecut.formulation.problem.constraints import Sharded
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.options import Sharing
from pipecut.formulation.problem.plan import Plan, Stage
from pipecut.formulation.schedules.table import Kind, PipelineSchedule, validate

FORWARD, BACKWARD = 0, 1
RUN = range(5)
"""Forms that can be run."""


@dataclass(frozen=True, slots=True)
class Shipment:
    """Samples ``first`` to before ``stop`` of a micro-batch, which a process sends to another one."""

    sender: int
    receiver: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class StageDevices:
    """The processes of a stage, in order of the samples that they take, and their shares of the work.

    ``degree`` of them together hold a replica whose layers are divided (1: none is). ``together``: tensors cross
    the cuts of the stage whole for all devices of a replica, as none of its layers works by samples, or there are
    too few samples to do so: then every device does all of what is split by samples.
    """

    processes: tuple[int, ...]
    shares: tuple[int, ...]
    degree: int = 1
    together: bool = False


@dataclass(frozen=True, slots=True)
class RunLayout:
    """Processes of a run, and the devices of every stage among them.

    ``rank_of[p]`` is the rank of the schedule that process p belongs to. ``again`` numbers the layers,
    by name, that are computed again in stages that keep others: neighbours of one number at one time.
    """

    schedule: PipelineSchedule
    micro_batch: int
    stages: tuple[StageDevices, ...]
    rank_of: tuple[int, ...]
    again: Mapping[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of processes."""
        return len(self.rank_of)

    @property
    def processes(self) -> tuple[tuple[int, ...], ...]:
        """The processes of every stage."""
        return tuple(one.processes for one in self.stages)

    def stages_of(self, process: int) -> tuple[int, ...]:
        """Return the stages that a process runs."""
        return tuple(stage for stage, one in enumerate(self.stages) if process in one.processes)

    def team(self, stage: int, process: int) -> tuple[int, ...]:
        """Return the processes of the replica of a divided stage that a process belongs to; else itself."""
        held, degree = self.stages[stage].processes, self.stages[stage].degree
        first = held.index(process) // degree * degree
        return held[first : first + degree]

    def counterparts(self, stage: int, process: int) -> tuple[int, ...]:
        """Return the processes that hold the same part of a divided stage; all of one that is not divided."""
        held, degree = self.stages[stage].processes, self.stages[stage].degree
        return held[held.index(process) % degree :: degree]

    def rows(self, stage: int, process: int) -> range:
        """Return the samples of a micro-batch that a device has where tensors lie by samples."""
        one = self.stages[stage]
        return bounds(self.micro_batch, one.shares)[one.processes.index(process)]

    def rows_of_team(self, stage: int, process: int) -> range:
        """Return the samples of a micro-batch that a process and the others of its replica have."""
        team = self.team(stage, process)
        return range(self.rows(stage, team[0]).start, self.rows(stage, team[-1]).stop)

    def samples(self, stage: int, process: int) -> range:
        """Return the samples of a micro-batch of which a process takes and gives tensors at the stage's cuts."""
        return (self.rows_of_team if self.stages[stage].together else self.rows)(stage, process)

    def rests(self, stage: int, process: int) -> bool:
        """Tell whether a process and the others of its replica have no sample of any micro-batch."""
        return not self.rows_of_team(stage, process)

    def speaks(self, stage: int, process: int) -> bool:
        """Tell whether a process gives what it has at the stage's cuts: of those that have the same the first."""
        return not self.stages[stage].together or self.team(stage, process)[0] == process

    def pieces(self, cut: int, direction: int = FORWARD) -> tuple[Shipment, ...]:
        """Return what crosses the cut behind a stage, each piece from one process to another."""
        giving, taking = (cut, cut + 1) if direction == FORWARD else (cut + 1, cut)
        found = []
        for receiver in self.stages[taking].processes:
            wanted = self.samples(taking, receiver)
            senders = [one for one in self.stages[giving].processes if self.speaks(giving, one)]
            if receiver in self.stages[giving].processes and self.samples(giving, receiver) == wanted:
                senders = [receiver]
            for sender in senders:
                has = self.samples(giving, sender)
                first, stop = max(has.start, wanted.start), min(has.stop, wanted.stop)
                if first < stop:
                    found.append(Shipment(sender, receiver, first, stop))
        return tuple(found)

    def lanes(self) -> tuple[tuple[int, int, int], ...]:
        """Return every cut and direction, as a number, with each sender and receiver there.

        Raises StagesError where a receiver awaits micro-batches in another order than they are sent in, which a
        transport without tags (nccl) would mix up.
        """
        cuts, found = len(self.stages) - 1, []
        for direction, cut in itertools.product((FORWARD, BACKWARD), range(cuts)):
            giving, taking = (cut, cut + 1) if direction == FORWARD else (cut + 1, cut)
            if self._order(direction, giving) != self._order(direction, taking):
                raise StagesError(
                    f"stages {giving} and {taking} take micro-batches in different orders, which can be run over "
                    "gloo only: take another schedule, or the CPU"
                )
            ends = {(one.sender, one.receiver) for one in self.pieces(cut, direction)}
            found += [(direction * cuts + cut, *pair) for pair in sorted(ends) if pair[0] != pair[1]]
        return tuple(found)

    def _order(self, direction: int, stage: int) -> list[int]:
        """Return the micro-batches of a stage in the order of their passes."""
        kinds = (Kind.FORWARD,) if direction == FORWARD else (Kind.BACKWARD, Kind.INPUT_GRADIENT)
        (rank,) = self.schedule.stage_ranks[stage]
        return [one.micro_batch for one in self.schedule.actions(rank) if one.stage == stage and one.kind in kinds]


def layout_of(
    plan: Plan,
    schedule: PipelineSchedule,
    micro_batch: int,
    problem: Instance | None = None,
) -> RunLayout:
    """Return the processes that run a plan in the order of a schedule.

    ``problem`` says which layers take part in the choice of forms (without it all do), and in which shares devices
    work (without it equal ones).
    Raises StagesError where schedule and plan do not fit, where stages of one rank have different numbers of
    devices, and for what cannot be run; ScheduleError for a schedule that cannot be executed.
    """
    validate(schedule)
    _check_modes(plan, problem)
    if not schedule.flush:
        raise StagesError(
            f"schedule {schedule.name} has no flush: it changes weights between the micro-batches of a step, so "
            "its gradients are of other weights than the unsplit model's, and there is nothing to hold them "
            "against; run it as 1F1B, which ends each step with a flush"
        )
    if schedule.stages != len(plan):
        raise StagesError(f"{schedule.name} has {counted(schedule.stages, 'stage')}, the plan {len(plan)}")
    ranks = _ranks(plan, schedule)
    first: dict[int, int] = {}
    rank_of: list[int] = []
    for rank in range(schedule.ranks):
        first[rank] = len(rank_of)
        rank_of += [rank] * ranks[rank]
    stages = []
    for at, (rank, *_) in enumerate(schedule.stage_ranks):
        held = tuple(range(first[rank], first[rank] + ranks[rank]))
        stages.append(_devices(plan.stages[at], held, micro_batch, problem))
    return RunLayout(schedule, micro_batch, tuple(stages), tuple(rank_of), _again(plan, problem))


def _again(plan: Plan, problem: Instance | None) -> Mapping[str, int]:
    """Return the layers that are computed again alone. Raises StagesError where nobody says which these are."""
    named = {at: one for at, one in enumerate(plan.stages) if one.group.mode.recompute not in (False, True)}
    some = next((at for at, one in enumerate(plan.stages) if at in named or one.again), None)
    if some is None:
        return {}
    if problem is None:
        raise StagesError(f"stage {some} computes some of its layers again, and no problem says which these are")
    runs = (run.layers for stage in plan.stages for run in stage.again)
    layers = {layer: number for number, run in enumerate(runs, 1) for layer in run}
    held = (layer for stage in named.values() for layer in stage.span.layers)
    layers |= dict.fromkeys((one for one in held if one in problem.demands.recompute_layers), 0)
    return {problem.layers[layer].name: number for layer, number in layers.items()}


def _ranks(plan: Plan, schedule: PipelineSchedule) -> dict[int, int]:
    """Return the number of devices of every rank. Raises StagesError where it has several."""
    widths: dict[int, int] = {}
    for stage, ranks in enumerate(schedule.stage_ranks):
        devices = plan.stages[stage].group.devices
        if len(ranks) > 1:
            raise StagesError(
                f"stage {stage}: its ranks take turns with micro-batches, and here all devices of a stage share "
                "each micro-batch"
            )
        rank = min(ranks)
        if widths.setdefault(rank, devices) != devices:
            raise StagesError(
                f"stage {stage} has {counted(devices, 'device')}, and another stage of its rank {widths[rank]}: "
                "stages of one rank need equally many"
            )
    return widths


def _devices(stage: Stage, processes: tuple[int, ...], micro_batch: int, problem: Instance | None) -> StageDevices:
    """Return the devices of a stage, of which some may have no sample of a micro-batch.

    Where that are some of a replica whose layers are divided, all of its devices have all of its samples together.
    """
    degree = stage.group.tensor_parallel_degree
    forms = [
        stage.form(one)
        for one in stage.span.layers
        if problem is None or problem.layers[one].split is not Split.FOLLOW
    ]
    rows = [SHARDINGS[Split.MATRIX][form] for form in forms]
    divided = degree > 1 and any(forms)
    shares = _shares(stage, problem)
    by_rows = any(ROWS in (row.takes, row.made) for row in rows) and all(bounds(micro_batch, shares))
    together = divided and not by_rows
    return StageDevices(processes, shares, degree if divided else 1, together)


def _shares(stage: Stage, problem: Instance | None) -> tuple[int, ...]:
    """Return how much of a stage's work each of its devices does, as whole numbers to be added up."""
    if problem is None or problem.cost.sharing is Sharing.EQUAL:
        return (1,) * stage.group.devices
    speeds = [one.flops_per_second for one in problem.device_classes]
    return tuple(speeds[problem.class_index(server)] for server, count in stage.group.counts for _ in range(count))


def _check_modes(plan: Plan, problem: Instance | None) -> None:
    """Raise StagesError for a stage in a mode or with forms that cannot be run: parts on the host, or divided."""
    for at, stage in enumerate(plan.stages):
        sharded, layers = stage.group.mode.sharded, zip(stage.span.layers, stage.forms, strict=True)
        if other := [pair for pair in layers if pair[1] not in RUN]:
            layer, form = other[0]
            name = f"layer {layer}" if problem is None else problem.layers[layer].name
            raise StagesError(
                f"stage {at}: {name} has form {form} ({stage.in_words(form)}), and only forms 0 to 4 can be run, "
                "one at a time: plan with constraints.splits: [sequence], or with none"
            )
        if stage.group.mode.optimizer_on_host:
            raise StagesError(
                f"stage {at} keeps the optimiser on its host, and only optimisers on devices can be run: plan "
                "with constraints.optimizer_on_host: never"
            )
        if sharded is not Sharded.NONE:
            raise StagesError(
                f"stage {at} has sharded '{sharded}', and only copies ('{Sharded.NONE}') can be run: plan "
                "with constraints.sharded: [none]"
            )
