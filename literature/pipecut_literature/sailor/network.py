"""Messages and all-reduces over links of which only the bandwidth by message size was measured.

A fit tells the bandwidth of all cards of a node together, by the size of the message of each (four cards of GH-96
reach four times the bandwidth of one, those of RTX-3090 that of one: they share the way out). It is a parabola in
the logarithm of the size and holds only where it was measured, so it is read with two limits: beyond its vertex a
larger message is as fast as the vertex, and a message below 1 MB takes the time of 1 MB, latency more than data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from pipecut.formulation.problem.units import NS_PER_SECOND, ceil_div, ceil_fraction
from pipecut_literature.sailor.profile import NotProfiledError
from pipecut_literature.sailor.run import BYTES_PER_MB, LinkFit, SailorLinks, SailorReplica

BUCKET_BYTES = 4 * 500_000_000
"""DeepSpeed's bucket of an all-reduce: 500,000,000 fp32 elements (``MEMORY_OPT_ALLREDUCE_SIZE``)."""
LARGEST_MESSAGE = 10**15


@dataclass(frozen=True, slots=True)
class NodeLink:
    """The way out of a node that ``cards`` cards use at the same time, each with a message of its own."""

    fit: LinkFit
    cards: int

    def message_ns(self, message_bytes: int) -> int:
        """Return the ns until the messages of all cards, of so many bytes each, are through. Nothing costs 0.

        Raises NotProfiledError where the fit gives no bandwidth.
        """
        if message_bytes == 0:
            return 0
        least = max(message_bytes, int(BYTES_PER_MB))
        try:
            rate = self.fit.bytes_per_second(self._within(least))
        except ValueError as error:
            raise NotProfiledError(f"bandwidth between nodes: {error}") from error
        seconds = Fraction(self.cards * least) / Fraction(rate)
        return ceil_fraction(seconds * NS_PER_SECOND)

    def _within(self, message_bytes: int) -> int:
        """Return the size at which the fit is read: its vertex, for messages beyond the vertex of a peak."""
        if self.fit.c2 >= 0:
            return min(message_bytes, LARGEST_MESSAGE)
        vertex = BYTES_PER_MB * 2 ** min(40.0, -self.fit.c1 / (2 * self.fit.c2))
        return min(message_bytes, max(int(BYTES_PER_MB), math.ceil(vertex)))


def links_out(links: SailorLinks, replica: SailorReplica, cards: int | None = None) -> list[NodeLink]:
    """Return the way out of each kind of node of a replica, for all its cards in a node or for so many of them.

    Raises NotProfiledError for a card without a fit.
    """
    at_once = replica.cards_per_node if cards is None else cards
    found = []
    for kind in replica.kinds:
        counts = sorted(count for card, count in links.inter if card == kind)
        if not counts:
            raise NotProfiledError(f"card {kind}: no fit of the bandwidth between nodes")
        used = max((count for count in counts if count <= at_once), default=counts[0])
        found.append(NodeLink(links.inter[kind, used], used))
    return found


def send_ns(links: SailorLinks, one: SailorReplica, other: SailorReplica, message_bytes: int) -> int:
    """Return the ns to send a boundary tensor from a replica to one of the next stage: the slower end's.

    The whole tensor passes at the rate of a single card: the cards of a tensor-parallel group do not carry it
    faster together. This is read off the runs on GH-96: as if four cards carried a quarter each at the same time,
    every run with several stages would come out too short (docs/studies/sailor.md, the terms).
    """
    ways = [*links_out(links, one, 1), *links_out(links, other, 1)]
    return max(way.message_ns(message_bytes) for way in ways)


def all_reduce_ns(links: SailorLinks, members: Mapping[SailorReplica, tuple[int, int]]) -> int:
    """Return the ns of a ring all-reduce among replicas on nodes of their own, bucket by bucket.

    ``members``: how many replicas of a kind there are, and the bytes of the gradients on one of its cards.
    2 (n - 1) steps, each moving 1/n of the bucket over every link, at the pace of the slowest (Patarasuk and Yuan,
    2009). Every card of a replica is in a ring of its own, and all these rings share the way out. Replicas of
    unlike degrees exchange the same gradients, in shares of unlike size.
    """
    count = sum(number for number, _ in members.values())
    if count < 2:
        return 0
    times = [
        2 * (count - 1) * sum(way.message_ns(ceil_div(bucket, count)) for bucket in _buckets(own))
        for one, (_, own) in members.items()
        for way in links_out(links, one)
    ]
    return max(times)


def _buckets(reduced_bytes: int) -> list[int]:
    full, rest = divmod(reduced_bytes, BUCKET_BYTES)
    return [BUCKET_BYTES] * full + [rest]
