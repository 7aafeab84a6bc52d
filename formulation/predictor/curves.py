"""Times of a layer measured on a device, over sizes of the micro-batch and shards of its width: a curve.

A curve is the :class:`Measured` rows of a layer on one device class. Between two measured sizes a time lies on the
straight line through both; outside of them it grows and falls in proportion with the last one, and who reads the
rows says so (``ingest.graphs.layer_profile``). One row alone is a time in proportion to the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

Point = tuple[Fraction, int]
"""A size, and the time there."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Times in ns of a layer on one device of a class, for ``samples`` samples of one of ``width`` shards of it.

    ``width`` 1 is the whole layer; with ``width`` d its columns, or those of its input, are shared by d devices.
    """

    device_class: str
    samples: int
    forward_ns: int
    backward_ns: int
    width: int = 1

    def __post_init__(self) -> None:
        if min(self.samples, self.width) < 1 or min(self.forward_ns, self.backward_ns) < 0:
            raise ValueError(f"{self}: expected 1 sample and 1 shard or more, and times of 0 or more")


def at(curve: Sequence[Measured], samples: Fraction, shard: Fraction) -> tuple[Fraction, Fraction]:
    """Return the forward and the backward time in ns for so many samples of so large a part of the width.

    Cost: linear in the rows.
    """
    forward = _at([(row.samples, row.width, row.forward_ns) for row in curve], samples, shard)
    return forward, _at([(row.samples, row.width, row.backward_ns) for row in curve], samples, shard)


def least(curve: Sequence[Measured], samples: int) -> tuple[int, int]:
    """Return times for whole samples at the best measured rate, rounded down.

    A device that does the part ``s`` of a layer never takes less than ``s`` of them: on a straight line between
    two points, and in proportion beyond them, no rate is better than that of the better point.
    """
    forward = min(Fraction(row.forward_ns * row.width, row.samples) for row in curve)
    backward = min(Fraction(row.backward_ns * row.width, row.samples) for row in curve)
    return int(forward * samples), int(backward * samples)


def most(curve: Sequence[Measured], samples: int) -> tuple[int, int]:
    """Return times that no part of so many samples exceeds, the whole width or less of it."""
    times = max(1, -(-samples // min(row.samples for row in curve))) * max(row.width for row in curve)
    return max(row.forward_ns for row in curve) * times, max(row.backward_ns for row in curve) * times


def _at(rows: Sequence[tuple[int, int, int]], samples: Fraction, shard: Fraction) -> Fraction:
    by_shard: dict[Fraction, list[Point]] = {}
    for size, width, time in rows:
        by_shard.setdefault(Fraction(1, width), []).append((Fraction(size), time))
    return _on_line(
        [(part, _on_line(sorted(points), samples)) for part, points in sorted(by_shard.items())], shard
    )


def _on_line(points: Sequence[tuple[Fraction, Fraction | int]], size: Fraction) -> Fraction:
    """Return the time of a size by points in order of their sizes."""
    behind = next((index for index, point in enumerate(points) if point[0] >= size), None)
    if behind is None or behind == 0:
        nearest, time = points[-1 if behind is None else 0]
        return time * size / nearest
    (low, before), (high, after) = points[behind - 1], points[behind]
    return before + (after - before) * (size - low) / (high - low)
