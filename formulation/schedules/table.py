"""The order of actions of every rank, as a table with one row per rank.

A schedule is written down as *slots*: every action gets a whole number, and a rank does its actions in the
order of their slots. Slots only order the actions of one rank; they are no times, and no rank looks at the
slots of another. So 1F1B is ``F[k]`` in slot ``2 (k - warmup)`` and ``B[k]`` in slot ``2 k + 1``, and nothing
else. The table is held as arrays, since 64 stages with 10,000 micro-batches are 1,280,000 actions.

What one device does to one micro-batch at one stage, and the token that PyTorch writes for it.

``2F0`` is the forward pass of micro-batch 0 at stage 2, ``0B1`` a whole backward pass, ``1I3`` and ``1W3`` its
two halves: the gradient of the input, which the stage before waits for, and the gradient of the weights, which
only the optimiser waits for (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241). The letters are
those of ``torch.distributed.pipelining.schedules``.

Which action waits for which: the data that flows between stages, without any time.

Every action waits for exactly one other, except the forward passes of stage 0:

====================  ==========================================================
action                waits for
====================  ==========================================================
``F`` at stage s > 0  ``F`` at stage s - 1 (its activation)
``B``, ``I``          ``B`` or ``I`` at stage s + 1 (its gradient); at the last stage ``F`` there
``W``                 ``I`` of the same stage
====================  ==========================================================

That a backward pass waits for the forward pass of its own stage follows from these.

Whether a schedule can be executed, and if not, why.

A schedule is complete if every stage forwards every micro-batch once and takes it back once (``B``, or ``I`` and
``W``), on the rank of its replica. It is possible if its ranks, each keeping to its order, never wait for one
another in a circle.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class Kind(enum.IntEnum):
    """What is done; the value is the small number that stands for it in arrays."""

    FORWARD = 0
    BACKWARD = 1
    """Both gradients in one pass."""
    INPUT_GRADIENT = 2
    WEIGHT_GRADIENT = 3

    @property
    def letter(self) -> str:
        """The letter of the token."""
        return LETTERS[self]


LETTERS = "FBIW"
"""Letters of tokens, by kind."""

_TOKEN = re.compile(r"([0-9]{1,9})([FBIW])([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Action:
    """One pass of one micro-batch at one stage, both counted from 0; ``str()`` is its token."""

    stage: int
    kind: Kind
    micro_batch: int

    def __post_init__(self) -> None:
        if self.stage < 0 or self.micro_batch < 0:
            raise ValueError(f"stage {self.stage}, micro-batch {self.micro_batch}: expected 0 or more")

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.letter}{self.micro_batch}"

    @classmethod
    def parse(cls, token: str) -> Action:
        """Return the action that a token stands for. Raises ValueError for anything else."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise ValueError(f"{token!r} is no action; expected stage, one of F B I W, micro-batch, as in 2F0")
        stage, letter, micro_batch = match.groups()
        return cls(int(stage), Kind(LETTERS.index(letter)), int(micro_batch))


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
    ``formulation.schedules.table``). ``stage_ranks[s]`` are the ranks of stage ``s``, one for each replica:
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

    def counts_in_flight(self, rank: int, stage: int) -> tuple[Integers, Integers, Integers]:
        """Return, at the moments of a rank, the micro-batches before their input gradient, and then before ``W``.

        A whole backward pass ends both. And those from the start of their input gradient on, until the end of
        ``W``.
        """
        row = self.row(rank)
        kind = np.where(self.stage[row] == stage, self.kind[row], -1)
        forward, ends = kind == Kind.FORWARD, (kind == Kind.BACKWARD) | (kind == Kind.INPUT_GRADIENT)
        halves, weights = kind == Kind.INPUT_GRADIENT, kind == Kind.WEIGHT_GRADIENT
        at_stop = halves.astype(np.int64) - weights
        live = np.stack([forward.astype(np.int64), -ends.astype(np.int64)], axis=1).ravel()
        waits = np.stack([np.zeros_like(at_stop), at_stop], axis=1).ravel()
        begun = np.stack([halves.astype(np.int64), -weights.astype(np.int64)], axis=1).ravel()
        return np.cumsum(live), np.cumsum(waits), np.cumsum(begun)

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


