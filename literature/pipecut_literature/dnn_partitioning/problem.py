"""A problem of dnn-partitioning in its own terms: what its reader returns and its planner takes.

Units are pipecut's names for the same things (ns, s, bytes, bytes/s), converted once, by the reader.
Times stay floats of seconds, as in the published input, so that published results come out to the digit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipecut.ingest.graphs.foreign import check_graph, check_reals


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
        check_reals(f"node {self.identifier}", (self.accelerator_s, self.cpu_s, self.size_bytes, self.transfer_s))


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
        check_graph("placement problem", [node.identifier for node in self.nodes], self.edges)
        for producer, consumer in self.edges:
            if self.nodes[producer].backward and not self.nodes[consumer].backward:
                raise ValueError(f"edge {producer} -> {consumer} leads from a backward to a forward node")

    def forward(self) -> PlacementProblem:
        """Return the inference graph of a training graph: its forward nodes and the edges between them."""
        kept = [at for at, node in enumerate(self.nodes) if not node.backward]
        number = {old: new for new, old in enumerate(kept)}
        edges = tuple((number[a], number[b]) for a, b in self.edges if a in number and b in number)
        sending = {a for a, _ in edges}
        nodes = (
            self.nodes[old] if new in sending else replace(self.nodes[old], transfer_s=0.0)
            for new, old in enumerate(kept)
        )
        return replace(self, nodes=tuple(nodes), edges=edges)

    def without_transfers(self) -> PlacementProblem:
        """Return the problem in which outputs cost nothing to move."""
        return replace(self, nodes=tuple(replace(node, transfer_s=0.0) for node in self.nodes))
