"""How large the numbers of an instance may be: asked once, when it is made, so that nothing below can overflow.

Solvers count in 64 bits. The largest sums that any of them forms are those of everything at its dearest: all
layers of a micro-batch one after another, a step of such micro-batches, the bytes of the whole model with all its
copies on one device, the price of the whole cluster. Each is bounded here from above, in integers of any size.
Where a solver multiplies beyond that it divides first (``solvers.cpsat.valid``: areas, by their unit), and CP-SAT
itself refuses a model with larger sums (``solvers.cpsat.base.engine``).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from formulation.problem.constraints import Recompute
from formulation.problem.layers import Split
from formulation.problem.model.across import FORMS
from formulation.problem.options import AllReduce, Compute
from formulation.problem.shares import OnHost, Sharded
from formulation.problem.units import BITS_PER_BYTE, NS_PER_SECOND, Link, ceil_div, ceil_fraction, slowest

if TYPE_CHECKING:
    from formulation.problem.instance import Instance

FORBIDDEN = 1 << 56
"""Time of a form that a layer cannot take: larger than any real time, small enough that sums fit 64 bits."""
MOST_NS = FORBIDDEN // 2
"""One micro-batch takes less than this, whatever the plan (417 days)."""
MOST = 1 << 58
"""A step in ns, a device's bytes, a price in millionths and a limit on any of these are less than this."""


class MagnitudeError(ValueError):
    """What an instance adds up to could leave 64 bits."""


def check_magnitude(instance: Instance) -> None:
    """Raise MagnitudeError, with both numbers of each, for what could leave 64 bits.

    Cost: linear in layers and edges.
    """
    problems = [*_times(instance), *_amounts(instance), *_limits(instance)]
    if problems:
        raise MagnitudeError("; ".join(problems))


def longest_ns(instance: Instance) -> int:
    """Return a time in ns that no plan takes for one micro-batch: all layers and all cuts at their dearest.

    That is every layer on one device of the slowest class, and between any two neighbours a boundary.
    """
    runs = 1 if instance.constraints.recompute is Recompute.NEVER else 2
    by_class = [
        [
            runs * forward + backward
            for forward, backward in (instance.predictor.most_ns(layer, one) for layer in instance.layers)
        ]
        for one in instance.device_classes
    ]
    computing = sum(map(max, *by_class)) if len(by_class) > 1 else sum(by_class[0])
    return _loaded(instance, computing) + _moving_ns(instance, runs)


def _loaded(instance: Instance, amount: int) -> int:
    """Return an amount as often as the fullest device has more than the mean, rounded up, at most all devices."""
    return ceil_fraction(amount * min(instance.cost.expert_load, Fraction(instance.devices)))


def longest_run_ns(instance: Instance, micro_batches: int) -> int:
    """Return a time in ns that no plan takes for so many micro-batches and one synchronisation, however executed.

    That is every pass and every transfer after the other, and the synchronisation of everything at its dearest.
    """
    return micro_batches * longest_ns(instance) + _synchronising_ns(instance)


def most_bytes(instance: Instance) -> int:
    """Return bytes that no device ever holds: the whole model with every version, stash and working set."""
    training = instance.training
    # Of what crosses cuts a device has its part for each of its stages.
    # A stage keeps as many versions and micro-batches as there are stages, of which each takes a device, and where
    # gradients of weights may wait as many gradients of outputs.
    # The first stage starts at the first layer, even where ``no_cut`` names it.
    starts = ({*range(len(instance.layers))} - {*instance.demands.no_cut}) | {0}
    stages = min(len(starts), instance.training.chunks * instance.devices)
    kept = max(training.micro_batches, stages)
    gathered = 2 * (set(instance.constraints.sharded) != {Sharded.NONE})
    made, taken = sum(instance.output_bytes), sum(instance.input_bytes)
    lent = made if instance.constraints.recompute is Recompute.BLOCKS else sum(instance.lent_bytes)
    copies = [copy for copy in instance.copies if copy is not None]
    again = sum(max(copy.parameter_bytes, copy.gradient_bytes) for copy in copies)
    return (
        (stages + 2 + gathered) * (sum(map(max, instance.parameter_bytes, instance.gradient_bytes)) + again)
        + sum(instance.optimizer_bytes)
        + sum(copy.optimizer_bytes for copy in copies)
        + kept * (sum(instance.stash_bytes) + (training.chunks + training.schedule.in_halves) * made + lent)
        + 2 * (taken + made)
    )


