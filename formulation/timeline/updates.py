"""Weight updates: when gradients are synchronised and the optimiser runs, as queues behind those of the ranks.

With a flush a step ends with one update. The gradients of a stage are synchronised once all its replicas have
done their last backward pass (with ``overlap_sync``) or all their work (without); stages on the same devices take
turns, in the order in which they get ready. The optimiser runs on the device after all its actions.

Without a flush every replica updates its weights after each ``updates_every`` backward passes. All replicas of a
stage take part, so one waits for the others. Without overlap its device stands still meanwhile. With overlap it
goes on with the weights that it has, gathering gradients in a second buffer; only the first backward pass of the
round after that waits until the first buffer is free. So the period of a stage of R replicas is the larger of
computation and synchronisation, over R, as in PipeDream's formula (arXiv 1806.03377, §3.2). The time of the
optimiser counts as part of the synchronisation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from formulation.schedules.actions import Kind
from formulation.schedules.dependencies import NONE, positions, rank_of_actions
from formulation.schedules.table import Integers, PipelineSchedule
from formulation.timeline.durations import Durations, Execution

SYNC, OPTIMIZER, JOIN = range(len(Kind), len(Kind) + 3)
"""Codes of the entries of updates, after those of kinds of actions. JOIN takes no time: it waits for a gate."""


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """Entries of the update queues, as columns, and the gates that they put before actions.

    ``stops`` are the ends of the queues among all entries; ``ranks`` the rank that each queue works for, NONE for
    a synchronisation, which belongs to the network.
    """

    stops: tuple[int, ...]
    ranks: tuple[int, ...]
    stage: Integers
    kind: Integers
    micro_batch: Integers
    duration: Integers
    gate: Integers
    action_gate: Integers


@dataclass(slots=True)
class _Writer:
    """Collects entries queue by queue, as blocks of columns (stage, kind, micro-batch, duration, gate)."""

    next_index: int
    blocks: list[Integers]
    stops: list[int]
    ranks: list[int]

    def put(self, stage: int, kind: int, micro_batch: int, duration: int = 0, gate: int = NONE) -> int:
        """Add an entry to the open queue and return its index among all entries."""
        return self.put_all(np.array([[stage], [kind], [micro_batch], [duration], [gate]], dtype=np.int64))

    def put_all(self, block: Integers) -> int:
        """Add entries to the open queue and return the index of the first."""
        self.blocks.append(block)
        self.next_index += block.shape[1]
        return self.next_index - block.shape[1]

    def close(self, rank: int) -> None:
        """End the open queue."""
        self.stops.append(self.next_index)
        self.ranks.append(rank)

    def updates(self, action_gate: Integers) -> Updates:
        """Return everything collected as columns."""
        table = np.concatenate([np.zeros((5, 0), dtype=np.int64), *self.blocks], axis=1)
        stage, kind, micro_batch, duration, gate = table
        return Updates(tuple(self.stops), tuple(self.ranks), stage, kind, micro_batch, duration, gate, action_gate)


def updates_of(schedule: PipelineSchedule, durations: Durations, execution: Execution) -> Updates:
    """Return the updates of a schedule; none where they take no time. Cost: linear in actions."""
    writer = _Writer(len(schedule), [], [], [])
    gates = np.full(len(schedule), NONE, dtype=np.int64)
    if schedule.flush:
        _flush(schedule, durations, execution, writer)
    else:
        weights = positions(schedule, Kind.BACKWARD, Kind.WEIGHT_GRADIENT)
        for stage, times in enumerate(zip(durations.sync_ns, durations.optimizer_ns, strict=True)):
            if sum(times):
                _rounds(schedule, execution, stage, sum(times), weights[stage], writer, gates)
    return writer.updates(gates)


def _flush(schedule: PipelineSchedule, durations: Durations, execution: Execution, writer: _Writer) -> None:
    """Write one update: a queue for each set of devices that synchronise, then the optimiser of each rank."""
    ends = _last_backward(schedule)
    synced: dict[int, int] = {}
    for ranks in dict.fromkeys(schedule.stage_ranks):
        stages = [stage for stage in ends if schedule.stage_ranks[stage] == ranks and durations.sync_ns[stage]]
        for stage in sorted(stages, key=lambda one: min(ends[one].items())[1]):
            waits = [
                end if execution.overlap_sync else schedule.offsets[rank + 1] - 1
                for rank, end in ends[stage].items()
            ]
            for gate in waits[:-1]:
                writer.put(stage, JOIN, schedule.micro_batches - 1, 0, gate)
            synced[stage] = writer.put(
                stage, SYNC, schedule.micro_batches - 1, durations.sync_ns[stage], waits[-1]
            )
        if stages:
            writer.close(NONE)
    for rank in range(schedule.ranks):
        _optimise(schedule, durations, execution, rank, [one for one in ends if rank in ends[one]], synced, writer)


def _optimise(
    schedule: PipelineSchedule,
    durations: Durations,
    execution: Execution,
    rank: int,
    stages: list[int],
    synced: dict[int, int],
    writer: _Writer,
) -> None:
    """Write the optimiser of a rank, behind its actions, each stage behind its synchronisation and in that order.

    Without overlap the device stands still for all its synchronisations before.
    """
    last = schedule.micro_batches - 1
    if not any(durations.optimizer_ns[stage] for stage in stages):
        return
    writer.put(stages[0], JOIN, last, 0, schedule.offsets[rank + 1] - 1)
    in_turn = sorted(stages, key=lambda stage: synced.get(stage, NONE))
    if not execution.overlap_sync:
        for stage in in_turn:
            writer.put(stage, JOIN, last, 0, synced.get(stage, NONE))
    for stage in in_turn:
        if durations.optimizer_ns[stage]:
            writer.put(stage, OPTIMIZER, last, durations.optimizer_ns[stage], synced.get(stage, NONE))
    writer.close(rank)


def _last_backward(schedule: PipelineSchedule) -> dict[int, dict[int, int]]:
    """Return, by stage and rank, the index of the last action that adds to the weight gradient."""
    ends: dict[int, dict[int, int]] = {stage: {} for stage in range(schedule.stages)}
    index = np.flatnonzero(np.isin(schedule.kind, (Kind.BACKWARD, Kind.WEIGHT_GRADIENT)))
    pair = schedule.stage[index] * schedule.ranks + rank_of_actions(schedule)[index]
    found, from_end = np.unique(pair[::-1], return_index=True)
    for key, place in zip(found.tolist(), from_end.tolist(), strict=True):
        ends[key // schedule.ranks][key % schedule.ranks] = int(index[len(index) - 1 - place])
    return ends


def _rounds(
    schedule: PipelineSchedule,
    execution: Execution,
    stage: int,
    duration_ns: int,
    weights: Integers,
    writer: _Writer,
    gates: Integers,
) -> None:
    """Write the updates of one stage, round by round, and the gates before the actions that wait for them.

    ``weights[m]`` is the action that completes the weight gradient of micro-batch m.
    """
    replicas, total = len(schedule.stage_ranks[stage]), schedule.micro_batches
    size = replicas * execution.updates_every
    every = np.arange(total)
    place = every % size
    closes = (place == size - 1) | (every == total - 1)
    block = np.stack([np.full(total, stage), np.where(closes, SYNC, JOIN), every, closes * duration_ns, weights])
    first = writer.put_all(block)
    writer.close(NONE)
    if execution.overlap_sync:
        waiting = every[(every >= 2 * size) & (place < replicas)]
        gates[weights[waiting]] = first + (waiting // size - 1) * size - 1
    else:
        finished = every[place >= size - replicas]
        after = weights[finished] + 1
        row_ends = np.isin(after, schedule.offsets)
        gates[after[~row_ends]] = first + np.minimum((finished[~row_ends] // size + 1) * size, total) - 1
