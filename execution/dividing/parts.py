"""How a tensor lies on the devices of a replica: whole on each, or a part of one of its dimensions on each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

ROWS, WHOLE, COLUMNS = "rows", "whole", "columns"
"""How a tensor lies, in the words of ``formulation.costs.forms``."""

Indices = range | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Portion:
    """Each device has some indices of a dimension: ``held[i]`` device i, all of them together every index once."""

    dimension: int
    held: tuple[Indices, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Columns of a tensor divided: in a dimension, index i is of column ``(i // minor) % count``.

    ``owners`` says for each of the ``count`` columns which device has it. ``source`` is the node that began to be
    divided so.
    """

    dimension: int
    minor: int
    owners: tuple[int, ...]
    source: str = field(default="", compare=False)

    @property
    def columns(self) -> tuple[int, int, int]:
        """Dimension, minor and count."""
        return self.dimension, self.minor, len(self.owners)

    def part(self, length: int, devices: int) -> Portion:
        """Return what each device has of a tensor whose dimension is so long."""
        held: list[list[int]] = [[] for _ in range(devices)]
        for index in range(length):
            held[self.owners[index // self.minor % len(self.owners)]].append(index)
        return Portion(self.dimension, tuple(map(shortened, held)))


def shortened(indices: Sequence[int]) -> Indices:
    """Return indices in order as a range where they have no gap."""
    if not indices:
        return range(0)
    run = range(indices[0], indices[-1] + 1)
    return run if len(run) == len(indices) else tuple(indices)


def bounds(many: int, shares: Sequence[int]) -> tuple[range, ...]:
    """Divide ``many`` in order in proportion to shares, rounded down; equal shares give i * many // n."""
    ends = [many * one // sum(shares) for one in itertools.accumulate(shares, initial=0)]
    return tuple(range(first, stop) for first, stop in itertools.pairwise(ends))


def dealt(count: int, shares: Sequence[int], pieces: int, unit: int) -> tuple[int, ...] | None:
    """Deal columns to devices: of each of so many equal pieces every device gets whole units, in order.

    None where that leaves a device without any, or does not go up.
    """
    if count % (pieces * unit):
        return None
    one = bounds(count // (pieces * unit), shares)
    if any(not mine for mine in one):
        return None
    owners = [device for device, mine in enumerate(one) for _ in range(len(mine) * unit)]
    return tuple(owners * pieces)
