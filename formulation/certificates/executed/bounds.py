"""What weighed paths say of all plans: worked out once for an instance, and asked for one limit after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from formulation.certificates.executed.ahead import SumsAround
from formulation.certificates.executed.passes import RoomOfStages
from formulation.certificates.executed.paths import PathError, WeighedPaths, busy_paths
from formulation.certificates.executed.suffixes import PathBound
from formulation.certificates.executed.sums import NEVER_NS, LeastSums, Sums
from formulation.certificates.executed.ways import NodeMoves
from formulation.limits.deadline import NEVER, Deadline
from formulation.limits.size import TooLargeError
from formulation.problem.instance import Instance
from formulation.schedules.keeps import Keeps
from formulation.suffixes.slots import slots_matter

__all__: list[str] = []

LARGEST = 1 << 59
"""Sums of passes stay below this."""
AT_ONCE, KEPT = 1 << 25, 1 << 27
"""About so many sums are worked out in one go, and so many are remembered."""
RoomsBySlot = list[list[dict[int, RoomOfStages]]]
"""By slot and number of stages what paths leave to stages, by kind."""


class PathBounds:
    """Bounds of the plans of an instance by paths, of which there are some for every number of stages.

    ``rules`` say what a stage keeps, by slot (None: memory is not limited). Raises PathError for what is no path,
    ValueError and TooLargeError as ``NodeMoves``, and StoppedError after the deadline.
    """

    def __init__(self, instance: Instance, weighed: Sequence[WeighedPaths], deadline: Deadline = NEVER) -> None:
        training = instance.training
        self.ways, self._deadline = NodeMoves(instance, deadline), deadline
        self.micro_batches = training.micro_batches
        many = min(len(self.ways.places) - 1, instance.devices)
        matter, limited = slots_matter(instance), instance.constraints.memory
        rules = (Keeps.in_slot(training, slot if matter else 0) if limited else None for slot in range(many))
        self.rules: tuple[Keeps | None, ...] = tuple(rules)
        known = {one.stages: one for one in weighed}
        self._every = [known.get(stages) or busy_paths(training, stages) for stages in range(1, many + 1)]
        for one in self._every:
            one.check(training)
        self._least = LeastSums(instance, self.ways.kinds, deadline)
        kinds = range(len(self.ways.kinds))
        distinct = tuple(dict.fromkeys(one for one in self.rules if one is not None))
        self._roomy = (
            {
                rule: bits
                for rule, bits in zip(
                    distinct, np.stack([self._least.roomy(kind, distinct) for kind in kinds], axis=1), strict=True
                )
            }
            if distinct
            else {}
        )
        whole = np.array([[self.micro_batches, self.micro_batches, 1]])
        self._whole = np.stack([self._least.of_passes(kind, whole)[0] for kind in kinds])
        self._kept: list[Sums] = []

    def within(self, step_ns: int) -> tuple[list[PathBound], RoomsBySlot]:
        """Return bounds by the numbers of stages that plans within a step may have, and what they leave to stages.

        Raises PathError for weights that are too large for it, and StoppedError after the deadline.
        """
        for one in self._every:
            if one.weight * (step_ns + 1) * (2 * self.micro_batches + 8) >= LARGEST:
                raise PathError(f"paths of {one.stages} stages: weights of {one.weight} in all are too large")
        quick = self._whole <= step_ns
        allowed = [quick if rule is None else quick & self._roomy[rule] for rule in self.rules]
        around = SumsAround(self.ways, allowed, step_ns, self._deadline)
        bounds: list[PathBound] = []
        rooms: RoomsBySlot = [[] for _ in allowed]
        for one, costs in zip(self._every, self._costs(), strict=True):
            found = around.of(one, costs)
            if found.rooms[0]:
                bounds.append(PathBound(one, np.array(one.often(), dtype=np.int64), found.ahead))
                for own, other in zip(rooms, found.rooms, strict=False):
                    own.append(other)
        return bounds, rooms

    def _costs(self) -> Iterator[Sums]:
        """Yield by number of stages ``[kind, stage, begin, stop]``: the least sums of the stages of paths."""
        if self._kept:
            yield from self._kept
            return
        size = len(self.ways.places) ** 2 * len(self.ways.kinds)
        rows = np.cumsum([one.stages for one in self._every]) * size
        keeping = rows[-1] <= KEPT
        for batch in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows // AT_ONCE)) + 1):
            often = [np.array(self._every[at].often(), dtype=np.int64) for at in batch]
            found = self._sums(np.concatenate(often)[:, :3])
            parts = np.split(found, np.cumsum([len(one) for one in often])[:-1], axis=1)
            self._kept += parts if keeping else ()
            yield from parts

    def _sums(self, often: Sums) -> Sums:
        """Return ``[kind, row, begin, stop]`` for the kinds that a stage has room on."""
        places, kinds = len(self.ways.places), len(self.ways.kinds)
        TooLargeError.refuse_above("sums of stages", kinds * len(often) * places**2 * 8, "set model.cuts: blocks")
        found: Sums = np.full((kinds, len(often), places, places), NEVER_NS, dtype=np.int64)
        for kind in range(kinds):
            if not self._roomy or any(bits[kind].any() for bits in self._roomy.values()):
                found[kind] = self._least.of_passes(kind, often)
        return found