def _moving_ns(instance: Instance, runs: int) -> int:
    """Return what all communication of one micro-batch takes at most, all of it over the slowest link.

    Sums of rounded times exceed the rounded sum by less than 1 ns each.
    """
    devices, layers, edges = instance.devices, instance.layers, instance.form_edges
    link, (times, messages) = _dearest_link(instance), _all_reduce(instance)
    once = _synchronising_ns(instance)
    if link is None:
        return once
    sizes = zip(layers, instance.output_bytes, instance.input_bytes, strict=True)
    # Where rows are gathered, inputs are sent in every forward pass too, and each half of a sum is a message.
    in_rows = any(max(layer.allowed_forms) >= len(FORMS) for layer in layers)
    again = runs if in_rows else 1
    passes = [max(runs * made, again * taken) for layer, made, taken in sizes if layer.split is Split.MATRIX]
    turned = (runs + 1) * _loaded(instance, sum(edge.size_bytes for edge in edges))
    # Keys and values go round in three rings, and a loss adds up three numbers in each forward pass.
    sent, senders = 3 * runs * sum(instance.sent_bytes), sum(map(bool, instance.sent_bytes))
    crossing = sum(edge.size_bytes * (edge.consumer - edge.producer) for edge in instance.edges)
    sides = 2  # activations and gradients: HetPipe's planner counts both, whatever the cost model says
    every_time = (
        _transfer_ns(times * sum(passes), (runs + in_rows) * messages * len(passes), link)
        + _transfer_ns(turned, (runs + 1) * (devices - 1) * len(edges), link)
        + _transfer_ns(2 * sent, 3 * runs * (messages + devices) * senders, link)
        + _transfer_ns(sides * crossing, sides * len(layers), link)
    )
    rounded = 2 * (3 + 2 * runs + sides) * (len(layers) + len(edges))
    return every_time + ceil_div(once, instance.training.micro_batches) + rounded + _gathering_ns(instance, runs)


def _dearest_link(instance: Instance) -> Link | None:
    """Return the slowest link of the cluster, of whose adapters every device of a server may have its part."""
    link = instance.cluster.slowest
    sharing = max((server.devices for server in instance.servers if server.adapters), default=1)
    return None if link is None else link.times(1, sharing)


def _gathering_ns(instance: Instance, runs: int) -> int:
    """Return what divided weights and gradients cost one micro-batch at most, over the slowest link."""
    link, (times, messages) = _dearest_link(instance), _all_reduce(instance)
    each = any(one.divides_gradients for one in instance.constraints.sharded)
    if link is None or not each:
        return 0
    halves = (runs + 1) * sum(instance.parameter_bytes) + sum(instance.gradient_bytes)
    return _transfer_ns(times * halves, (runs + 2) * messages * len(instance.layers), link)


def _synchronising_ns(instance: Instance) -> int:
    """Return what it takes at most to sum all gradients, once a step, over the slowest link."""
    link, (times, messages) = _dearest_link(instance), _all_reduce(instance)
    host = _through_hosts_ns(instance) + _updating_ns(instance)
    if link is None:
        return host
    layers, copies = len(instance.layers), [copy for copy in instance.copies if copy is not None]
    # Gradients of copies are added over the stage, and then to those of the stage before.
    summed = sum(instance.gradient_bytes) + 2 * sum(copy.gradient_bytes for copy in copies)
    if set(instance.constraints.sharded) != {Sharded.NONE}:
        summed += sum(instance.updated_bytes) + sum(copy.updated_bytes for copy in copies)
        layers = 2 * layers
    layers += 2 * len(copies)
    return _transfer_ns(times * summed, messages * layers, link) + layers + host


def _updating_ns(instance: Instance) -> int:
    """Return what the optimiser takes at most under a roofline, for the whole model through the slowest memory."""
    known = [one.memory_bytes_per_second for one in instance.device_classes if one.memory_bytes_per_second]
    if instance.cost.compute is not Compute.ROOFLINE or not known:
        return 0
    copies = [copy for copy in instance.copies if copy is not None]
    size = sum(instance.gradient_bytes) + 2 * (sum(instance.updated_bytes) + sum(instance.optimizer_bytes))
    size += sum(copy.gradient_bytes + 2 * (copy.updated_bytes + copy.optimizer_bytes) for copy in copies)
    constants = instance.cost.roofline
    time = ceil_fraction(constants.update * size * NS_PER_SECOND / (constants.memory * min(known)))
    return time + len(instance.layers) + len(copies)


