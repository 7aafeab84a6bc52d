"""A placement problem as an instance of pipecut, in pipecut's own cost model.

A colour class is a layer with measured times on two kinds of devices; every accelerator is a stage of its own, as
is a host. What another class takes from it crosses a boundary once. Two things differ: here a boundary is paid by
the link between two neighbours of a row, all boundaries at once, where the paper lets every device pay for what it
sends and receives beside its work; and here a tensor that is read later passes all stages between. Without
transfers both models are one, which holds one method against the other
(``pipecut_literature.dnn_partitioning.study``).
"""

from __future__ import annotations

import graphlib
from dataclasses import replace

from pipecut.formulation.predictor.curves import Measured
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Placement
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import Layer, Split, layer_graph
from pipecut.formulation.problem.options import Boundary, CostModel, Samples
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut_literature.dnn_partitioning.dp import load
from pipecut_literature.dnn_partitioning.file import LINK_BYTES_PER_SECOND, PlacementProblem
from pipecut_literature.dnn_partitioning.graph import contracted, original, with_cycles_merged, with_twins

NS = 10**9
HOST, ACCELERATOR = "host", "accelerator"
LINK = Link(8 * LINK_BYTES_PER_SECOND)
ANY_BYTES = 1 << 50
Members = dict[str, tuple[int, ...]]
"""By layer the nodes of the problem, by position, that are in it."""


def in_whole_ns(problem: PlacementProblem) -> PlacementProblem:
    """Return the problem with all times in whole ns, as an instance has them."""
    times = ("accelerator_s", "cpu_s", "transfer_s")
    rounded = ({name: round(getattr(node, name) * NS) / NS for name in times} for node in problem.nodes)
    nodes = tuple(replace(node, **row) for node, row in zip(problem.nodes, rounded, strict=True))
    return replace(problem, nodes=nodes)


def as_instance(problem: PlacementProblem, *, transfers: bool) -> tuple[Instance, Members]:
    """Return the instance, and what is in its layers.

    Raises ValueError if an accelerator does not support a node, which no constraint of an instance says.
    """
    if not all(node.on_accelerator for node in problem.nodes):
        raise ValueError("a node is not supported on accelerators: an instance has no such constraint")
    graph = contracted(with_cycles_merged(with_twins(contracted(original(problem)))))
    members: dict[int, list[int]] = {}
    for node in graph.nodes:
        members.setdefault(node.colour, []).extend(node.members)
    of_number = {node.number: node.colour for node in graph.nodes}
    before: dict[int, set[int]] = {colour: set() for colour in members}
    for one, other in graph.forward_edges():
        before[of_number[other]].add(of_number[one])
    order = list(graphlib.TopologicalSorter(before).static_order())
    sent = {colour: _sent_bytes(problem, members[colour]) for colour in order}
    layers = [_layer(problem, f"class{colour}", members[colour], sent[colour]) for colour in order]
    edges = [(f"class{one}", f"class{other}", sent[one]) for other in order for one in sorted(before[other])]
    devices = [Server("cards", DeviceClass(ACCELERATOR, ANY_BYTES, 10**12), problem.accelerators, LINK)]
    if problem.cpus:
        devices.append(Server("hosts", DeviceClass(HOST, ANY_BYTES, 10**12), problem.cpus, LINK))
    wires = [("cards", "hosts", LINK)] if problem.cpus else []
    trained = any(node.backward for node in problem.nodes)
    boundary = Boundary.BOTH if trained else Boundary.ACTIVATION
    instance = build_instance(
        layer_graph("placement", layers, edges),
        cluster_graph("accelerators and hosts", devices, wires),
        Training(1, 1),
        CostModel(boundary=boundary if transfers else Boundary.NONE, samples=Samples.FRACTIONS),
        Constraints(placement=Placement.FREE, max_servers=1, devices_per_stage=(1,)),
    )
    return instance, {f"class{colour}": tuple(members[colour]) for colour in order}


def _sent_bytes(problem: PlacementProblem, members: list[int]) -> int:
    """Return what a class sends forward: the outputs of its forward nodes that another class may take."""
    readers = {one for one, other in problem.edges if one in set(members) and other not in set(members)}
    sent_s = sum(problem.nodes[at].transfer_s for at in readers if not problem.nodes[at].backward)
    return round(sent_s * LINK_BYTES_PER_SECOND)


def _layer(problem: PlacementProblem, name: str, members: list[int], sent: int) -> Layer:
    nodes = [problem.nodes[at] for at in members]
    measured = tuple(
        Measured(device, 1, *(sum(round(time * NS) for time in row) for row in times))
        for device, times in (
            (ACCELERATOR, [[one.accelerator_s for one in nodes if one.backward is way] for way in (False, True)]),
            (HOST, [[one.cpu_s for one in nodes if one.backward is way] for way in (False, True)]),
        )
    )
    return Layer(name, "class", Split.JOIN, 0, 0, sent, 0, 0, measured=measured, allowed_forms=(0,))


def largest_load_s(problem: PlacementProblem, plan: Plan, instance: Instance, members: Members) -> float:
    """Return the largest load of a plan as the paper prices it, in seconds."""
    return max(
        load(
            problem,
            (at for layer in stage.span.layers for at in members[instance.layers[layer].name]),
            instance.servers[stage.group.counts[0][0]].device_class.name == ACCELERATOR,
        )
        for stage in plan.stages
    )
