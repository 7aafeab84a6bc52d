"""What weighed paths say of all plans: worked out once for an instance, and asked for one limit after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from pipecut.formulation.certificates.executed.ahead import SumsAround
from pipecut.formulation.certificates.executed.best_passes import RoomOfStages
from pipecut.formulation.certificates.executed.paths import PathError, WeighedPaths, busy_paths
from pipecut.formulation.certificates.executed.sums import NEVER_NS, LeastSums, Sums
from pipecut.formulation.certificates.executed.ways import NodeMoves
from pipecut.formulation.certificates.executed.weighed_suffixes import PathBound
from pipecut.formulation.limits import NEVER, Deadline, TooLargeError
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.suffixes import rules_by_slot

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
        self.rules = rules_by_slot(instance, many)
        told = {one.stages for one in weighed}
        busy = (busy_paths(training, stages) for stages in range(1, many + 1) if stages not in told)
        self._every = sorted((*(one for one in weighed if one.stages <= many), *busy), key=lambda one: one.stages)
        for one in self._every:
            one.check(training)
        self._least = LeastSums(instance, self.ways.kinds, deadline)
        kinds = range(len(self.ways.kinds))
        distinct = tuple(dict.fromkeys(one for one in self.rules if one is not None))
        roomy = [self._least.roomy(kind, distinct) for kind in kinds] if distinct else []
        self._roomy = {rule: np.stack([bits[at] for bits in roomy]) for at, rule in enumerate(distinct)}
        self._rows = [np.array(one.often(), dtype=np.int64)[:, :3] for one in self._every]
        sizes = np.cumsum([len(rows) for rows in self._rows]) * len(self.ways.places) ** 2 * len(self.ways.kinds)
        self._batches = np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(sizes // AT_ONCE)) + 1)
        self._keeping = sizes[-1] <= KEPT
        # All passes of whole stages go with the first paths: most of the time goes to the layers, for any sums.
        first, *self._kept = self._batch(self._batches[0], np.array([[*[self.micro_batches] * 2, 1]]))
        self._whole = first[:, 0]

    def within(self, step_ns: int) -> tuple[list[list[PathBound]], RoomsBySlot]:
        """Return what all paths of so many stages say, where plans of a step may have them, and what they leave.

        A plan keeps to a step only if it does so by all paths of its number of stages. Raises PathError for
        weights that are too large for it, and StoppedError after the deadline.
        """
        for one in self._every:
            if one.weight * max(1, step_ns + 1) * (2 * self.micro_batches + 8) >= LARGEST:
                raise PathError(f"paths of {one.stages} stages: weights of {one.weight} in all are too large")
        quick = self._whole <= step_ns
        allowed = [quick if rule is None else quick & self._roomy[rule] for rule in self.rules]
        around = SumsAround(self.ways, step_ns, self._deadline)
        bounds: list[list[PathBound]] = []
        rooms: RoomsBySlot = [[] for _ in allowed]
        pairs = zip(self._every, self._costs(), strict=True)
        for _, same in groupby(pairs, key=lambda pair: pair[0].stages):
            left, found, leave = allowed, list[PathBound](), list[dict[int, RoomOfStages]]()
            for one, costs in same:
                sums = around.of(one, costs, left)
                left, leave = sums.left(left), sums.rooms
                found.append(PathBound(one, np.array(one.often(), dtype=np.int64), sums.ahead))
            if left[0].any():
                bounds.append(found)
                for own, other in zip(rooms, leave, strict=False):
                    own.append(other)
        return bounds, rooms

    def _costs(self) -> Iterator[Sums]:
        """Yield by number of stages ``[kind, stage, begin, stop]``: the least sums of the stages of paths."""
        yield from self._kept
        for batch in self._batches[1:] if len(self._kept) < len(self._every) else ():
            parts = self._batch(batch)
            self._kept += parts if self._keeping else ()
            yield from parts

    def _batch(self, batch: Sums, *more: Sums) -> list[Sums]:
        rows = [*more, *(self._rows[at] for at in batch)]
        return np.split(self._sums(np.concatenate(rows)), np.cumsum([len(one) for one in rows])[:-1], axis=1)

    def _sums(self, often: Sums) -> Sums:
        """Return ``[kind, row, begin, stop]`` for the kinds that a stage has room on."""
        places, kinds = len(self.ways.places), len(self.ways.kinds)
        TooLargeError.refuse_above("sums of stages", kinds * len(often) * places**2 * 8, "set model.cuts: blocks")
        found: Sums = np.full((kinds, len(often), places, places), NEVER_NS, dtype=np.int64)
        for kind in range(kinds):
            if not self._roomy or any(bits[kind].any() for bits in self._roomy.values()):
                found[kind] = self._least.of_passes(kind, often)
        return found
