"""How the devices of a group share the work of a stage: equally, or in proportion to their speed.

A device does a *share* of every layer's work; a replica does the sum of its devices' shares. Equal shares let the
slowest device set the pace. Shares in proportion to peak speed let all finish together, AccPar's ratio for mixed
devices (HPCA 2020, §5; ``E_cp,i(alpha) = E_cp,j(1 - alpha)``, without the terms of communication, which would give
every layer a ratio of its own). Where devices have different shares, what the busiest one moves or holds counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

__all__ = ["equal_shares"]


@dataclass(frozen=True, slots=True)
class Shares:
    """The largest shares of a group, as parts of a whole stage.

    ``by_class``: of a device, for each of the group's classes in their order; ``replica``: of a replica. Of a
    tensor that lies by rows or columns inside a replica a device misses at most ``gather``, and moves at most
    ``turn`` to turn rows into columns; of a matrix that a replica shards it holds at most ``shard``.
    """

    by_class: tuple[Fraction, ...]
    replica: Fraction
    gather: Fraction
    turn: Fraction
    shard: Fraction

    @property
    def device(self) -> Fraction:
        """The largest share of any device."""
        return max(self.by_class)


@lru_cache(maxsize=4096)  # asked for every layer of a stage
def equal_shares(devices: int, replicas: int, classes: int = 1) -> Shares:
    """Return the shares of devices that all do the same."""
    degree = devices // replicas
    one = Fraction(1, devices)
    return Shares(
        by_class=(one,) * classes,
        replica=Fraction(1, replicas),
        gather=Fraction(degree - 1, devices),
        turn=Fraction(degree - 1, devices * degree),
        shard=Fraction(1, degree),
    )


def proportional_shares(classes: Sequence[int], speeds: Sequence[int], degree: int) -> Shares:
    """Return shares in proportion to speed. ``classes`` are those of the devices in server order.

    ``speeds`` are FLOP/s by class; a replica takes ``degree`` devices in server order.
    """
    total = sum(speeds[one] for one in classes)
    shares = [Fraction(speeds[one], total) for one in classes]
    replicas = [sum(shares[first : first + degree], Fraction(0)) for first in range(0, len(shares), degree)]
    held = [(share, replicas[at // degree]) for at, share in enumerate(shares)]
    return Shares(
        by_class=tuple(Fraction(speeds[one], total) for one in sorted(set(classes))),
        replica=max(replicas),
        gather=max(replica - share for share, replica in held),
        turn=max(share * (replica - share) / replica for share, replica in held),
        shard=max(share / replica for share, replica in held),
    )
