"""A problem of Piper in its own terms: what its reader returns and its planner takes.

Units are pipecut's names for the same things (ns, s, bytes, bytes/s), converted once, by the reader.
Times stay floats of seconds, as in the published input, so that published results come out to the digit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ingest.graphs.graph_checks import check_graph, check_reals

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to run a Piper layer on a tensor-parallel group.

    ``time_s``: forward and backward of one micro-batch. ``parameter_bytes`` per device. Memory of one device is
    ``in_flight_bytes * y + fixed_bytes`` with y micro-batches in flight. ``bytes_in[u]`` and ``bytes_out[w]``
    are the extra bytes that tensor parallelism moves on the edge from layer u, or to layer w, at a stage boundary
    (the file calls them ``syncTimeFw`` and ``syncTimeBw``: they are no times).
    """

    name: str
    time_s: float
    parameter_bytes: float
    in_flight_bytes: float
    fixed_bytes: float
    bytes_in: Mapping[int, float]
    bytes_out: Mapping[int, float]

    def __post_init__(self) -> None:
        numbers = (self.time_s, self.parameter_bytes, self.in_flight_bytes, self.fixed_bytes)
        check_reals(f"alternative {self.name}", (*numbers, *self.bytes_in.values(), *self.bytes_out.values()))


@dataclass(frozen=True, slots=True)
class PiperLayer:
    """A layer of a Piper problem: its alternatives by tensor-parallel degree."""

    name: str
    alternatives: Mapping[int, tuple[Alternative, ...]]


@dataclass(frozen=True, slots=True)
class PiperProblem:
    """A Piper problem: layers, edges (producer, consumer, bytes of one micro-batch), and the cluster.

    ``micro_batches`` is the number of micro-batches of one batch; ``memory_bytes`` the memory of one device.
    """

    layers: tuple[PiperLayer, ...]
    edges: tuple[tuple[int, int, float], ...]
    devices: int
    memory_bytes: float
    bytes_per_second: float
    micro_batches: int

    def __post_init__(self) -> None:
        check_graph("Piper problem", range(len(self.layers)), [(a, b) for a, b, _ in self.edges])
        if self.devices < 1 or self.micro_batches < 1 or not 0 < self.bytes_per_second < math.inf:
            raise ValueError("Piper problem: expected a device, a micro-batch and a bandwidth above 0")
        ends = {(a, b) for a, b, _ in self.edges}
        if len(ends) != len(self.edges):
            raise ValueError("Piper problem: an edge appears twice")
        for index, layer in enumerate(self.layers):
            sources, targets = {a for a, b in ends if b == index}, {b for a, b in ends if a == index}
            for one in (one for row in layer.alternatives.values() for one in row):
                if set(one.bytes_in) != sources or set(one.bytes_out) != targets:
                    raise ValueError(
                        f"layer {index}, {one.name}: expected an entry for each of its edges, no other"
                    )
