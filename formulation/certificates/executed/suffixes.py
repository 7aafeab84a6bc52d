"""Suffixes of plans in one slot, and what weighed paths say of whole plans that end in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.certificates.executed.answers import Answers
from pipecut.formulation.certificates.executed.paths import WeighedPaths
from pipecut.formulation.certificates.executed.sums import Sums
from pipecut.formulation.certificates.executed.unbeaten import Rows, unbeaten
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
