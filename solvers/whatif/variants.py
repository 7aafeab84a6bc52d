"""Variants of an instance: one thing changed, everything else as it is.

What is varied: how many servers of a kind there are, the bandwidth of links between and inside servers, the memory
of devices (all, and of each limit by itself), the number of micro-batches, and the class of the devices. A variant
that cannot be made (a constraint names the server that is left out, no time was measured on the device) says why.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from formulation.problem.cluster import Cluster, DeviceClass, Server
from formulation.problem.instance import Instance
from solvers.whatif.clusters import kinds, with_another, with_bandwidth, with_classes, without

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
        return tuple(
            one
            for found in (
                _memory(instance),
                _servers(instance),
                _links(instance),
                _micro_batches(instance),
                _devices(instance, classes),
            )
            for one in found
        )


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
        many = "1 micro-batch" if number == 1 else f"{number} micro-batches"
        yield _made(
            ChangeKind.MICRO_BATCHES,
            f"{many} of {batch // number}",
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