def _through_hosts_ns(instance: Instance) -> int:
    """Return what it takes at most to send all gradients to a host, and all trained weights back."""
    links = [one.host_link for one in instance.device_classes if one.host_link is not None]
    if instance.constraints.optimizer_on_host is OnHost.NEVER or not links:
        return 0
    copies = [copy for copy in instance.copies if copy is not None]
    sent = sum(instance.gradient_bytes) + sum(instance.updated_bytes)
    sent += sum(copy.gradient_bytes + copy.updated_bytes for copy in copies)
    layers = len(instance.layers) + len(copies)
    return _transfer_ns(sent, 2 * layers, slowest(tuple(links))) + layers


def _all_reduce(instance: Instance) -> tuple[int, int]:
    """Return how often a device sends each byte of a sum over all devices, and in how many messages, at most."""
    ring = instance.cost.all_reduce is AllReduce.RING
    return (2, 2 * (instance.devices - 1)) if ring else (1, 1)


def _transfer_ns(size_bytes: int, messages: int, link: Link) -> int:
    return ceil_div(size_bytes * BITS_PER_BYTE * NS_PER_SECOND, link.bits_per_second) + messages * link.latency_ns


def _times(instance: Instance) -> Iterator[str]:
    longest, training = longest_ns(instance), instance.training
    # The timeline sums gradients also where they are overlapped, and runs several steps where nothing flushes.
    steps = training.steps_run(min(len(instance.layers), training.chunks * instance.devices))
    whole = steps * (training.micro_batches * longest + _synchronising_ns(instance))
    if longest >= MOST_NS:
        rows = zip(instance.forward_ns, instance.backward_ns, strict=True)
        alone = [
            max(one) for one in zip(*([a + b for a, b in zip(*row, strict=True)] for row in rows), strict=True)
        ]
        worst = max(range(len(alone)), key=lambda layer: alone[layer])
        yield (
            f"one micro-batch can take {longest} ns, all layers one after another at their dearest, and less than"
            f" {MOST_NS} ns can be counted; layer {instance.layers[worst].name} alone takes {alone[worst]} ns on"
            " the slowest device: check operations, bytes, speeds, links and cost.backward_factor, or take more"
            " micro-batches"
        )
    elif whole >= MOST:
        run = "a step" if steps == 1 else f"{steps} steps"
        yield (
            f"{run} of {training.micro_batches} micro-batches can take {whole} ns, and less than {MOST} ns"
            " can be counted: take fewer micro-batches, or check operations, bytes, speeds and links"
        )


def _amounts(instance: Instance) -> Iterator[str]:
    held, servers = most_bytes(instance), instance.servers
    if held >= MOST:
        sizes = (instance.parameter_bytes, instance.stash_bytes, instance.input_bytes, instance.output_bytes)
        alone = [sum(row) for row in zip(*sizes, strict=True)]
        worst = max(range(len(alone)), key=lambda layer: alone[layer])
        yield (
            f"the model with all its copies can take {held} bytes, and less than {MOST} bytes can be counted;"
            f" layer {instance.layers[worst].name} alone has {alone[worst]} of them: check it, or take smaller"
            " micro-batches"
        )
    price = sum(server.devices * server.device_class.price_per_hour for server in servers)
    if price >= MOST:
        dear = max(servers, key=lambda server: server.device_class.price_per_hour).device_class
        yield (
            f"all devices cost {price} millionths an hour, and less than {MOST} can be counted; one of class"
            f" {dear.name} costs {dear.price_per_hour}"
        )


def _limits(instance: Instance) -> Iterator[str]:
    numbers = {name: number for one in instance.constraints.values for name, number in one.numbers().items()}
    # A limit that is loosened to explain a clash may grow by one more value, so twice as much is counted.
    for name, number in numbers.items():
        if number >= 2 * MOST:
            yield f"constraints.{name} is {number}, and less than {2 * MOST} can be counted; leave it out"
