"""HetPipe's throughput from its partitions: a virtual worker, waves of minibatches, parameter servers, Horovod.

A virtual worker with N_m minibatches in flight finishes one every ``tau = max(slowest device, way of one minibatch
through all devices / N_m)``. After a wave of N_m it pushes its update and pulls the weights of all; that takes
``sync``. Wave synchronous parallelism lets it go on meanwhile: minibatch p may start once the updates of
minibatches 1 .. p - (s_global + 1) of all virtual workers are in, so the minibatch (D + 2) N_m - 1 after the end
of a wave has to wait for that wave's pull, and takes another N_m tau to come out: the last but one of its wave,
unless N_m = 1, where it is the end of the wave before. Hence one wave takes

    max( N_m tau , (sync + (N_m + 1) tau) / (D + 2) ), with N_m = 1: max( tau , (sync + tau) / (D + 1) )

and no virtual worker is faster than the slowest in the long run, whatever D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from pipecut.formulation.problem.cluster import DeviceClass, cluster_graph, servers_of
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.units import BITS_PER_BYTE, NS_PER_SECOND, Link, ceil_div
from pipecut_literature.hetpipe.partition import Partition, Prices, best_partition
from pipecut_literature.hetpipe.published import BATCH, ONE_V, PublishedRun

TRAINING_FLOPS_PER_MAC = 6
"""Forward pass, and both gradients in the backward pass."""


def efficiency(layers_macs: int, images_per_second: int, peak: int) -> Fraction:
    """Return which part of its peak (FLOP/s) a device reaches that trains so many images a second."""
    return Fraction(images_per_second * TRAINING_FLOPS_PER_MAC * layers_macs, peak)


def calibrated(instance: Instance, model: str, memory: bool = True) -> tuple[Instance, Fraction]:
    """Return the instance with every peak scaled by one efficiency, that of a single TITAN V, and the efficiency.

    ``memory`` tells whether memory limits partitions.
    """
    servers = servers_of(instance.cluster_graph)
    (single,) = (server.device_class for server in servers if server.name == "V")
    part = efficiency(sum(layer.macs for layer in instance.layers), ONE_V[model], single.flops_per_second)
    scaled = [replace(server, device_class=_scaled(server.device_class, part)) for server in servers]
    links = [(one, other, data["link"]) for one, other, data in instance.cluster_graph.edges(data=True)]
    switches = [name for name, data in instance.cluster_graph.nodes(data=True) if "server" not in data]
    cluster = cluster_graph("calibrated", scaled, links, switches, instance.cluster.wiring.mesh)
    constraints = replace(instance.constraints, memory=memory)
    made = build_instance(instance.layer_graph, cluster, instance.training, instance.cost, constraints)
    return made, part


def _scaled(device: DeviceClass, part: Fraction) -> DeviceClass:
    return replace(device, flops_per_second=int(device.flops_per_second * part))


@dataclass(frozen=True, slots=True)
class PricedWorker:
    """A virtual worker with its partition: the way of one minibatch through it in ns, and bytes of its weights."""

    partition: Partition
    latency_ns: int
    weights_bytes: tuple[int, ...]
    """By server."""

    def period_ns(self, in_flight: int) -> int:
        """Return tau, the time from one finished minibatch to the next."""
        return max(self.partition.bottleneck_ns, ceil_div(self.latency_ns, in_flight))


def priced_worker(instance: Instance, devices: str, in_flight: int) -> PricedWorker | None:
    """Return the virtual worker of these devices (one letter each) with its best order; None if none fits."""
    names = [server.name for server in instance.servers]
    counts = [devices.count(name) for name in names]
    found = best_partition(instance, counts, in_flight)
    if found is None:
        return None
    weights = [0] * len(names)
    for server, span in zip(found.order, found.spans, strict=True):
        weights[server] += sum(instance.parameter_bytes[layer] for layer in span.layers)
    return PricedWorker(found, _latency_ns(instance, found), tuple(weights))


def most_in_flight(instance: Instance, devices: str) -> int:
    """Return how many minibatches fit into the memory of a virtual worker, up to one a device (0: none)."""
    fitting = (n for n in range(len(devices), 0, -1) if priced_worker(instance, devices, n) is not None)
    return next(fitting, 0)


def _latency_ns(instance: Instance, found: Partition) -> int:
    prices = Prices(replace(instance, constraints=replace(instance.constraints, memory=False)))
    total, last = 0, len(found.order) - 1
    for at, (server, span) in enumerate(zip(found.order, found.spans, strict=True)):
        before = instance.links[found.order[at - 1]][server] if at else None
        after = instance.links[server][found.order[at + 1]] if at < last else None
        total += int(prices.stage_ns(server, before, after, 1)[span.first, span.stop])
    return total


def wave_ns(in_flight: int, period_ns: int, sync_ns: int, clock_distance: int = 0) -> Fraction:
    """Return the time of one wave of N_m minibatches (module docstring)."""
    if in_flight == 1:
        held = Fraction(sync_ns + period_ns, clock_distance + 1)
    else:
        held = Fraction(sync_ns + (in_flight + 1) * period_ns, clock_distance + 2)
    return max(Fraction(in_flight * period_ns), held)


def link_efficiency(instance: Instance, devices: str, images_per_second: int) -> Fraction:
    """Return which part of a link's bandwidth data parallelism reached on devices of one server.

    The time beyond a minibatch's computing is taken to be a ring all-reduce of all weights.
    """
    server = [one.name for one in instance.servers].index(devices[0])
    one, count, link = instance.class_index(server), len(devices), instance.links[server][server]
    compute = sum(instance.forward_ns[one]) + sum(instance.backward_ns[one])
    step = Fraction(count * BATCH * NS_PER_SECOND, images_per_second)
    if link is None or step <= compute:
        raise ValueError(f"{images_per_second} images/s on {devices} leave no time to sum weights")
    size = Fraction(2 * (count - 1) * sum(instance.parameter_bytes), count)
    return _transfer_ns(size, link, Fraction(1)) / (step - compute)


def sync_ns(instance: Instance, workers: Sequence[PricedWorker], local: bool, part: Fraction) -> int:
    """Return how long pushing and pulling a wave's update takes, every link giving ``part`` of its bandwidth.

    Weights lie on parameter servers on all servers in use, evenly (layers in turn); the busiest server's network
    takes in what is pushed to it from elsewhere and what its devices pull from elsewhere. ``local``: the weights
    of a device's layers lie on its own server, so nothing crosses the network, and all its devices push and pull
    over the link inside. A single virtual worker has nobody to share with.
    """
    if len(workers) == 1:
        return 0
    used = [server for server in range(len(instance.servers)) if any(one.weights_bytes[server] for one in workers)]
    times = []
    for server in used:
        held = sum(one.weights_bytes[server] for one in workers)
        if local:
            times.append(_transfer_ns(Fraction(held), instance.links[server][server], part))
            continue
        pushed = sum(sum(one.weights_bytes) - one.weights_bytes[server] for one in workers)
        taken = Fraction(pushed + held * (len(used) - 1), len(used))
        links = [link for other, link in enumerate(instance.links[server]) if other != server and other in used]
        times.append(max((_transfer_ns(taken, link, part) for link in links), default=0))
    return max(times)


def _transfer_ns(size: Fraction, link: Link | None, part: Fraction) -> int:
    if link is None:
        return 0
    return int(size * BITS_PER_BYTE * NS_PER_SECOND / (link.bits_per_second * part))


def images_per_second(
    instance: Instance, run: PublishedRun, part: Fraction, clock_distance: int = 0
) -> float | None:
    """Return HetPipe's rate: all virtual workers at the pace of the slowest. None if a partition does not fit."""
    distinct = {devices: priced_worker(instance, devices, run.in_flight) for devices in set(run.workers)}
    workers = [distinct[devices] for devices in run.workers]
    known = [one for one in workers if one is not None]
    if len(known) < len(workers):
        return None
    sync = sync_ns(instance, known, run.local, part)
    period = max(one.period_ns(run.in_flight) for one in known)
    wave = wave_ns(run.in_flight, period, sync, clock_distance)
    return float(len(known) * run.in_flight * BATCH * NS_PER_SECOND / wave)


def horovod(instance: Instance, devices: str, part: Fraction) -> float:
    """Return data parallelism's rate: the slowest device's minibatch, then a ring over the slowest link in use."""
    names = [server.name for server in instance.servers]
    used = sorted({names.index(one) for one in devices})
    classes = {instance.class_index(server) for server in used}
    compute = max(sum(instance.forward_ns[one]) + sum(instance.backward_ns[one]) for one in classes)
    links = [instance.links[a][b] for a in used for b in used if a <= b]
    bits = min(link.bits_per_second for link in links if link is not None)
    size = Fraction(2 * (len(devices) - 1) * sum(instance.parameter_bytes), len(devices))
    summed = _transfer_ns(size, Link(bits), part)
    return len(devices) * BATCH * NS_PER_SECOND / (compute + summed)
