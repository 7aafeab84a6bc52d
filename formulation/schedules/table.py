"""The order of actions of every rank, as a table with one row per rank.

A schedule is written down as *slots*: every action gets a whole number, and a rank does its actions in the
order of their slots. Slots only order the actions of one rank; they are no times, and no rank looks at the
slots of another. So 1F1B is ``F[k]`` in slot ``2 (k - warmup)`` and ``B[k]`` in slot ``2 k + 1``, and nothing
else. The table is held as arrays, since 64 stages with 10,000 micro-batches are 1,280,000 actions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulation.schedules.actions import Action, Kind

Integers = NDArray[np.int64]


MOST_ACTIONS = 4_000_000
"""Passes of a schedule that is made and run: they take about 2 GB of memory, and 20 s."""


class ScheduleError(ValueError):
    """A schedule that cannot be: wrong sizes, actions missing, repeated or misplaced, or a deadlock."""


@dataclass(frozen=True, slots=True)
class ActionRun:
    """Actions of one kind on one rank: their stages and micro-batches, and the slot of each."""

    kind: int
    stage: Integers
    micro_batch: Integers
    slot: Integers


@dataclass(frozen=True, slots=True, eq=False)
class PipelineSchedule:
    """Actions in order of rank, then of execution: action ``i`` is ``(stage[i], kind[i], micro_batch[i])``.

    The row of rank ``r`` is ``offsets[r]:offsets[r + 1]``; ``kind`` holds codes (see
    ``formulation.schedules.actions``). ``stage_ranks[s]`` are the ranks of stage ``s``, one for each replica:
    micro-batch ``m`` belongs to number ``m mod replicas`` of them. With ``flush`` all micro-batches are one
    optimiser step; without it the weights change while micro-batches are in flight, and every one of them keeps
    its own version (PipeDream).
    """

    name: str
    stages: int
    micro_batches: int
    offsets: tuple[int, ...]
    stage: Integers
    kind: Integers
    micro_batch: Integers
    stage_ranks: tuple[tuple[int, ...], ...]
    flush: bool = True

    @property
    def ranks(self) -> int:
        """Number of ranks; every rank is one device (or one device group that works as one)."""
        return len(self.offsets) - 1

    def __len__(self) -> int:
        return len(self.kind)

    def row(self, rank: int) -> slice:
        """Return where the actions of a rank stand in the arrays."""
        return slice(self.offsets[rank], self.offsets[rank + 1])

    def rank_of(self, index: int) -> int:
        """Return the rank of an action, by its index. Cost: logarithmic in ranks."""
        return int(np.searchsorted(np.asarray(self.offsets), index, side="right")) - 1

    def action(self, index: int) -> Action:
        """Return an action by its index."""
        return Action(int(self.stage[index]), Kind(int(self.kind[index])), int(self.micro_batch[index]))

    def actions(self, rank: int) -> Iterator[Action]:
        """Yield the actions of a rank in order."""
        yield from map(self.action, range(self.offsets[rank], self.offsets[rank + 1]))

    @staticmethod
    def of_actions(name: str, rows: Sequence[Sequence[Action]], *, flush: bool = True) -> PipelineSchedule:
        """Return the schedule with these rows, one a rank, whether it is possible or not (see ``validate``).

        Numbers of stages and micro-batches are one more than the largest that occur. Where a stage occurs on
        several ranks, they are replicas, numbered by the first micro-batch of each. Raises ScheduleError where
        there are fewer actions than two for every stage and micro-batch. Cost: sorting.
        """
        listed = [action for row in rows for action in row]
        stages = max((action.stage for action in listed), default=-1) + 1
        micro_batches = max((action.micro_batch for action in listed), default=-1) + 1
        if len(listed) < 2 * stages * micro_batches or not listed:
            raise ScheduleError(
                f"{stages} stages with {micro_batches} micro-batches take {2 * stages * micro_batches} actions "
                f"or more, found {len(listed)}"
            )
        table = np.array([(one.stage, one.kind, one.micro_batch) for one in listed], dtype=np.int64).T
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).tolist()
        ranks = np.repeat(np.arange(len(rows)), np.diff(offsets))
        stage_ranks = _stage_ranks(table[0], table[2], ranks, stages)
        return _schedule(name, table, offsets, micro_batches, stage_ranks, flush)


def run(kind: int, stage: int | Integers, micro_batch: Integers, slot: Integers) -> ActionRun:
    """Return actions of one kind; ``stage`` may be the same for all."""
    return ActionRun(
        kind, np.broadcast_to(np.asarray(stage, dtype=np.int64), micro_batch.shape), micro_batch, slot
    )


def in_slots(
    name: str,
    rows: Sequence[Sequence[ActionRun]],
    *,
    micro_batches: int,
    stage_ranks: Sequence[tuple[int, ...]],
    flush: bool = True,
) -> PipelineSchedule:
    """Return the schedule in which each rank does its runs in the order of their slots. Cost: sorting."""
    table: list[Integers] = []
    offsets = [0]
    for runs in rows:
        order = np.argsort(np.concatenate([one.slot for one in runs]), kind="stable")
        kinds = np.repeat(np.array([one.kind for one in runs]), [len(one.slot) for one in runs])
        stages = np.concatenate([one.stage for one in runs])
        table.append(np.stack([stages, kinds, np.concatenate([one.micro_batch for one in runs])])[:, order])
        offsets.append(offsets[-1] + len(order))
    return _schedule(name, np.concatenate(table, axis=1), offsets, micro_batches, stage_ranks, flush)


def _stage_ranks(stage: Integers, micro_batch: Integers, rank: Integers, stages: int) -> list[tuple[int, ...]]:
    """Return the ranks on which each stage occurs, by the smallest micro-batch there. Cost: sorting."""
    order = np.lexsort((rank, micro_batch, stage))
    width = int(rank.max()) + 1
    pairs, first = np.unique((stage * width + rank)[order], return_index=True)
    found: list[list[int]] = [[] for _ in range(stages)]
    for pair in pairs[np.argsort(first)].tolist():
        found[pair // width].append(pair % width)
    return [tuple(ranks) for ranks in found]


def _schedule(
    name: str,
    table: Integers,
    offsets: Sequence[int],
    micro_batches: int,
    stage_ranks: Sequence[tuple[int, ...]],
    flush: bool,
) -> PipelineSchedule:
    columns = [np.ascontiguousarray(column, dtype=np.int64) for column in table]
    for column in columns:
        column.setflags(write=False)
    stage, kind, micro_batch = columns
    return PipelineSchedule(
        name=name,
        stages=len(stage_ranks),
        micro_batches=micro_batches,
        offsets=tuple(offsets),
        stage=stage,
        kind=kind,
        micro_batch=micro_batch,
        stage_ranks=tuple(stage_ranks),
        flush=flush,
    )


def one_rank_each(stages: int) -> list[tuple[int, ...]]:
    """Return the placement in which stage ``s`` runs on rank ``s`` alone."""
    return [(stage,) for stage in range(stages)]


def check_sizes(**sizes: int) -> None:
    """Raise ScheduleError naming every size that is below 1."""
    wrong = [f"{name} is {value}" for name, value in sizes.items() if value < 1]
    if wrong:
        raise ScheduleError(f"{', '.join(wrong)}: expected 1 or more")


def check_number(stages: int, micro_batches: int) -> None:
    """Raise ScheduleError for sizes below 1, and for more than MOST_ACTIONS passes, forward and backward."""
    check_sizes(stages=stages, micro_batches=micro_batches)
    if 2 * stages * micro_batches > MOST_ACTIONS:
        raise ScheduleError(
            f"{stages} stages with {micro_batches} micro-batches make {2 * stages * micro_batches} passes, and at"
            f" most {MOST_ACTIONS} can be run one by one: take fewer micro-batches"
        )