NONE = -1
"""Stands for no action in arrays of indices."""


def positions(schedule: PipelineSchedule, *kinds: int) -> Integers:
    """Return ``found[s, m]``, the index of the action of these kinds at stage s for micro-batch m, or NONE.

    Cost: linear in actions. Where several are found the last counts.
    """
    found = np.full((schedule.stages, schedule.micro_batches), NONE, dtype=np.int64)
    index = np.flatnonzero(np.isin(schedule.kind, kinds))
    found[schedule.stage[index], schedule.micro_batch[index]] = index
    return found


def dependencies(schedule: PipelineSchedule) -> Integers:
    """Return for every action of a complete schedule the index of the action that it waits for, or NONE.

    Cost: linear in actions.
    """
    forward = positions(schedule, Kind.FORWARD)
    gradient = positions(schedule, Kind.BACKWARD, Kind.INPUT_GRADIENT)
    sources = np.full((4, schedule.stages, schedule.micro_batches), NONE, dtype=np.int64)
    sources[Kind.FORWARD, 1:] = forward[:-1]
    for kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT):
        sources[kind, :-1] = gradient[1:]
        sources[kind, -1] = forward[-1]
    sources[Kind.WEIGHT_GRADIENT] = gradient
    return sources[schedule.kind, schedule.stage, schedule.micro_batch]


def rank_of_actions(schedule: PipelineSchedule) -> Integers:
    """Return the rank of every action."""
    return np.repeat(np.arange(schedule.ranks), np.diff(schedule.offsets))


MOST_SHOWN = 8
"""Mistakes, or links of a circle, that one error spells out; the rest is counted."""


def peak_in_flight(schedule: PipelineSchedule, *, until_weights: bool = True) -> list[int]:
    """Return the most micro-batches in flight at each stage, on any one of its ranks.

    A micro-batch is in flight from the start of its forward pass to the end of its backward pass: of ``B`` or
    ``W``, or with ``until_weights`` false of ``B`` or ``I``. It follows from the order alone, without any time.
    """
    peaks = [0] * schedule.stages
    for stage, ranks in enumerate(schedule.stage_ranks):
        for rank in ranks:
            live, waits, _ = schedule.counts_in_flight(rank, stage)
            counts = live + waits if until_weights else live
            peaks[stage] = max(peaks[stage], int(counts.max(initial=0)))
    return peaks


class DeadlockError(ScheduleError):
    """Ranks wait for one another in a circle; ``cycle`` holds what each of them waits to start."""

    def __init__(self, cycle: Sequence[str], links: Sequence[str]) -> None:
        """Keep the labels of the circle and spell out who waits for whom."""
        self.cycle = tuple(cycle)
        shown = list(links[:MOST_SHOWN])
        if len(links) > MOST_SHOWN:
            shown.append(f"... and {len(links) - MOST_SHOWN} more")
        super().__init__("deadlock: " + "; ".join(shown))


def validate(schedule: PipelineSchedule) -> None:
    """Raise ScheduleError with the actions missing, repeated or misplaced, or DeadlockError with the circle.

    Cost: linear in actions.
    """
    check_complete(schedule)
    check_order(schedule)


def check_complete(schedule: PipelineSchedule) -> None:
    """Raise ScheduleError unless every action is there once, on its rank. Cost: linear in actions."""
    problems = [*_counted(schedule), *_misplaced(schedule)]
    if problems:
        more = [f"... and {len(problems) - MOST_SHOWN} more"] if len(problems) > MOST_SHOWN else []
        raise ScheduleError(f"schedule {schedule.name}: " + "; ".join(problems[:MOST_SHOWN] + more))


