"""Variants of an instance: one thing changed, everything else as it is.

What is varied: how many servers of a kind there are, the bandwidth of links between and inside servers, the memory
of devices (all, and of each limit by itself), the number of micro-batches, and the class of the devices. A variant
that cannot be made (a constraint names the server that is left out, no time was measured on the device) says why.

Clusters with one thing changed: a server more or fewer, other bandwidths, other devices.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pipecut.formulation.costs.amounts import counted
from pipecut.formulation.problem.cluster import Cluster, DeviceClass, Server, Wiring
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.units import Link, slowest


def kinds(cluster: Cluster) -> list[list[Server]]:
    """Return the servers by kind: those with equal devices, as many of them, and equal links and adapters."""
    found: dict[tuple[DeviceClass, int, Link | None, int], list[Server]] = {}
    for server in cluster.servers:
        found.setdefault((server.device_class, server.devices, server.link, server.adapters), []).append(server)
    return list(found.values())


def without(cluster: Cluster, name: str) -> Cluster:
    """Return a cluster without a server. Raises ValueError where others could then not reach each other."""
    servers = tuple(server for server in cluster.servers if server.name != name)
    drawn = tuple(row for row in cluster.wiring.drawn if name not in row[:2])
    return _of(cluster, servers, drawn, cluster.wiring.mesh)


def with_another(cluster: Cluster, name: str) -> Cluster:
    """Return a cluster with a server more, behind the one that it is like, and joined as that one is.

    Where servers are joined to one another and not to a switch, the two of them are joined by the slowest link
    that the one has. Raises ValueError where it has none: there is nothing to join them by.
    """
    at = next(index for index, server in enumerate(cluster.servers) if server.name == name)
    names = {*cluster.wiring.names, *cluster.wiring.switches}
    copy = replace(cluster.servers[at], name=_new_name(name, names))
    own = [row for row in cluster.wiring.drawn if name in row[:2]]
    more = [tuple(copy.name if end == name else end for end in row[:2]) for row in own]
    drawn = [*cluster.wiring.drawn, *((one, other, row[2]) for (one, other), row in zip(more, own, strict=True))]
    by_switch = any(end in cluster.wiring.switches for row in own for end in row[:2])
    if not by_switch and cluster.wiring.mesh is None:
        if not own:
            raise ValueError("no link between servers is known; give cluster.between_servers")
        drawn.append((name, copy.name, slowest(tuple(row[2] for row in own))))
    servers = (*cluster.servers[: at + 1], copy, *cluster.servers[at + 1 :])
    return _of(cluster, servers, tuple(drawn), cluster.wiring.mesh)


def with_bandwidth(cluster: Cluster, up: int, down: int, *, inside: bool) -> Cluster:
    """Return a cluster whose links inside servers, or else between them, have ``up / down`` of their bandwidth."""

    def scaled(link: Link) -> Link:
        return replace(link, bits_per_second=max(1, link.bits_per_second * up // down))

    if not inside:
        drawn = tuple((one, other, scaled(link)) for one, other, link in cluster.wiring.drawn)
        mesh = cluster.wiring.mesh
        return _of(cluster, cluster.servers, drawn, None if mesh is None else scaled(mesh))
    servers = (
        server if server.link is None else replace(server, link=scaled(server.link)) for server in cluster.servers
    )
    return _of(cluster, tuple(servers), cluster.wiring.drawn, cluster.wiring.mesh)


def with_classes(cluster: Cluster, device_class: Callable[[Server], DeviceClass]) -> Cluster:
    """Return a cluster whose servers have the devices that a function says."""
    servers = tuple(replace(server, device_class=device_class(server)) for server in cluster.servers)
    return _of(cluster, servers, cluster.wiring.drawn, cluster.wiring.mesh)


def _of(
    cluster: Cluster,
    servers: tuple[Server, ...],
    drawn: tuple[tuple[str, str, Link], ...],
    mesh: Link | None,
) -> Cluster:
    names = tuple(server.name for server in servers)
    return Cluster(cluster.name, servers, Wiring(names, cluster.wiring.switches, drawn, mesh))


def _new_name(name: str, taken: set[str]) -> str:
    number = 2
    while (found := f"{name}-{number}") in taken:
        number += 1
    return found


BASE = "as it is"
"""The key of the instance itself."""
FACTORS = ((6, 5, "+ 20 %"), (4, 5, "- 20 %"))
"""What the memory of devices is varied by."""
TIMES = ((2, 1, "x 2"), (1, 2, "/ 2"))
"""What bandwidths are varied by."""
NEAREST = 2
"""How many smaller and how many larger numbers of micro-batches are asked about."""
MOST_LIMITS = 16
"""Of more servers than this, memory is varied by device class only."""


class ChangeKind(enum.StrEnum):
    """What a variant changes; the order is the one in which variants are asked about."""

    MEMORY = "memory"
    SERVERS = "servers"
    LINKS = "links"
    MICRO_BATCHES = "micro_batches"
    DEVICES = "devices"


@dataclass(frozen=True, slots=True)
class ChangedInstance:
    """An instance with one change. ``what`` says which; it is the key of the variant too.

    ``instance`` is None where the change cannot be made, and ``reason`` says why. ``wider`` names variants whose
    plans are all those of this one and more, at the same values: what differs is a limit, and no price.
    """

    kind: ChangeKind | None
    what: str
    instance: Instance | None
    wider: tuple[str, ...] = ()
    reason: str = ""

    @staticmethod
    def variants(instance: Instance, classes: Sequence[DeviceClass] = ()) -> tuple[ChangedInstance, ...]:
        """Return the variants of an instance, in the order in which they are worth asking.

        ``classes`` are devices that each class of the cluster is replaced by, one after another.
        Cost: an instance is built for each variant.
        """
        more = (*_links(instance), *_micro_batches(instance), *_devices(instance, classes))
        return (*_memory(instance), *_servers(instance), *more)


def base_variant(instance: Instance) -> ChangedInstance:
    """Return the instance itself as a variant, which nothing is changed in."""
    return ChangedInstance(None, BASE, instance)


def _made(kind: ChangeKind, what: str, make: Callable[[], Instance], wider: Iterable[str] = ()) -> ChangedInstance:
    try:
        return ChangedInstance(kind, what, make(), tuple(wider))
    except ValueError as error:
        return ChangedInstance(kind, what, None, reason=str(error))


def _memory(instance: Instance) -> Iterator[ChangedInstance]:
    kind, limited = ChangeKind.MEMORY, instance.constraints.memory

    def holding(memory: bool) -> Callable[[], Instance]:
        return lambda: replace(instance, constraints=replace(instance.constraints, memory=memory))

    if not limited:
        yield _made(kind, "memory limited to what devices have", holding(True), (BASE,))
        return
    lifted = "memory without limit"
    yield _made(kind, lifted, holding(False))
    more = f"memory of all devices {FACTORS[0][2]}"
    for up, down, words in FACTORS:
        wider = (lifted,) if up > down else (BASE, lifted)
        yield _made(kind, f"memory of all devices {words}", _scaled(instance, None, up, down), wider)
    limits = _limits(instance)
    for name, servers in limits.items() if len(limits) > 1 else ():
        up, down, words = FACTORS[0]
        yield _made(kind, f"memory of {name} {words}", _scaled(instance, servers, up, down), (more, lifted))


def _limits(instance: Instance) -> dict[str, frozenset[str]]:
    """Return the servers that share a limit of memory, by what the limit is called: each server, or each class."""
    servers = instance.cluster.servers
    if len(servers) <= MOST_LIMITS:
        return {server.name: frozenset({server.name}) for server in servers}
    names = dict.fromkeys(server.device_class.name for server in servers)
    return {
        name: frozenset(server.name for server in servers if server.device_class.name == name) for name in names
    }


def _scaled(instance: Instance, names: frozenset[str] | None, up: int, down: int) -> Callable[[], Instance]:
    def scaled(server: Server) -> DeviceClass:
        device = server.device_class
        if names is not None and server.name not in names:
            return device
        return replace(device, memory_bytes=max(1, device.memory_bytes * up // down))

    return lambda: _on(instance, with_classes(instance.cluster, scaled))


def _on(instance: Instance, cluster: Cluster) -> Instance:
    return replace(instance, cluster=cluster)


def _servers(instance: Instance) -> Iterator[ChangedInstance]:
    cluster = instance.cluster
    for alike in kinds(cluster):
        last = alike[-1]
        devices = f"{last.devices} x {last.device_class.name}"
        if len(cluster.servers) > 1:
            yield _made(
                ChangeKind.SERVERS,
                f"one server fewer, without {last.name} ({devices})",
                lambda last=last: _on(_reserving(instance, last.name, ()), without(cluster, last.name)),
            )
        yield _made(
            ChangeKind.SERVERS,
            f"one server more, like {last.name} ({devices})",
            lambda last=last: _with_another(instance, last.name),
        )


def _with_another(instance: Instance, name: str) -> Instance:
    """Return the instance with a server more that is like one, and of whose memory as much is reserved."""
    cluster = with_another(instance.cluster, name)
    before = {server.name for server in instance.cluster.servers}
    names = (name, *(server.name for server in cluster.servers if server.name not in before))
    found = replace(instance, cluster=cluster)
    return _reserving(found, name, names)


def _reserving(instance: Instance, name: str, names: Iterable[str]) -> Instance:
    """Return the instance with what is reserved on a server reserved on each of these instead.

    That is a property of the server, which goes and comes with it; and nobody may have written its name, where a
    scenario says the same of several servers.
    """
    reserve = instance.constraints.reserve
    rows = (
        replace(row, server=one) for row in reserve for one in (names if row.server == name else (row.server,))
    )
    return replace(instance, constraints=replace(instance.constraints, reserve=tuple(rows)))


def _links(instance: Instance) -> Iterator[ChangedInstance]:
    cluster = instance.cluster
    for name, inside, some in (
        ("between servers", False, len(cluster.servers) > 1),
        ("inside servers", True, any(server.link is not None for server in cluster.servers)),
    ):
        for up, down, words in TIMES if some else ():
            yield _made(
                ChangeKind.LINKS,
                f"links {name} {words}",
                lambda up=up, down=down, inside=inside: _on(
                    instance, with_bandwidth(cluster, up, down, inside=inside)
                ),
            )


def _micro_batches(instance: Instance) -> Iterator[ChangedInstance]:
    training = instance.training
    batch, used = training.global_batch, training.micro_batches
    small = [number for number in range(1, math.isqrt(batch) + 1) if batch % number == 0]
    numbers = sorted({*small, *(batch // number for number in small)})
    smaller = [number for number in numbers if number < used][-NEAREST:]
    larger = [number for number in numbers if number > used][:NEAREST]
    for number in (*larger, *smaller):
        changed = replace(training, micro_batches=number, micro_batch_choices=())
        yield _made(
            ChangeKind.MICRO_BATCHES,
            f"{counted(number, 'micro-batch')} of {batch // number}",
            lambda changed=changed: replace(instance, training=changed),
        )


def _devices(instance: Instance, classes: Sequence[DeviceClass]) -> Iterator[ChangedInstance]:
    present = dict.fromkeys(server.device_class.name for server in instance.cluster.servers)
    for name in present:
        for other in classes:
            if other.name == name:
                continue

            def put(server: Server, name: str = name, other: DeviceClass = other) -> DeviceClass:
                return other if server.device_class.name == name else server.device_class

            yield _made(
                ChangeKind.DEVICES,
                f"{other.name} in place of {name}",
                lambda put=put: _on(instance, with_classes(instance.cluster, put)),
            )
