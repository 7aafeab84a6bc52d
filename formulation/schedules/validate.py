"""Whether a schedule can be executed, and if not, why.

A schedule is complete if every stage forwards every micro-batch once and takes it back once (``B``, or ``I`` and
``W``), on the rank of its replica. It is possible if its ranks, each keeping to its order, never wait for one
another in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from formulation.schedules.actions import Action, Kind
from formulation.schedules.dependencies import NONE, dependencies, rank_of_actions
from formulation.schedules.table import PipelineSchedule, ScheduleError

MOST_SHOWN = 8
"""Mistakes, or links of a circle, that one error spells out; the rest is counted."""


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
