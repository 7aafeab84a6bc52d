"""What stages before a suffix see of it: when it is done with each micro-batch, whenever these arrive.

Under 1F1B with fixed orders every end of a pass is the largest of some sums (a max-plus linear system; Baccelli et
al., Synchronization and Linearity, 1992). So a suffix answers arrivals x with

    y[k] = max over m of x[m] + answer[m, k]   (the gradient of micro-batch k leaves its first stage)
    end  = max over m of x[m] + answer[m, M]   (its last synchronisation is over)

and a suffix none of whose answers is later than that of another can take its place in every plan. Answers are
composed stage by stage, thousands at once.

They are as many numbers as the square of the micro-batches. Where these are many, suffixes are known by the passes
of their stages (:class:`PassByPass`): a row has the passes of each stage, and the two times that matter
with all micro-batches there at 0. A suffix whose passes are each no longer than those of another, with the same
warm-ups, can take its place in every plan: every end of a pass is a largest sum of passes. So nothing is lost,
though more suffixes are kept than there would be by answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.limits import Deadline, in_time
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.solvers.step_time.bounds.columns import WEIGHTS, Formula, Period

MOST_MICRO_BATCHES = 64
"""Suffixes are compared by answers, as many as the square of these; with more of them by their passes."""
MOST_CELLS = 1 << 20
"""So many numbers of answers are worked out in one go, each from up to 64 others."""
NEVER = -(1 << 50)
"""No path leads there."""
NEVER_KEPT = 1 << 58
"""The answer of suffixes that no plan within a period has; a limit on a period is less."""
Visits = Mapping[tuple[int, int], int]
"""How often paths go into a suffix with a micro-batch and come out of it with another."""


class Responses(Protocol):
    """How suffixes answer, a row of ``width`` numbers each; no plan is later for smaller ones."""

    width: int

    def last(self, passes: Times, slot: int = 0) -> Times:
        """Return the rows of last stages with these passes (forward, backward, synchronisation).

        ``slot``, there and below, tells the warm-up: it is the one of that slot, if nothing is chosen.
        """
        return self.before(self.nothing(len(passes)), slot, passes, np.zeros((len(passes), 2), dtype=np.int64))

    def nothing(self, many: int) -> Times:
        """Return so many rows of no suffix, which a last stage is put before."""
        return np.zeros((many, self.width), dtype=np.int64)

    def before(self, rows: Times, slot: int, passes: Times, sent: Times) -> Times:
        """Return rows with a stage put before; ``sent`` are the transfers behind it (activation, gradient)."""
        ...

    def leaving(self, rows: Times) -> Times:
        """Return when the last gradient leaves the first stage, where all micro-batches are there at 0."""
        ...

    def ended(self, rows: Times) -> Times:
        """Return when the last synchronisation is over, where all micro-batches are there at 0.

        That is when the last gradient leaves where nothing else is said.
        """
        return self.leaving(rows)

    def visited(self, rows: Times, visits: Visits) -> Times | None:
        """Return the sum of answers, ``visits[m, k]`` times that to arrival m by leaving k; None: not kept."""
        return None


def responses(training: Training | Formula | Period, most_stages: int, period_ns: int = 0) -> Responses:
    """Return how suffixes of plans of at most so many stages answer: under a schedule, by a formula, to a period.

    Of exactly so many where backward passes have halves. Raises ValueError for a schedule that no search is
    written for.
    """
    if isinstance(training, Formula):
        return LatencyAndSlowest(training)
    if isinstance(training, Period):
        return KeepingPace(training, period_ns)
    if training.schedule is Schedule.ZERO_BUBBLE_H1:
        return OneForwardOneBackward(training, most_stages)
    if training.schedule is Schedule.ONE_F_ONE_B:
        many = training.micro_batches > MOST_MICRO_BATCHES
        return PassByPass(training, most_stages) if many else OneForwardOneBackward(training)
    if training.schedule is Schedule.GPIPE:
        return AllForwardAllBackward(training.micro_batches)
    if training.schedule is Schedule.NAIVE:
        return OneAtATime(training.micro_batches)
    raise ValueError(f"no search for the executed step under {training.schedule}")


def answered(
    how: Responses, rows: Times, label: Times, slot: int, passes: Times, sent: Times, deadline: Deadline
) -> Times:
    """Return rows with stages put before those that are numbered by ``label``; see :meth:`Responses.before`.

    Raises StoppedError after the deadline.
    """
    found = np.zeros((len(label), how.width), dtype=np.int64)
    size = max(1, MOST_CELLS // how.width)
    for at in in_time(range(0, len(label), size), deadline):
        some = slice(at, at + size)
        found[some] = how.before(rows[label[some]], slot, passes[some], sent[some])
    return found


class OneForwardOneBackward(Responses):
    """1F1B with a flush: answers by arrival and micro-batch, and by arrival the end.

    Of plans of so many ``stages`` ZB-H1: a stage sends its gradient before it does the half of the weights, which
    it puts off by as many pairs as there are stages before it.
    """

    def __init__(self, training: Training, stages: int | None = None) -> None:
        self.micro_batches = training.micro_batches
        self.width = self.micro_batches * (self.micro_batches + 1)
        self._training, self._stages = training, stages

    def last(self, passes: Times, slot: int = 0) -> Times:
        """Return the answers of stages that nothing stands behind."""
        return self._put(None, slot, passes, np.zeros((len(passes), 2), dtype=np.int64))

    def before(self, rows: Times, slot: int, passes: Times, sent: Times) -> Times:
        """Return the answers with a stage put before, pass by pass."""
        count = self.micro_batches
        return self._put(rows.reshape(len(rows), count, count + 1), slot, passes, sent)

    def leaving(self, rows: Times) -> Times:
        """Return the latest answer of the last micro-batch, whichever arrival it waits for."""
        count = self.micro_batches
        return rows.reshape(len(rows), count, count + 1)[:, :, count - 1].max(axis=1)

    def ended(self, rows: Times) -> Times:
        """Return the latest end, whichever arrival it waits for."""
        count = self.micro_batches
        return rows.reshape(len(rows), count, count + 1)[:, :, count].max(axis=1)

    def visited(self, rows: Times, visits: Visits) -> Times | None:
        """Return the sum of the answers, each as often as it is visited."""
        into, out = np.array(list(visits), dtype=np.intp).reshape(-1, 2).T
        return np.asarray(
            rows[:, into * (self.micro_batches + 1) + out] @ np.array(list(visits.values()), np.int64)
        )

    def _put(self, behind: Times | None, slot: int, passes: Times, sent: Times) -> Times:
        """Go through the passes of the new first stage; every time is a row over the arrivals it may wait for."""
        count, many = self.micro_batches, len(passes)
        forward, backward, sync = (passes[:, at, None] for at in range(3))
        halves = self._stages is not None
        ahead, late = (self._stages or slot + 1) - 1 - slot, passes[:, WEIGHTS, None] if halves else 0 * sync
        free = np.full((many, count), NEVER, dtype=np.int64)
        arrived = np.full((many, count, count), NEVER, dtype=np.int64)
        found = np.full((many, count, count + 1), NEVER, dtype=np.int64)
        # The last of these is the first one's of a pair.
        warm = (self._training.warm_up_in(slot) if self._stages is None else min(slot + 1, count)) - 1
        for micro_batch in range(warm):
            self._forward(free, arrived, micro_batch, forward, sent)
        for pair in range(count):
            if pair + warm < count:
                self._forward(free, arrived, pair + warm, forward, sent)
            if behind is not None:
                known = min(count, pair + warm + 1)
                back = (arrived[:, :known] + behind[:, :known, pair, None]).max(axis=1)
                np.maximum(free, back + sent[:, 1, None], out=free)
            free += backward - late
            found[:, :, pair] = free
            free += late * (pair >= ahead)
        end = free + min(ahead, count) * late + sync
        if behind is not None:
            np.maximum(end, (arrived + behind[:, :, count, None]).max(axis=1), out=end)
        found[:, :, count] = end
        np.putmask(found, found < NEVER // 2, NEVER)
        return found.reshape(many, self.width)

    def _forward(self, free: Times, arrived: Times, micro_batch: int, forward: Times, sent: Times) -> None:
        np.maximum(free[:, micro_batch], 0, out=free[:, micro_batch])
        free += forward
        arrived[:, micro_batch] = free + sent[:, :1]


class AllForwardAllBackward(Responses):
    """GPipe, F-then-B: what ``formulation.executed`` sums up, by stage from the back.

    Columns: forward passes and transfers, slowest forward pass, backward passes and transfers, slowest backward
    pass, and the end of the last synchronisation less all that belongs to forward passes.
    """

    width = 5

    def __init__(self, micro_batches: int) -> None:
        self._more = micro_batches - 1

    def nothing(self, many: int) -> Times:
        """Return columns of no suffix, of which no synchronisation ends."""
        return np.tile(np.array([0, 0, 0, 0, NEVER], dtype=np.int64), (many, 1))

    def before(self, rows: Times, slot: int, passes: Times, sent: Times) -> Times:
        """Return the columns with a stage put before: longer ways, and the slowest so far."""
        down = rows[:, 0] + passes[:, 0] + sent[:, 0]
        slowest = np.maximum(rows[:, 1], passes[:, 0])
        up = rows[:, 2] + passes[:, 1] + sent[:, 1]
        pace = np.maximum(rows[:, 3], passes[:, 1])
        end = np.maximum(rows[:, 4], up + self._more * pace + passes[:, 2])
        return np.stack([down, slowest, up, pace, end], axis=1)

    def leaving(self, rows: Times) -> Times:
        """Return both ways, and the slowest passes once more for every further micro-batch."""
        return rows[:, 0] + self._more * (rows[:, 1] + rows[:, 3]) + rows[:, 2]

    def ended(self, rows: Times) -> Times:
        """Return what belongs to forward passes, and the end behind it."""
        return rows[:, 0] + self._more * rows[:, 1] + rows[:, 4]


class LatencyAndSlowest(Responses):
    """What a formula counts: the latency, and the slowest stage or boundary, each as often as it counts.

    Of the bottleneck alone the first is 0, of one micro-batch at a time the other.
    """

    width = 2

    def __init__(self, formula: Formula) -> None:
        self._once, self._more = formula.once, formula.often - formula.once

    def before(self, rows: Times, slot: int, passes: Times, sent: Times) -> Times:
        """Return both with a stage put before."""
        stage, boundary = passes.sum(axis=1), sent.sum(axis=1)
        slowest = np.maximum(rows[:, 1], self._more * np.maximum(stage, boundary))
        return np.stack([rows[:, 0] + self._once * (stage + boundary), slowest], axis=1)

    def leaving(self, rows: Times) -> Times:
        """Return the sum, which is what a plan takes."""
        return rows.sum(axis=1)


class KeepingPace(Responses):
    """1F1B without a flush, asked whether plans keep to a period T: everything repeats after a round of pairs.

    A suffix answers a pass that comes to its first stage in pair a of a round: by when, beyond T for each pair in
    between, is it back from pair b? In front of one with answers R, behind a boundary, a stage of this pace has

        X[a, b] = pace + max(wait[a, b], boundary - T + R[a + 1, b]),

    with ``wait`` for turning at the stage itself. Its answers are those of ways through X on which its device goes
    on from pair b to pair b + 1, T less, and after the last pair of a round with the synchronisation if that is
    charged. A plan keeps to T if no way comes back to a pair later than it began there: else all answers are
    NEVER_KEPT.
    """

    def __init__(self, period: Period, period_ns: int) -> None:
        self._charged, self._pairs, self._period_ns = period.charged, period.pairs, period_ns
        at = np.arange(self._pairs)
        self.width, self._wait = len(at) ** 2, -period_ns * ((at[None, :] - at[:, None]) % len(at))

    def last(self, passes: Times, slot: int = 0) -> Times:
        """Return the answers of stages that nothing stands behind."""
        return self._put(np.broadcast_to(self._wait, (len(passes), *self._wait.shape)), passes)

    def before(self, rows: Times, slot: int, passes: Times, sent: Times) -> Times:
        """Return the answers with a stage put before, which the suffix is one pair ahead of."""
        behind = np.roll(rows.reshape(len(rows), *self._wait.shape), -1, axis=1)
        behind += sent.sum(axis=1)[:, None, None] - self._period_ns
        return self._put(np.maximum(behind, self._wait), passes)

    def leaving(self, rows: Times) -> Times:
        """Return by when passes are back from some pair, beyond T, in whichever pair they come."""
        return rows.reshape(len(rows), *self._wait.shape).max(axis=2).min(axis=1)

    def _put(self, ways: Times, passes: Times) -> Times:
        """Return the answers of stages with these ways beside their passes."""
        found = np.full((len(passes), self.width), NEVER_KEPT, dtype=np.int64)
        answers, kept = ways + passes[:, :2].sum(axis=1)[:, None, None], np.arange(len(passes))
        for pair in range(self._pairs):
            after = (pair + 1) % self._pairs
            more = passes[kept, 2] * (self._charged and after == 0) - self._period_ns
            good = answers[:, after, pair] + more <= 0
            if not good.all():
                answers, kept, more = answers[good], kept[good], more[good]
            back = answers[:, :, pair, None] + more[:, None, None] + answers[:, None, after, :]
            np.maximum(answers, back, out=answers)
        found[kept] = answers.reshape(len(kept), self.width)
        return found


class OneAtATime(Responses):
    """One micro-batch at a time: its way through all stages and back, and the end of the last one's way.

    Both grow with whatever is put before, and a step is M - 1 times the one and then the other.
    """

    width = 2

    def __init__(self, micro_batches: int) -> None:
        self._more = micro_batches - 1

    def before(self, rows: Times, slot: int, passes: Times, sent: Times) -> Times:
        """Return both with a stage put before, which is gone through twice."""
        way = rows[:, 0] + passes[:, 0] + passes[:, 1] + sent.sum(axis=1)
        return np.stack([way, np.maximum(rows[:, 1] + passes[:, 0] + sent[:, 0], way + passes[:, 2])], axis=1)

    def leaving(self, rows: Times) -> Times:
        """Return the way of all micro-batches, one after another."""
        return (self._more + 1) * rows[:, 0]

    def ended(self, rows: Times) -> Times:
        """Return the way of all micro-batches but one, and then the end."""
        return self._more * rows[:, 0] + rows[:, 1]


STAGES, LEAVING, ENDED, FIRST = range(4)
"""Columns of a row before those of its stages, which begin with FIRST."""
FORWARD, BACKWARD, SYNC, ACTIVATION, GRADIENT, WARM_UP, NOT_ABOVE = range(7)
"""Columns of a stage, the last one first: transfers are those behind it, NOT_ABOVE is the warm-up below 0.

