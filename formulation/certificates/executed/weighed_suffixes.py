"""Suffixes of plans in one slot, and what weighed paths say of whole plans that end in them.

How they answer micro-batches that come at any times: every pass begins when the latest of what it waits for
is there, so all ends are largest sums (Baccelli et al., Synchronization and Linearity, 1992). Where micro-batch m
comes to a suffix at x[m],

    its first stage is done with the backward pass of micro-batch k at   max over m of x[m] + answer[m, k],
    the last of its synchronisations at                                 max over m of x[m] + answer[m, M],

and stages before it see nothing else of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.certificates.executed.paths import WeighedPaths, order_of
from pipecut.formulation.certificates.executed.sums import Sums
from pipecut.formulation.certificates.executed.ways import Rows, unbeaten
from pipecut.formulation.limits import NEVER, Deadline

Index = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class AnsweredSuffixes:
    """A row each: its node, the place where it begins, and how it answers."""

    node: Index
    place: Index
    answers: Answers

    @staticmethod
    def joined(parts: Sequence[AnsweredSuffixes]) -> AnsweredSuffixes:
        """Return all of several."""
        return AnsweredSuffixes(
            np.concatenate([one.node for one in parts]),
            np.concatenate([one.place for one in parts]),
            np.concatenate([one.answers for one in parts]),
        )

    def of(self, some: Index | NDArray[np.bool_]) -> AnsweredSuffixes:
        """Return some of them."""
        return AnsweredSuffixes(self.node[some], self.place[some], self.answers[some])

    def unbeaten(self, deadline: Deadline = NEVER) -> AnsweredSuffixes:
        """Return those that no other at the same node and place can take the place of, by node, then place.

        Raises StoppedError after the deadline.
        """
        order = np.lexsort((self.place, self.node))
        both = np.stack([self.node[order], self.place[order]])
        begins = np.flatnonzero(np.diff(both, prepend=both[:, :1] - 1).any(axis=0))
        flat = self.answers.reshape(len(self.answers), -1)
        parts = [some[unbeaten(flat[some], deadline)] for some in np.split(order, begins)[1:]]
        return self.of(np.concatenate(parts) if parts else order)

    def ended(self) -> Sums:
        """Return when the last synchronisation of each is over, where all micro-batches are there at 0."""
        return np.asarray(self.answers[:, :, -1].max(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class PathBound:
    """Weighed paths with their counts by stage, and what they take ahead of suffixes, by slot, node and place."""

    weighed: WeighedPaths
    often: Rows
    ahead: list[Sums]

    def over(
        self, slot: int, node: int, passes: Rows, begin: Index, sent: Rows, seen: Sums, most_ns: int
    ) -> NDArray[np.bool_]:
        """Return which plans are above a limit that go on with these stages, put into a slot before suffixes.

        ``passes`` of each stage and what crosses the boundary behind it, where it begins, and what paths see of
        the suffix. Plans of fewer stages are above any limit.
        """
        if self.weighed.stages <= slot:
            return np.ones(len(passes), dtype=np.bool_)
        counts = self.often[self.weighed.stages - 1 - slot]
        least = self.ahead[slot][node, begin] + passes @ counts[:3] + sent @ counts[3:] + seen
        return np.asarray(least > self.weighed.weight * most_ns)

    def seen(self, slot: int, answers: Answers) -> Sums:
        """Return the sums of paths over suffixes that begin in a slot; 0 where all stages are in them."""
        found: Sums = np.zeros(len(answers), dtype=np.int64)
        stage = self.weighed.stages - 1 - slot
        for (came, left), often in self.weighed.visits(stage, answers.shape[1]).items() if stage > 0 else ():
            found += often * answers[:, came, left]
        return found

    def beyond(self, slot: int, some: AnsweredSuffixes, most_ns: int) -> NDArray[np.bool_]:
        """Tell which suffixes that begin in a slot no plan of so many stages goes on with within a limit."""
        if self.weighed.stages <= slot + 1:
            return np.ones(len(some.node), dtype=np.bool_)
        least = self.ahead[slot][some.node, some.place] + self.seen(slot, some.answers)
        return np.asarray(least > self.weighed.weight * most_ns)


NO_WAIT = -(1 << 59)
"""No pass waits for that."""
Answers = NDArray[np.int64]
"""One row of M x (M + 1) numbers for each suffix."""


def answers_of(
    passes: Answers, sent: Answers, behind: Answers | None, warm_up: int, micro_batches: int
) -> Answers:
    """Return the answers of suffixes that begin with stages of these ``passes``: rows of F, B, synchronisation.

    ``sent``: activation and gradient over the boundary behind each; ``behind``: the answers of what is there, None
    behind last stages. Cost: for each suffix and pass of its first stage, up to the square of the micro-batches.
    """
    many, count = len(passes), micro_batches
    free: Answers = np.full((many, count), NO_WAIT, dtype=np.int64)
    gone: Answers = np.full((many, count, count), NO_WAIT, dtype=np.int64)  # arrival m, micro-batch sent on
    found: Answers = np.full((many, count, count + 1), NO_WAIT, dtype=np.int64)
    forward, backward, synchronisation = (passes[:, at, None] for at in range(3))
    activation, gradient = sent[:, :1], sent[:, 1:]
    for one in order_of(0, warm_up, count):
        at = one.micro_batch
        if one.way == "F":
            free[:, at] = np.maximum(free[:, at], 0)
            free = free + forward
            gone[:, :, at] = free + activation
        else:
            if behind is not None:
                free = np.maximum(free, _through(gone, behind[:, :, at]) + gradient)
            free = free + backward
            found[:, :, at] = free
    found[:, :, count] = free + synchronisation
    if behind is not None:
        found[:, :, count] = np.maximum(found[:, :, count], _through(gone, behind[:, :, count]))
    return np.where(found < NO_WAIT // 2, NO_WAIT, found)


def _through(gone: Answers, answer: Answers) -> Answers:
    """Return when something comes back that waits for micro-batches sent on, by arrival."""
    return np.asarray((gone + answer[:, None, :]).max(axis=2))
