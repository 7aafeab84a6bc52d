"""Suffixes of steps with many micro-batches: known by the passes of their stages, not by how they answer.

What stages before a suffix see of it (``solvers.step_time.responses``) are as many numbers as the square of the
micro-batches. Where these are many, a row has the passes of each of its stages, and the two times that matter
with all micro-batches there at 0. A suffix whose passes are each no longer than those of another, with the same
warm-ups, can take its place in every plan: every end of a pass is a largest sum of passes. So nothing is lost,
though more suffixes are kept than there would be by answers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.problem.training import Training

Index = NDArray[np.int64]
STAGES, LEAVING, ENDED, FIRST = range(4)
"""Columns of a row before those of its stages, which begin with FIRST."""
FORWARD, BACKWARD, SYNC, ACTIVATION, GRADIENT, WARM_UP, NOT_ABOVE = range(7)
"""Columns of a stage, the last one first: transfers are those behind it, NOT_ABOVE is the warm-up below 0.

So rows with other warm-ups are at most each other in no way.
"""
EACH = 7


class PassByPass:
    """1F1B with a flush: rows of passes (``solvers.step_time.responses.Responses``), of at most so many stages.

    Cost of a row: passes of its suffix. ``width`` grows with the stages and not with the micro-batches.
    """

    def __init__(self, training: Training, most_stages: int) -> None:
        self.width = FIRST + EACH * most_stages
        self._training = training

    def last(self, passes: Times, slot: int = 0) -> Times:
        """Return rows of one stage, its passes in the first columns of stages."""
        rows = np.zeros((len(passes), self.width), dtype=np.int64)
        return self.before(rows, slot, passes, np.zeros((len(passes), 2), dtype=np.int64))

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

    def visited(self, rows: Times, visits: Mapping[tuple[int, int], int]) -> Times | None:
        """Return None: how a suffix answers to single micro-batches is not kept."""
        return None


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
