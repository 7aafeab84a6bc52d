"""How large the numbers of an instance may be: asked once, when it is made, so that nothing below can overflow.

Solvers count in 64 bits. The largest sums that any of them forms are those of everything at its dearest: all
layers of a micro-batch one after another, a step of such micro-batches, the bytes of the whole model with all its
copies on one device, the price of the whole cluster. Each is bounded here from above, in integers of any size.
Where a solver multiplies beyond that it divides first (``solvers.cpsat.valid``: areas, by their unit), and CP-SAT
itself refuses a model with larger sums (``solvers.cpsat.base.engine``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from formulation.problem.layers import Split
from formulation.problem.options import AllReduce, Recompute, Synchronisation, steps_run
from formulation.problem.units import BITS_PER_BYTE, NS_PER_SECOND, Link, ceil_div

if TYPE_CHECKING:
    from formulation.problem.instance import Instance

__all__: list[str] = []

FORBIDDEN = 1 << 56
"""Time of a form that a layer cannot take: larger than any real time, small enough that sums fit 64 bits."""
MOST_NS = FORBIDDEN // 2
"""One micro-batch takes less than this, whatever the plan (417 days)."""
MOST = 1 << 58
"""A step in ns, a device's bytes, a price in millionths and a limit on any of these are less than this."""


def check_magnitude(instance: Instance) -> None:
    """Raise ValueError, with both numbers of each, for what could leave 64 bits.

    Cost: linear in layers and edges.
    """
    problems = [*_times(instance), *_amounts(instance), *_limits(instance)]
    if problems:
        raise ValueError("; ".join(problems))


def longest_ns(instance: Instance) -> int:
    """Return a time in ns that no plan takes for one micro-batch: all layers and all cuts at their dearest.

    That is every layer on one device of the slowest class, and between any two neighbours a boundary.
    """
    runs = 1 if instance.constraints.recompute is Recompute.NEVER else 2
    by_class = [
        [runs * forward + backward for forward, backward in zip(*pair, strict=True)]
        for pair in zip(instance.forward_ns, instance.backward_ns, strict=True)
    ]
    computing = sum(map(max, *by_class)) if len(by_class) > 1 else sum(by_class[0])
    return computing + _moving_ns(instance, runs)


def most_bytes(instance: Instance) -> int:
    """Return bytes that no device ever holds: the whole model with every version, stash and working set."""
    training = instance.training
    kept = max(training.micro_batches, instance.devices)
    made, taken = sum(instance.output_bytes), sum(instance.input_bytes)
    return (
        (instance.devices + 2) * sum(map(max, instance.parameter_bytes, instance.gradient_bytes))
        + sum(instance.optimizer_bytes)
        + kept * (sum(instance.stash_bytes) + made)
        + 2 * (taken + made)
    )


def _moving_ns(instance: Instance, runs: int) -> int:
    """Return what all communication of one micro-batch takes at most, all of it over the slowest link.

    Sums of rounded times exceed the rounded sum by less than 1 ns each.
    """
    devices, layers, edges = instance.devices, instance.layers, instance.form_edges
    link, (times, messages) = instance.cluster.slowest, _all_reduce(instance)
    if link is None:
        return 0
    sizes = zip(layers, instance.output_bytes, instance.input_bytes, strict=True)
    passes = [max(runs * made, taken) for layer, made, taken in sizes if layer.split is Split.MATRIX]
    turned = (runs + 1) * sum(edge.size_bytes for edge in edges)
    crossing = sum(edge.size_bytes * (edge.consumer - edge.producer) for edge in instance.edges)
    sides = 2  # activations and gradients: HetPipe's planner counts both, whatever the cost model says
    every_time = (
        _transfer_ns(times * sum(passes), runs * messages * len(passes), link)
        + _transfer_ns(turned, (runs + 1) * (devices - 1) * len(edges), link)
        + _transfer_ns(sides * crossing, sides * len(layers), link)
    )
    once = 0 if instance.cost.synchronisation is Synchronisation.OVERLAPPED else _synchronising_ns(instance)
    rounded = 2 * (2 + runs + sides) * (len(layers) + len(edges))
    return every_time + ceil_div(once, instance.training.micro_batches) + rounded


def _synchronising_ns(instance: Instance) -> int:
    """Return what it takes at most to sum all gradients, once a step, over the slowest link."""
    link, (times, messages) = instance.cluster.slowest, _all_reduce(instance)
    if link is None:
        return 0
    layers = len(instance.layers)
    return _transfer_ns(times * sum(instance.gradient_bytes), messages * layers, link) + layers


def _all_reduce(instance: Instance) -> tuple[int, int]:
    """Return how often a device sends each byte of a sum over all devices, and in how many messages, at most."""
    ring = instance.cost.all_reduce is AllReduce.RING
    return (2, 2 * (instance.devices - 1)) if ring else (1, 1)


def _transfer_ns(size_bytes: int, messages: int, link: Link) -> int:
    return ceil_div(size_bytes * BITS_PER_BYTE * NS_PER_SECOND, link.bits_per_second) + messages * link.latency_ns


def _times(instance: Instance) -> Iterator[str]:
    longest, training = longest_ns(instance), instance.training
    # The timeline sums gradients also where they are overlapped, and runs several steps where nothing flushes.
    steps = steps_run(training, min(len(instance.layers), instance.devices))
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
