"""The least time of a step under 1F1B as executed: a bound from ways through the step, by the slowest stage.

Each stage runs as many forward as backward passes on any way through a step but for waits, so what counts of it is
the time of a pair of passes, ``p``. With ``tail`` the pairs and transfers of a stage and all behind it, ``pre``
those before it, and s stages behind it, a step of M micro-batches takes at least

* ``pre + 2 tail + (M - s - 2) p`` where M >= s + 2: the first micro-batch goes down and up, the stage runs one
  pair after the other until the forward pass of the last micro-batch, and that one goes down and up;
* ``pre + M p`` in any case, which counts where M is less: the stage runs all pairs, after the first forward passes
  before it, and before the last backward passes;
* ``pre + tail + (M - 1) p / 2`` there too: all forward passes of the stage, or all its backward ones, and one
  micro-batch down and up. The mean of both is no more than the longer one;
* ``pre + ceil(M / (s + 1)) tail`` for any stage (``solvers.reduce.executed.compositions``).

Whichever stage is the slowest: plans whose slowest stage takes more than ``lo`` and at most ``hi`` are bounded by
a programme with a choice, which stage that is; behind it everything counts twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.units import ceil_div
from pipecut.solvers.reduce.form_sums import Numbers
from pipecut.solvers.reduce.programme import LineSums, behind_stages, grown
from pipecut.solvers.reduce.reduced_stages import ReducedStages


@dataclass(slots=True)
class SlowestFirst:
    """Bounds of plans whose slowest stage takes more than ``lo`` and at most ``hi``, within a budget.

    ``sums`` are the suffixes in which no stage takes longer; ``chosen[s][x, size, atom]`` bounds of those of s + 1
    stages of which one was said to be the slowest.
    """

    stages: ReducedStages
    lo: int
    hi: int
    budget: int
    sums: LineSums = field(init=False)
    chosen: list[Numbers] = field(default_factory=list)
    least: int = FORBIDDEN

    def __post_init__(self) -> None:
        # A link may take longer than any stage.
        of, within = self.stages, (self.hi, FORBIDDEN, self.budget)
        self.sums = LineSums.of(of.line, of.least, of.atoms, within, of.numbers)

    def run(self) -> bool:
        """Find the ``least`` bound; tell whether any plan is within the budget."""
        line, many = self.stages.line, self.stages.micro_batches
        for slot, plain in enumerate(self.sums.found):
            often = many - slot if many >= slot + 2 else many
            slowest = partial(self._counted, slot, often, self.lo + 1)
            made = grown(line, slowest, self.sums.rest(slot), partial(self._with_rest, slot))
            if slot:
                behind = behind_stages(line, self.chosen[slot - 1])
                made = np.minimum(made, grown(line, partial(self._counted, slot, 1, 0), behind))
            # Whatever the slowest is, passes go down and up through all of these for one micro-batch in so many.
            made = np.maximum(made, np.where(plain < FORBIDDEN, ceil_div(many, slot + 1) * plain, FORBIDDEN))
            made[made + self.sums.front[:, None] > self.budget] = FORBIDDEN
            self.chosen.append(made)
        fewest = self.stages.numbers[0]
        self.least = min((int(row[0, :, 0].min()) for row in self.chosen[fewest - 1 :]), default=FORBIDDEN)
        return self.least < FORBIDDEN

    def _counted(self, slot: int, often: int, least: int, seat: int) -> Numbers:
        """Return what a stage counts: so often what it takes, at least so long.

        Of a first stage all that it does once a step comes last.
        """
        found = self.sums.cells(seat, slot)
        own = np.maximum(found, least)
        counted = np.where(found < FORBIDDEN, often * own, FORBIDDEN)
        counted[0] += np.maximum(0, self.stages.ending().least(seat, slot)[0] - own[0])
        return counted

    def _with_rest(self, slot: int, own: Numbers, behind: Numbers) -> Numbers:
        """Return what counts of the slowest stage, of which all its pairs do, and of everything behind it."""
        many = self.stages.micro_batches
        if many >= slot + 2:
            return own + 2 * behind
        return np.where(behind < FORBIDDEN, np.maximum(own, own * (many + 1) // (2 * many) + behind), FORBIDDEN)
