"""The period of 1F1B without a flush as executed: exact, with the synchronisation of weights.

Pair k of stage s is forward pass k + w_s and then backward pass k, with w_s the stages behind it. Far from the
start every pair comes one period after the one before it, on average: the *maximum cycle mean* of what waits for
what (Baccelli et al., Synchronization and Linearity, 1992). The recursion from pair to pair is run as often as it
has places, and Karp's formula read off (Karp, Discrete Mathematics 23, 1978), in whole numbers.

Weights are updated after every M micro-batches. A synchronisation that is charged keeps its device from the next
pass. One that is overlapped runs beside them, and the stage waits for it only where it takes longer than the next
M micro-batches: then it alone sets the pace of its stage.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from formulation.executed.pipeline import PipelinePasses


def period_ns(passes: PipelinePasses, micro_batches: int, *, overlapped: bool) -> int:
    """Return the period of a micro-batch in ns, rounded up to a whole one.

    ``micro_batches`` is how many lie between two updates of the weights; ``overlapped``: their synchronisation
    hides behind other work. Cost: O(stages**2), times the micro-batches where a synchronisation is charged.
    """
    return ceil(exact_period_ns(passes, micro_batches, overlapped=overlapped))


def exact_period_ns(passes: PipelinePasses, micro_batches: int, *, overlapped: bool) -> Fraction:
    """Return the same to the last fraction of a nanosecond."""
    if overlapped:
        alone = Fraction(max(passes.sync_ns), micro_batches)
        return max(alone, _cycle_mean(passes, (0,) * passes.stages, 1))
    return _cycle_mean(passes, passes.sync_ns, micro_batches if any(passes.sync_ns) else 1)


def _cycle_mean(passes: PipelinePasses, sync_ns: tuple[int, ...], micro_batches: int) -> Fraction:
    """Return the maximum cycle mean of rounds of so many pairs, for each pair."""
    places = 2 * passes.stages
    rows = [[0] * places]
    for _ in range(places):
        rows.append(_round(passes, sync_ns, micro_batches, rows[-1]))
    ways = zip(*rows, strict=True)
    means = (min(Fraction(way[-1] - way[at], places - at) for at in range(places)) for way in ways)
    return max(means) / micro_batches


def _round(passes: PipelinePasses, sync_ns: tuple[int, ...], micro_batches: int, before: list[int]) -> list[int]:
    """Return when forward passes end and when devices are free after one more round, two places a stage."""
    forward, free = before[: passes.stages], before[passes.stages :]
    for _ in range(micro_batches):
        arrived = [0, *map(sum, zip(forward, passes.activation_ns, strict=False))]
        arrived[0] = free[0]
        forward = [max(ways) + own for *ways, own in zip(free, arrived, passes.forward_ns, strict=True)]
        back = 0
        free = [0] * passes.stages
        for stage in reversed(range(passes.stages)):
            free[stage] = max(forward[stage], back) + passes.backward_ns[stage]
            back = free[stage] + (passes.gradient_ns[stage - 1] if stage else 0)
    return forward + [one + sync for one, sync in zip(free, sync_ns, strict=True)]