So rows with other warm-ups are at most each other in no way.
"""
EACH = 7


class PassByPass(Responses):
    """1F1B with a flush and many micro-batches: rows of passes, of at most so many stages.

    Cost of a row: passes of its suffix. ``width`` grows with the stages and not with the micro-batches.
    """

    def __init__(self, training: Training, most_stages: int) -> None:
        self.width = FIRST + EACH * most_stages
        self._training = training

    def before(self, rows: Times, slot: int, passes: Times, sent: Times) -> Times:
        """Return rows with the passes of one stage more, and both times worked out anew."""
        found = rows.copy()
        if not len(found):
            return found
        behind, warm_up = int(found[0, STAGES]), self._training.warm_up_in(slot)
        mine = found[:, FIRST + EACH * behind : FIRST + EACH * (behind + 1)]
        mine[:, [FORWARD, BACKWARD, SYNC]], mine[:, [ACTIVATION, GRADIENT]] = passes[:, :3], sent
        mine[:, WARM_UP], mine[:, NOT_ABOVE] = warm_up, -warm_up
        found[:, STAGES] = behind + 1
        stages = found[:, FIRST : FIRST + EACH * (behind + 1)].reshape(len(found), behind + 1, EACH)
        warm_ups, group = np.unique(stages[:, ::-1, WARM_UP], axis=0, return_inverse=True)
        for nth, some in enumerate(warm_ups.tolist()):
            alike = np.flatnonzero(group.reshape(-1) == nth)
            found[alike, LEAVING : ENDED + 1] = _executed(stages[alike, ::-1], some, self._training.micro_batches)
        return found

    def leaving(self, rows: Times) -> Times:
        """Return the time that is kept in its column."""
        return rows[:, LEAVING]

    def ended(self, rows: Times) -> Times:
        """Return the time that is kept in its column."""
        return rows[:, ENDED]


def _executed(stages: Times, warm_ups: list[int], micro_batches: int) -> Times:
    """Return when the last gradients leave the first stages, and when all have summed theirs, two columns.

    ``stages``: suffix, stage from the first one, column; all have these ``warm_ups``. As
    ``formulation.executed.one_f_one_b_ends`` has it, for all suffixes at once.
    """
    # Contiguous by stage and column: every one of the many sums below is over all suffixes.
    passes = np.ascontiguousarray(stages.transpose(1, 2, 0))
    order = range(len(passes))
    nothing = np.zeros(passes.shape[2], dtype=np.int64)
    free = [nothing.copy() for _ in order]
    # Forward passes that the next stage has not taken yet: it is behind by the difference of their warm-ups.
    arrived: list[dict[int, Times]] = [{} for _ in order]

    def forward(stage: int, micro_batch: int) -> None:
        if stage:
            np.maximum(free[stage], arrived[stage - 1].pop(micro_batch), out=free[stage])
        free[stage] += passes[stage, FORWARD]
        arrived[stage][micro_batch] = free[stage] + passes[stage, ACTIVATION]
        if stage == order[-1]:
            arrived[stage].clear()

    for stage in order:
        for micro_batch in range(min(warm_ups[stage] - 1, micro_batches)):
            forward(stage, micro_batch)
    for pair in range(micro_batches):
        for stage in order:
            if pair + warm_ups[stage] - 1 < micro_batches:
                forward(stage, pair + warm_ups[stage] - 1)
        back = nothing
        for stage in reversed(order):
            np.maximum(free[stage], back + passes[stage, GRADIENT], out=free[stage])
            free[stage] += passes[stage, BACKWARD]
            back = free[stage]
    ends = np.max([one + own[SYNC] for one, own in zip(free, passes, strict=True)], axis=0)
    return np.column_stack([free[0], ends])
