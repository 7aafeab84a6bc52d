"""How often stages keep what they hold: versions of weights, micro-batches in flight and between two halves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.schedules.catalogue import in_chunks
from pipecut.formulation.schedules.table import peak_in_flight

KNOWN = 256
"""Orders of which it is remembered what they keep: of every number of stages."""


@dataclass(frozen=True, slots=True)
class Keeps:
    """How often a stage keeps a part: the versions of its weights, and its micro-batches in flight.

    ``again``: of how many micro-batches it has what it computed again, and with backward passes in halves the
    gradients of outputs: of those whose first half has begun and whose second is not done.
    """

    versions: int
    in_flight: int
    again: int = 1

    @staticmethod
    def of(training: Training, stage: int, stages: int) -> Keeps:
        """Return how often a stage keeps its weights and its micro-batches (stage counted from 0)."""
        # Without a flush one copy per micro-batch in flight, or two: PipeDream-2BW (arXiv 2006.09503, §3.1), whose
        # last stage would do with one and keeps two all the same.
        versions = {Schedule.DOUBLE_BUFFERED: 2, Schedule.ASYNC_ONE_F_ONE_B: stages - stage}
        return Keeps(
            versions=versions.get(training.schedule, 1),
            in_flight=in_flight(training, stage, stages),
            again=min(stage + 1, training.micro_batches) if training.schedule.in_halves else 1,
        )

    @staticmethod
    def in_slot(training: Training, slot: int, stages: int | None = None) -> Keeps:
        """Return the same by the number of stages that come after it, which alone decides without halves.

        With them the number of all stages decides too; where that is not known, it is the least of any number.
        """
        if stages is None or not training.schedule.in_halves:
            return Keeps.of(training, 0, slot + 1)
        return Keeps.of(training, max(0, stages - 1 - slot), stages)


def in_flight(training: Training, stage: int, stages: int) -> int:
    """Micro-batches forwarded but not yet backwarded at a stage, at worst (stage counted from 0).

    GPipe: all of a step. 1F1B with a flush: the forward passes before the first backward one, min(S - s, M) if
    nothing else is said. ZB-H1, until the gradient of the weights: min(S, M) at every stage
    (``formulation.schedules.zero_bubble_h1``). Without a flush there is no M to bound it: S - s (PipeDream, weight
    stashing; one replica per stage); as in a V, whose groups are counted whole elsewhere. Of others what the order
    says, which is to follow from the stages behind.
    """
    if training.schedule is Schedule.NAIVE:
        return 1
    if training.schedule is Schedule.GPIPE:
        return training.micro_batches
    if training.schedule is Schedule.ZERO_BUBBLE_H1:
        return min(stages, training.micro_batches)
    if training.schedule is Schedule.ONE_F_ONE_B:
        return training.warm_up_in(stages - stage - 1)
    if not training.schedule.flushes or training.schedule.in_a_v:
        return stages - stage
    return _kept_in_order(training.schedule, stages, training.micro_batches)[stage]


@lru_cache(maxsize=KNOWN)
def _kept_in_order(schedule: Schedule, stages: int, micro_batches: int) -> tuple[int, ...]:
    """Return the same by stage of any order of passes: those forward that are not done with, at worst."""
    return tuple(peak_in_flight(in_chunks(schedule, stages, 1, micro_batches)))
