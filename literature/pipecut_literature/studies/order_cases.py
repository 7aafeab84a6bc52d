"""Small cases of unequal stages: witnesses against 1F1B, and families of cases for measurements.

*Too few in flight*: two stages, three micro-batches, transfers. 1F1B lets two micro-batches be in flight at
stage 0, so the third waits until the gradient of the first has come all the way back (16 ns); with all three
forwarded at once, which takes memory for three, a step takes 12 ns.

*Same memory*: four stages, four micro-batches, no transfers, and no rank may hold more than 1F1B lets it. In the
order of 1F1B stage 1 waits until 12 ns for its third forward pass, before its first backward pass, which could
begin at 10 ns and is slow. 1F1B takes 31 ns, the best order 30 ns. Both were found by search over small numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipecut.formulation.timeline.durations import Durations, Execution
from pipecut.formulation.timeline.measures import Footprint
from pipecut_literature.orders.problem import OrderProblem

MILLISECOND_NS = 10**6
STASH_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class OrderCase:
    """A problem with what tells it from its siblings in the family."""

    shape: str
    transfers: str
    memory: str
    problem: OrderProblem


@dataclass(frozen=True, slots=True)
class Shape:
    """Unequal stages: forward and backward times of up to four of them, in ms.

    Fewer stages are the first of them, or the last with ``from_end``.
    """

    name: str
    forward_ms: tuple[int, ...]
    backward_ms: tuple[int, ...]
    from_end: bool = False

    def stages(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return forward and backward times of so many stages, in ns."""
        kept = slice(len(self.forward_ms) - count, None) if self.from_end else slice(count)
        forward, backward = (
            tuple(time * MILLISECOND_NS for time in times[kept]) for times in (self.forward_ms, self.backward_ms)
        )
        return forward, backward


SHAPES = (
    Shape("first slow", (4, 2, 2, 2), (8, 4, 4, 4)),
    Shape("last slow", (2, 2, 2, 4), (4, 4, 4, 8), from_end=True),
    Shape("uneven", (3, 5, 2, 4), (6, 7, 5, 9)),
)
"""A large embedding, a large head, and layers that do not divide evenly."""
STAGES = (2, 3, 4)
MICRO_BATCHES = (2, 4, 8)
TRANSFERS_MS = {"none": (0, 0, 0), "short": (1, 2, 1), "long": (4, 3, 4)}
"""Time of an activation, and of a gradient, over each boundary: free, shorter than passes, as long as passes."""
NO_LIMIT, STAGE_LIMIT, DEVICE_LIMIT = "no limit", "1F1B, each stage", "1F1B, stage 0"
"""Memory: as much as one likes; on each rank what 1F1B needs there; on every rank what 1F1B needs on the first."""


def in_flight_memory(
    stages: int, micro_batches: int, memory: str
) -> tuple[Footprint | None, tuple[int, ...] | None]:
    """Return footprint and capacities for one of the three kinds of memory: min(S - s, M) stashes under 1F1B."""
    if memory == NO_LIMIT:
        return None, None
    counts = [min(stages - (stage if memory == STAGE_LIMIT else 0), micro_batches) for stage in range(stages)]
    footprint = Footprint((0,) * stages, (STASH_BYTES,) * stages)
    return footprint, tuple(count * STASH_BYTES for count in counts)


def family(*, split: bool) -> Iterator[OrderCase]:
    """Yield every combination of shape, stages, micro-batches, transfers and memory.

    Memory is limited stage by stage for whole backward passes, and to the same on all devices for split ones, as
    in ZB-H1, whose later stages hold more than those of 1F1B.
    """
    for shape in SHAPES:
        for stages in STAGES:
            forward, backward = shape.stages(stages)
            for micro_batches in MICRO_BATCHES:
                for transfers, times in TRANSFERS_MS.items():
                    each = tuple(time * MILLISECOND_NS for time in times[: stages - 1])
                    durations = Durations(forward, backward, activation_ns=each, gradient_ns=each)
                    for memory in (NO_LIMIT, DEVICE_LIMIT if split else STAGE_LIMIT):
                        problem = _problem(durations, micro_batches, split, memory)
                        yield OrderCase(shape.name, transfers, memory, problem)


def drawn(
    count: int, seed: int, stages: int, micro_batches: int, *, transfers: bool, split: bool, memory: str
) -> Iterator[OrderProblem]:
    """Yield problems with random passes of 1 to 4 ms forward, 1 to 8 ms backward, and transfers of up to 2 ms.

    Backward passes are drawn too: with recomputation, or frozen layers, they are not twice the forward passes.
    """
    chance = np.random.default_rng(seed)

    def times(number: int, least_ms: int, most_ms: int) -> tuple[int, ...]:
        return tuple(
            int(chance.integers(least_ms * MILLISECOND_NS, most_ms * MILLISECOND_NS, endpoint=True))
            for _ in range(number)
        )

    for _ in range(count):
        forward, backward = times(stages, 1, 4), times(stages, 1, 8)
        activation, gradient = (times(stages - 1, 0, 2) if transfers else () for _ in range(2))
        durations = Durations(forward, backward, activation_ns=activation, gradient_ns=gradient)
        yield _problem(durations, micro_batches, split, memory)


def _problem(durations: Durations, micro_batches: int, split: bool, memory: str) -> OrderProblem:
    stages = durations.stages
    footprint, capacity = in_flight_memory(stages, micro_batches, memory)
    return OrderProblem(durations, Execution(), micro_batches, tuple(range(stages)), split, footprint, capacity)


def too_few_in_flight() -> OrderProblem:
    """Return the witness in which 1F1B loses a third, for want of micro-batches in flight."""
    durations = Durations((2, 1), (2, 1), activation_ns=(1,), gradient_ns=(1,))
    return _problem(durations, 3, split=False, memory=NO_LIMIT)


def same_memory() -> OrderProblem:
    """Return the witness in which 1F1B loses within its own memory."""
    return _problem(Durations((4, 1, 1, 1), (1, 4, 2, 1)), 4, split=False, memory=STAGE_LIMIT)