def _counted(schedule: PipelineSchedule) -> Iterator[str]:
    """Yield the actions that are missing or repeated."""
    shape = (len(Kind), schedule.stages, schedule.micro_batches)
    codes = np.ravel_multi_index((schedule.kind, schedule.stage, schedule.micro_batch), shape)
    count = np.bincount(codes, minlength=int(np.prod(shape))).reshape(shape)
    for kind, stage, micro_batch in np.argwhere(count > 1).tolist():
        token = Action(stage, Kind(kind), micro_batch)
        yield f"{token} stands {count[kind, stage, micro_batch]} times"
    whole, inputs, weights = (
        count[kind] > 0 for kind in (Kind.BACKWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
    )
    for stage, micro_batch in np.argwhere(count[Kind.FORWARD] == 0).tolist():
        yield f"{stage}F{micro_batch} is missing"
    for stage, micro_batch in np.argwhere(~whole & ~(inputs & weights)).tolist():
        halves = " and ".join(
            f"{stage}{letter}{micro_batch}"
            for letter, there in (("I", inputs), ("W", weights))
            if not there[stage, micro_batch]
        )
        yield f"{halves} (or {stage}B{micro_batch}) is missing"
    for stage, micro_batch in np.argwhere(whole & (inputs | weights)).tolist():
        yield f"{stage}B{micro_batch} stands beside {stage}I{micro_batch} or {stage}W{micro_batch}"


def _misplaced(schedule: PipelineSchedule) -> Iterator[str]:
    """Yield the actions on a rank that does not belong to their replica."""
    replicas = np.array([len(ranks) for ranks in schedule.stage_ranks])
    owners = np.full((schedule.stages, max(1, int(replicas.max()))), NONE)
    for stage, ranks in enumerate(schedule.stage_ranks):
        owners[stage, : len(ranks)] = ranks
    place = schedule.micro_batch % np.maximum(replicas, 1)[schedule.stage]
    expected = owners[schedule.stage, place]
    found = rank_of_actions(schedule)
    for index in np.flatnonzero(found != expected).tolist():
        yield f"{schedule.action(index)} stands on rank {found[index]}, expected rank {expected[index]}"


def check_order(schedule: PipelineSchedule) -> None:
    """Raise DeadlockError unless the ranks of a complete schedule can do their rows in order.

    Runs every rank as far as it gets, then those that waited for it. Cost: linear in actions.
    """
    needs: list[int] = dependencies(schedule).tolist()
    cursor, ends = list(schedule.offsets[:-1]), schedule.offsets[1:]
    done = bytearray(len(schedule))
    waiting: dict[int, int] = {}
    ready = list(range(schedule.ranks))
    while ready:
        rank = ready.pop()
        at, end = cursor[rank], ends[rank]
        while at < end:
            source = needs[at]
            if source >= 0 and not done[source]:
                waiting[source] = rank
                break
            done[at] = 1
            if at in waiting:
                ready.append(waiting.pop(at))
            at += 1
        cursor[rank] = at
    if sum(cursor) < sum(ends):
        ranks = rank_of_actions(schedule)
        raise deadlock(
            cursor,
            ends,
            lambda index: [needs[index]],
            lambda index: int(ranks[index]),
            lambda index: str(schedule.action(index)),
        )


def deadlock(
    cursor: Sequence[int],
    ends: Sequence[int],
    needs: Callable[[int], Sequence[int]],
    queue_of: Callable[[int], int],
    label: Callable[[int], str],
    place: Callable[[int], str] = "rank {}".format,
) -> DeadlockError:
    """Return the error for queues that cannot go on: the circle of who waits for whom.

    ``cursor`` and ``ends`` say where each queue stands, ``needs`` what an entry waits for, ``place`` what a queue
    is called. Every queue that stands waits for an entry of another such queue, so following them from any of
    them leads into a circle.
    """

    def awaited(at: int) -> int:
        return next(source for source in needs(at) if source != NONE and source >= cursor[queue_of(source)])

    queue = next(one for one, at in enumerate(cursor) if at < ends[one])
    seen: dict[int, int] = {}
    while queue not in seen:
        seen[queue] = len(seen)
        queue = queue_of(awaited(cursor[queue]))
    circle = [one for one, order in seen.items() if order >= seen[queue]]
    links = []
    for one in circle:
        source = awaited(cursor[one])
        other = queue_of(source)
        after = "" if cursor[other] == source else f", which {place(other)} does only after {label(cursor[other])}"
        links.append(f"{label(cursor[one])} on {place(one)} waits for {label(source)}{after}")
    return DeadlockError([label(cursor[one]) for one in circle], links)
