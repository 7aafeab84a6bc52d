"""Clusters with one thing changed: a server more or fewer, other bandwidths, other devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from formulation.problem.cluster import Cluster, DeviceClass, Server, Wiring
from formulation.problem.units import Link, slowest


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
