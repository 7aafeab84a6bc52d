"""How the devices of a group share a stage: work, what they hold alike, adapters, and which servers are alike.

Work is shared equally or in proportion to speed.

A device does a *share* of every layer's work; a replica does the sum of its devices' shares. Equal shares let the
slowest device set the pace. Shares in proportion to peak speed let all finish together, AccPar's ratio for mixed
devices (HPCA 2020, §5; ``E_cp,i(alpha) = E_cp,j(1 - alpha)``, without the terms of communication, which would give
every layer a ratio of its own). Where devices have different shares, what the busiest one moves or holds counts.

Samples stay whole: of ``m`` samples the fullest of ``n`` devices has ``ceil(m / n)``; others wait for it, and may
have none at all. A layer that is split by columns has all samples of its replica on each device. Rows that may be
parts of a sequence are divided evenly inside a replica; replicas have whole samples.

A server may have *adapters*: so many transfers to other servers at once have the whole bandwidth of the link. Its
devices share them evenly, so of ``n`` devices that share ``k`` adapters ``c`` have ``c k / n``, rounded down, and
one at least. A server that names none has one link, which every transfer has to itself.

* *Boundary*: every device of a stage sends the part of the rows that it works on, whatever replica it is in. The
  stage has as many *lanes* as let its slowest server finish: adapters over part of the rows, the least of all
  servers, rounded down. Both stages move all rows, so the one with fewer lanes sets the pace. Inside a server as
  many of its links are used: no stage has more lanes than devices.
* *Sum*: devices that hold the same part of the weights form a ring, and rings share the adapters of every server
  that they pass.

Everything is whole: bandwidths are rounded down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import floor
from typing import TYPE_CHECKING

from pipecut.formulation.problem.units import Link, ceil_div, ceil_fraction, slowest_of

if TYPE_CHECKING:
    from pipecut.formulation.problem.instance import Instance


@dataclass(frozen=True, slots=True)
class Divided:
    """The largest parts that devices have of what is divided inside replicas, as parts of a whole stage.

    ``by_class``: of a device, for each of the group's classes in their order. Of a tensor that lies so a device
    misses at most ``gather``, and moves at most ``turn`` to have it divided in another way.
    """

    by_class: tuple[Fraction, ...]
    gather: Fraction
    turn: Fraction

    @property
    def device(self) -> Fraction:
        """The largest part of any device."""
        return max(self.by_class)


@dataclass(frozen=True, slots=True)
class Shares:
    """The largest shares of a group: of what lies by ``rows``, of what is divided otherwise, of a ``replica``.

    Of a matrix that a replica shards a device holds at most ``shard``. ``samples`` are those of the fullest
    replica where its devices have whole ones; 0 where rows can be divided evenly.
    """

    rows: Divided
    columns: Divided
    replica: Fraction
    shard: Fraction
    samples: int = 0

    def __hash__(self) -> int:
        """Return a number by whole numbers alone: those of fractions take most of the time of tables."""
        return hash((self.shard.denominator, *self.replica.as_integer_ratio(), self.samples))

    def of(self, layout: str) -> Divided:
        """Return the parts of devices of what lies so (``formulation.costs.forms``)."""
        return self.rows if layout == "rows" else self.columns


@lru_cache(maxsize=4096)  # asked for every layer of a stage
def equal_shares(devices: int, replicas: int, classes: int = 1, samples: int = 0, *, rows: bool = True) -> Shares:
    """Return the shares of devices that all do the same.

    Of so many whole ``samples`` (0: in fractions); with ``rows`` each device, else each replica has whole ones.
    """
    degree = devices // replicas
    own = ceil_div(samples, replicas)
    replica, shard = Fraction(own, samples) if samples else Fraction(1, replicas), Fraction(1, degree)
    columns = Divided((replica * shard,) * classes, replica * (1 - shard), replica * shard * (1 - shard))
    if not (samples and rows):
        return Shares(columns, columns, replica, shard)
    most, least = Fraction(ceil_div(own, degree), samples), Fraction(own // degree, samples)
    return Shares(
        Divided((most,) * classes, replica - least, most * (1 - shard)), columns, replica, shard, samples=own
    )


def proportional_shares(
    classes: Sequence[int], speeds: Sequence[int], degree: int, samples: int = 0, *, rows: bool = True
) -> Shares:
    """Return shares in proportion to speed. ``classes`` are those of the devices in server order.

    ``speeds`` are FLOP/s by class; a replica takes ``degree`` devices in server order. ``samples`` and ``rows``
    are those of :func:`equal_shares`: a replica has its share of the samples at most rounded up, and so has a
    device of those of its replica.
    """
    total = sum(speeds[one] for one in classes)
    shares = [Fraction(speeds[one], total) for one in classes]
    sums = [sum(shares[first : first + degree], Fraction(0)) for first in range(0, len(shares), degree)]
    own = [Fraction(ceil_fraction(samples * one), samples) if samples else one for one in sums]
    held = [(share / sums[at // degree], own[at // degree]) for at, share in enumerate(shares)]
    columns = _divided(classes, [(part * replica, part * replica, part, replica) for part, replica in held])
    replica, shard = max(own), max(part for part, _ in held)
    if not (samples and rows):
        return Shares(columns, columns, replica, shard)
    most = [Fraction(ceil_fraction(samples * part * replica), samples) for part, replica in held]
    least = [Fraction(floor(samples * part * replica), samples) for part, replica in held]
    by_rows = [(*ends, *one) for ends, one in zip(zip(most, least, strict=True), held, strict=True)]
    return Shares(_divided(classes, by_rows), columns, replica, shard, samples=int(samples * replica))


def _divided(classes: Sequence[int], held: Sequence[tuple[Fraction, Fraction, Fraction, Fraction]]) -> Divided:
    """Return the largest parts of devices of these classes.

    Each has from most to least of a stage, a part of its replica's, and there is so much of its replica.
    """
    return Divided(
        tuple(
            max(most for one, (most, *_) in zip(classes, held, strict=True) if one == kind)
            for kind in sorted(set(classes))
        ),
        gather=max(replica - least for _, least, _, replica in held),
        turn=max(most * (1 - part) for most, _, part, _ in held),
    )


Counts = tuple[tuple[int, int], ...]
"""Pairs (server, how many of its devices), by server."""
ONE, KEPT = Fraction(1), 4096


def lanes(instance: Instance, counts: Counts) -> int:
    """Return how many adapters a stage on these devices has at a boundary; 1 where a server names none."""
    servers = instance.servers
    if not all(servers[server].adapters for server, _ in counts):
        return 1
    weights = {server: count * _weight(instance, server) for server, count in counts}
    total = sum(weights.values())
    return min(servers[server].lanes(count) * total // weights[server] for server, count in counts)


def _weight(instance: Instance, server: int) -> int:
    """Return a number in proportion to the rows of one device of a server."""
    return 1 if instance.cost.sharing == "equal" else instance.servers[server].device_class.flops_per_second


def joined(instance: Instance, one: Counts, other: Counts, number: int | None = None) -> Link | None:
    """Return the slowest link between two stages, as wide as their lanes (or this number) make it.

    None if both are the only device of a server.
    """
    (some, _), (others, _), known = zip(*one, strict=True), zip(*other, strict=True), instance.cluster.crossed
    if (some, others) not in known:
        if len(known) >= KEPT:  # where stages stand anywhere there may be millions of pairs
            known.clear()
        # Many pairs have one and the same link.
        found = {id(link): link for a in some for link in map(instance.links[a].__getitem__, others)}
        known[some, others] = slowest_of(found.values())
    number = min(lanes(instance, one), lanes(instance, other)) if number is None else number
    return (link := known[some, others]) and link.times(number)


def ring_link(instance: Instance, counts: Counts, degree: int) -> Link | None:
    """Return the slowest link of the rings in which replicas of ``degree`` devices sum; None for one device.

    A server is passed by one ring for each device of a replica that it has.
    """
    return _among(instance, counts, lambda server, count: _part(instance, server, count, min(degree, count)))


def replica_link(instance: Instance, servers: tuple[int, ...], degree: int, grid: int = 1) -> Link | None:
    """Return the slowest link inside any replica, which takes ``degree`` devices in server order.

    Replicas that lie in several servers share the adapters of these. In rows of ``grid`` neighbours, the slowest
    link among those that have the same place in all rows of a replica, each such ring by itself.
    """
    replicas = [
        servers[first + at : first + degree : grid]
        for first in range(0, len(servers), degree)
        for at in range(grid)
    ]
    rings = Counter(server for row in replicas if len(set(row)) > 1 for server in set(row))
    own = Counter(servers)

    def part(server: int, _: int) -> Fraction:
        return _part(instance, server, own[server], rings[server])

    counted = (tuple((one, row.count(one)) for one in dict.fromkeys(row)) for row in set(replicas))
    return slowest_of(_among(instance, counts, part) for counts in counted)


def _part(instance: Instance, server: int, count: int, rings: int) -> Fraction:
    """Return how much of an adapter each of so many rings has, of those that ``count`` devices have."""
    one = instance.servers[server]
    return Fraction(one.lanes(count), rings) if one.adapters else ONE


def _among(instance: Instance, counts: Counts, part: Callable[[int, int], Fraction]) -> Link | None:
    """Return the slowest link between any two of these devices."""
    links, parts = instance.links, [part(*row) for row in counts] if len(counts) > 1 else [ONE]
    found, different = {links[server][server] for server, count in counts if count > 1}, sorted(set(parts))
    rows = [(server, different.index(one)) for (server, _), one in zip(counts, parts, strict=True)]
    between = {(links[a][b], min(x, y)) for at, (a, x) in enumerate(rows) for b, y in rows[at + 1 :]}
    for link, least in between:
        share = different[least]
        found.add(link if link is None or share == 1 else link.times(*share.as_integer_ratio()))
    return slowest_of(found)


def same_servers(instance: Instance) -> list[list[int]]:
    """Return the servers by classes of those with the same devices and the same links to all others.

    Cost: O(servers) under a mesh with no other link, else O(servers**2) for each class.
    """
    classes: list[list[int]] = []
    wiring = instance.cluster.wiring
    if wiring.mesh is not None and not wiring.drawn:
        rows: dict[object, list[int]] = {}
        for at, server in enumerate(instance.servers):
            rows.setdefault((server.device_class, server.devices, server.link, server.adapters), []).append(at)
        return list(rows.values())
    for server in range(len(instance.servers)):
        known = next((row for row in classes if _same(instance, row[0], server)), None)
        if known is None:
            classes.append([server])
        else:
            known.append(server)
    return classes


def _same(instance: Instance, one: int, other: int) -> bool:
    a, b, links = instance.servers[one], instance.servers[other], instance.links
    return (
        (a.device_class, a.devices, a.adapters, links[one][one])
        == (b.device_class, b.devices, b.adapters, links[other][other])
        and links[one][other] == links[other][one]
        and all(
            links[one][third] == links[other][third] and links[third][one] == links[third][other]
            for third in range(len(instance.servers))
            if third not in (one, other)
        )
    )


def server_classes(instance: Instance) -> tuple[int, ...]:
    """Return the number of its class (:func:`same_servers`) for every server."""
    of_server = {server: number for number, row in enumerate(same_servers(instance)) for server in row}
    return tuple(of_server[server] for server in range(len(instance.servers)))
