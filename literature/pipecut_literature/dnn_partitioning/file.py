"""dnn-partitioning's JSON: a graph to place on accelerators and host processors (docs/formats).

Latencies are ms. The edge ``cost``, the time to move the output of its source, is ms in most published files but
*seconds* in the layer graphs of ``throughput-inputs``, where it stands beside latencies in ms: as shipped,
transfers weigh a thousandth of what they should. So the caller says how to read it (:class:`EdgeCosts`).

A problem of dnn-partitioning in its own terms: what its reader returns and its planner takes.

Units are pipecut's names for the same things (ns, s, bytes, bytes/s), converted once, by the reader.
Times stay floats of seconds, as in the published input, so that published results come out to the digit.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from pipecut.ingest.graphs.foreign import FormatError, check_graph, check_reals
from pipecut_literature.common.json_source import Flag, Real, Strict, Whole, read_json


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


MS_PER_SECOND = 1000
LINK_BYTES_PER_SECOND = 2**31
"""Speed of the link behind every published ``cost``: 2 GiB/s."""
COST_TOLERANCE = 1e-6
"""How far the costs on the edges of one node may differ (the program's own limit, in the unit of the file)."""
LARGEST_GRAPH = 200_000


class EdgeCosts(enum.Enum):
    """How to read the edge ``cost``.

    ``AS_PROGRAM``: ms like the latencies, as the program does; reproduces its published results.
    ``FROM_SIZES``: in the unit, s or ms, in which it agrees with ``size`` over 2 GiB/s on the forward edges; an
    error if neither does. What the authors meant.
    """

    AS_PROGRAM = "as the program reads it"
    FROM_SIZES = "as the sizes say"


class _Node(Strict):
    id: Whole
    supportedOnFpga: Flag  # noqa: N815 - the keys of the file
    cpuLatency: Real  # noqa: N815
    fpgaLatency: Real  # noqa: N815
    isBackwardNode: Flag  # noqa: N815
    colorClass: Annotated[int, Field(ge=0, lt=2**31 - 1 - 60_000_000)] | None = None  # noqa: N815
    size: Real = 0.0
    name: str = ""
    layerId: int | None = None  # noqa: N815


class _Edge(Strict):
    sourceId: Whole  # noqa: N815
    destId: Whole  # noqa: N815
    cost: Real
    size: Real = 0.0


class _File(Strict):
    maxSizePerFPGA: Real  # noqa: N815
    maxFPGAs: Whole  # noqa: N815
    maxCPUs: Whole  # noqa: N815
    nodes: Annotated[list[_Node], Field(min_length=1, max_length=LARGEST_GRAPH)]
    edges: Annotated[list[_Edge], Field(max_length=LARGEST_GRAPH)]


def read_dnn_partitioning(path: Path, *, transfers: EdgeCosts) -> PlacementProblem:
    """Read a placement problem; times become seconds.

    ``layerId`` is ignored, as in the program's throughput runs. Raises FormatError; OSError if unreadable.
    """
    file = read_json(path, _File)
    place = {node.id: index for index, node in enumerate(file.nodes)}
    problems = _problems(file, place)
    if problems:
        raise FormatError(path, problems)
    per_second = MS_PER_SECOND if transfers is EdgeCosts.AS_PROGRAM else _unit(path, file, place)
    cost: dict[int, float] = {}
    for edge in file.edges:
        cost.setdefault(edge.sourceId, edge.cost / per_second)
    nodes = tuple(
        PlacementNode(
            node.id,
            node.name,
            node.fpgaLatency / MS_PER_SECOND,
            node.cpuLatency / MS_PER_SECOND,
            node.size,
            cost.get(node.id, 0.0),
            node.supportedOnFpga,
            node.isBackwardNode,
            node.colorClass,
        )
        for node in file.nodes
    )
    edges = tuple((place[edge.sourceId], place[edge.destId]) for edge in file.edges)
    try:
        return PlacementProblem(nodes, edges, file.maxFPGAs, file.maxCPUs, file.maxSizePerFPGA)
    except ValueError as error:
        raise FormatError(path, [f": {error}"]) from None


def _problems(file: _File, place: dict[int, int]) -> list[str]:
    """Name repeated nodes, edges without an end, and nodes whose edges differ in cost."""
    found = []
    for index, node in enumerate(file.nodes):
        if place[node.id] != index:
            found.append(f": nodes[{index}].id: found {node.id} again, expected every id once")
    first: dict[int, float] = {}
    for index, edge in enumerate(file.edges):
        for key, end in (("sourceId", edge.sourceId), ("destId", edge.destId)):
            if end not in place:
                found.append(f": edges[{index}].{key}: found {end}, expected the id of a node")
        before = first.setdefault(edge.sourceId, edge.cost)
        if abs(before - edge.cost) > COST_TOLERANCE:
            found.append(
                f": edges[{index}].cost: found {edge.cost}, expected {before} as on its source's other edges"
            )
    return found


def _unit(path: Path, file: _File, place: dict[int, int]) -> int:
    """Return how many units of ``cost`` make a second. Backward edges are left out: their sizes are unreliable."""
    found: dict[int | None, int] = {}
    for index, edge in enumerate(file.edges):
        ends = file.nodes[place[edge.sourceId]], file.nodes[place[edge.destId]]
        if edge.size > 0 and not any(node.isBackwardNode for node in ends):
            seconds = edge.size / LINK_BYTES_PER_SECOND
            agree = (one for one in (1, MS_PER_SECOND) if abs(edge.cost - seconds * one) <= 1e-6 * seconds * one)
            found.setdefault(next(agree, None), index)
    if None in found:
        place_of = f": edges[{found[None]}]"
        raise FormatError(
            path, [f"{place_of}: cost and size do not agree in s or ms at 2 GiB/s; read it AS_PROGRAM"]
        )
    if len(found) != 1:
        what = "no forward edge has a size" if not found else f"s at edges[{found[1]}], ms at edges[{found[1000]}]"
        raise FormatError(path, [f": the unit of cost cannot be told: {what}"])
    return next(one for one in found if one is not None)
