"""Paths through the passes of a step: sums that no step takes less than, and means of them.

A *path* begins with the first forward pass of the first stage, goes from pass to pass that wait for one another,
and ends with the last backward pass of a stage, behind which this synchronises. A pass waits for the one before it
on its device, and for the tensor from next door. So a step takes at least the passes and transfers on a path
together, with the passes of any plan of so many stages, and at least any mean of such sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Literal, NamedTuple

from pipecut.formulation.problem.training import Schedule, Training


class PathError(ValueError):
    """What is said to be a path is none."""


class PathPass(NamedTuple):
    """A pass of a micro-batch in a stage, both counted from 0: forward ("F") or backward ("B")."""

    stage: int
    way: Literal["F", "B"]
    micro_batch: int


def warm_ups(training: Training, stages: int) -> list[int]:
    """Return by stage how many forward passes come before its first backward pass, that of its pair included."""
    if training.schedule is Schedule.GPIPE:
        return [training.micro_batches] * stages
    if training.schedule is Schedule.NAIVE:
        return [1] * stages
    return list(training.warm_ups(stages))


def order_of(stage: int, warm_up: int, micro_batches: int) -> Iterator[PathPass]:
    """Yield the passes of a stage in the order in which its device does them."""
    for one in range(warm_up):
        yield PathPass(stage, "F", one)
    for one in range(micro_batches):
        yield PathPass(stage, "B", one)
        if one + warm_up < micro_batches:
            yield PathPass(stage, "F", one + warm_up)


@dataclass(frozen=True, slots=True)
class WeighedPaths:
    """Paths of plans of so many ``stages``, each with a whole weight above 0."""

    stages: int
    paths: tuple[tuple[int, tuple[PathPass, ...]], ...]

    @property
    def weight(self) -> int:
        """Sum of the weights."""
        return sum(weight for weight, _ in self.paths)

    def check(self, training: Training) -> None:
        """Raise PathError where one is no path of this training. Cost: linear in passes of a step and of paths."""
        if self.stages < 1 or not self.paths or any(weight < 1 for weight, _ in self.paths):
            raise PathError(f"paths of {self.stages} stages: expected weights above 0 of one path at least")
        orders = [
            order_of(stage, warm_up, training.micro_batches)
            for stage, warm_up in enumerate(warm_ups(training, self.stages))
        ]
        next_of = dict(chain.from_iterable(map(pairwise, orders)))
        for _, path in self.paths:
            if not path or path[0] != PathPass(0, "F", 0) or path[-1][1:] != ("B", training.micro_batches - 1):
                raise PathError(f"paths of {self.stages} stages: one does not go from first to last pass")
            for one, other in pairwise(path):
                if next_of.get(one) != other and not _next_door(one, other, self.stages):
                    raise PathError(f"paths of {self.stages} stages: {other} does not wait for {one}")

    def often(self) -> list[list[int]]:
        """Return by stage how often its passes (F, B), synchronisation, and the transfers behind it count."""
        found = [[0] * 5 for _ in range(self.stages)]
        for weight, path in self.paths:
            for one in path:
                found[one.stage][one.way == "B"] += weight
            found[path[-1].stage][2] += weight
            for one, other in pairwise(path):
                if other.stage > one.stage:
                    found[one.stage][3] += weight
                elif other.stage < one.stage:
                    found[other.stage][4] += weight
        return found

    def visits(self, first: int, micro_batches: int) -> Counter[tuple[int, int]]:
        """Return how often paths come to the stages from ``first`` on with one micro-batch and leave with another.

        The latter is the number of micro-batches where they end there. ``first`` is 1 or more.
        """
        found = Counter[tuple[int, int]]()
        for weight, path in self.paths:
            came = None
            for one, other in pairwise(path):
                if one.stage < first <= other.stage:
                    came = other.micro_batch
                elif other.stage < first <= one.stage and came is not None:
                    found[came, one.micro_batch] += weight
                    came = None
            if came is not None:
                found[came, micro_batches] += weight
        return found


def _next_door(one: PathPass, other: PathPass, stages: int) -> bool:
    """Tell whether a pass waits for a tensor that another, of the stage before or behind it, sends."""
    away = 1 if one.way == "F" else -1
    alike = one.way == other.way and one.micro_batch == other.micro_batch
    return alike and other.stage == one.stage + away and 0 <= other.stage < stages


def busy_paths(training: Training, stages: int) -> WeighedPaths:
    """Return paths of plans of so many stages: for each one that is never idle from its first to its last pass."""
    last, found = training.micro_batches - 1, list[tuple[int, tuple[PathPass, ...]]]()
    for stage, warm_up in enumerate(warm_ups(training, stages)):
        there = (PathPass(one, "F", 0) for one in range(stage))
        back = (PathPass(one, "B", last) for one in reversed(range(stage)))
        found.append((1, (*there, *order_of(stage, warm_up, training.micro_batches), *back)))
    return WeighedPaths(stages, tuple(found))
