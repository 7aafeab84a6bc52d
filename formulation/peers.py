"""Problems of other planners, each in its own terms: what an importer returns and a peer's planner takes.

These are not :class:`~formulation.instance.Instance`: each peer has a cost model of its own, and is reproduced
in it. Units are pipecut's names for the same things (ns, s, bytes, bytes/s), converted once, by the importer.
Times that a file states to a whole nanosecond are ``int`` ns; where a peer's own input is a binary float
(Piper, dnn-partitioning) it stays a float of seconds, so that its published results come out to the digit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

SHOWN = 8
"""Nodes of a cycle that a message names."""


@dataclass(frozen=True, slots=True)
class ProfiledLayer:
    """One operator of a PipeDream profile, measured for a whole minibatch on one device.

    ``activation_bytes`` is the output of the whole minibatch; ``stage`` the stage that PipeDream's optimiser
    wrote into the file, None in a bare profile.
    """

    name: str
    description: str
    forward_ns: int
    backward_ns: int
    activation_bytes: int
    parameter_bytes: int
    stage: int | None = None

    def __post_init__(self) -> None:
        for value in (self.forward_ns, self.backward_ns, self.activation_bytes, self.parameter_bytes):
            if type(value) is not int or value < 0:
                raise ValueError(f"layer {self.name}: found {value!r}, expected a whole number, 0 or more")


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """A PipeDream profile: layers in the order of the file (not topological) and edges (producer, consumer).

    An edge may stand in the file twice; it does so here.
    """

    layers: tuple[ProfiledLayer, ...]
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        _check_graph("profile", [layer.name for layer in self.layers], self.edges)

    def planned(self) -> ProfiledModel:
        """Return what PipeDream plans: no source called ``Input...``, then no sink called ``__getitem__...``.

        The "forward time" of an input is data loading (up to 0.6 s) and none of the planner's business.
        """
        consumed = {consumer for _, consumer in self.edges}
        inputs = self._called("Input", consumed)
        edges = [edge for edge in self.edges if inputs.isdisjoint(edge)]
        unused = self._called("__getitem__", {producer for producer, _ in edges}) - inputs
        kept = [index for index in range(len(self.layers)) if index not in inputs | unused]
        number = {old: new for new, old in enumerate(kept)}
        return ProfiledModel(
            tuple(self.layers[index] for index in kept),
            tuple((number[a], number[b]) for a, b in edges if a in number and b in number),
        )

    def _called(self, prefix: str, but: set[int]) -> set[int]:
        named = (i for i, layer in enumerate(self.layers) if layer.description.startswith(prefix))
        return {index for index in named if index not in but}


@dataclass(frozen=True, slots=True)
class PlacementNode:
    """One node of a dnn-partitioning problem.

    ``accelerator_s`` and ``cpu_s`` are its times on the two kinds of device; ``transfer_s`` is the time to move
    its output between an accelerator and the host, paid once by each accelerator that sends or receives it.
    Nodes of one ``colour`` share a device; None: a class of its own.
    """

    identifier: int
    name: str
    accelerator_s: float
    cpu_s: float
    size_bytes: float
    transfer_s: float
    on_accelerator: bool
    backward: bool
    colour: int | None

    def __post_init__(self) -> None:
        _check_reals(f"node {self.identifier}", (self.accelerator_s, self.cpu_s, self.size_bytes, self.transfer_s))


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """A dnn-partitioning problem: place nodes on ``accelerators`` and ``cpus`` so that the largest load is least.

    Edges (producer, consumer) number the nodes from 0 in the order of the file; ``capacity_bytes`` limits each
    accelerator. No edge leads from a backward to a forward node.
    """

    nodes: tuple[PlacementNode, ...]
    edges: tuple[tuple[int, int], ...]
    accelerators: int
    cpus: int
    capacity_bytes: float

    def __post_init__(self) -> None:
        _check_graph("placement problem", [node.identifier for node in self.nodes], self.edges)
        for producer, consumer in self.edges:
            if self.nodes[producer].backward and not self.nodes[consumer].backward:
                raise ValueError(f"edge {producer} -> {consumer} leads from a backward to a forward node")


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
        _check_reals(f"alternative {self.name}", (*numbers, *self.bytes_in.values(), *self.bytes_out.values()))


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
        _check_graph("Piper problem", range(len(self.layers)), [(a, b) for a, b, _ in self.edges])
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


def _check_graph(what: str, names: Sequence[object], edges: Iterable[tuple[int, int]]) -> None:
    """Raise ValueError for a repeated name, an edge outside the nodes, or a cycle, which is named."""
    if len(set(names)) != len(names):
        raise ValueError(f"{what}: two nodes have the same name")
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(names)))
    for producer, consumer in edges:
        if not (0 <= producer < len(names) and 0 <= consumer < len(names)):
            raise ValueError(f"{what}: edge {producer} -> {consumer}, expected numbers below {len(names)}")
        graph.add_edge(producer, consumer)
    if nx.is_directed_acyclic_graph(graph):
        return
    circle = [str(names[node]) for node, _ in nx.find_cycle(graph)]
    if len(circle) > SHOWN:
        circle[SHOWN - 1 :] = [f"… ({len(circle) - SHOWN + 1} more)"]
    raise ValueError(f"{what}: a cycle, {' -> '.join([*circle, circle[0]])}")


def _check_reals(what: str, values: Iterable[float]) -> None:
    for value in values:
        if not 0 <= value < math.inf:
            raise ValueError(f"{what}: found {value!r}, expected a finite number, 0 or more")
