"""The complete, frozen, numeric problem: what a solver gets and all that it gets.

An instance is made from two networkx graphs and option records by :func:`build_instance`. Layers
are numbered 0..N-1 in pipeline order, servers 0..V-1 in line order, and every quantity is per micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import networkx as nx

from formulation.predictor.passes import Predictor
from formulation.problem.cluster import Cluster, DeviceClass, Server
from formulation.problem.constraints import Constraints, Demands, Goal
from formulation.problem.demands import lessened, narrowed, resolve
from formulation.problem.layers import Layer, LayerGraph, Split
from formulation.problem.magnitude import check_magnitude
from formulation.problem.options import Combine, CostModel, StageTime
from formulation.problem.precision import (
    NOTHING_COPIED,
    Copy,
    activation_sizes,
    backward_products,
    copies_of,
    layer_sizes,
    lent_bytes,
)
from formulation.problem.shares import lanes
from formulation.problem.units import Link
from formulation.schedules.training import Training


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor that flows from layer ``producer`` to layer ``consumer``: bytes of one micro-batch."""

    producer: int
    consumer: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FormEdge:
    """An edge at which a layout may have to change: from the form of ``source`` to that of ``consumer``.

    ``source`` is the layer whose form decides how the tensor lies: the producer itself, or the layer that the
    chain of FOLLOW layers before the edge copies its layout from. The change costs nothing unless ``source``
    belongs to the same stage as ``consumer``: a boundary delivers a tensor in the layout that is asked for.
    """

    source: int
    consumer: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """What is to be planned. Sizes are bytes of one micro-batch, times are ns of one micro-batch.

    Only what a user writes is given: ``model``, ``cluster``, ``training``, ``cost``, ``constraints`` and ``goals``
    (what plans are judged by, in order: the second only counts among plans equal in the first). All other fields
    are derived from these here and nowhere else, so that no two parts of an instance can disagree:
    ``dataclasses.replace`` of a part derives them anew, and refuses to replace one of them.

    ``forward_ns[c][l]`` and ``backward_ns[c][l]`` are the times of layer ``l`` on *one* device of class
    ``device_classes[c]``, ``least_forward_ns`` and ``least_backward_ns`` times of which a device that does a
    share of the layer never takes less than that share; ``predictor`` tells times of parts; ``links[v][w]`` the
    link between servers (diagonal: inside the server); ``layers`` and ``servers`` those of the model and the
    cluster with the forms and the memory that ``constraints`` leave them; ``sources[l]`` the layer whose form
    layer ``l`` has (itself unless it is a FOLLOW layer; None: its layout comes from outside the model);
    ``form_edges`` the edges at which layouts meet, in order of consumer; ``copies[l]`` what layer ``l`` holds
    beside its own weights where an earlier layer that uses the same ones is in another stage (None: nothing);
    ``demands`` what the constraints ask by index; ``lent_bytes[l]`` what stays of the output of layer ``l`` for
    every micro-batch, beside what layers keep, in a stage that computes the named layers again.
    ``updated_bytes`` are the weights that are trained, ``sent_bytes`` those of ``Across``.

    Raises ValueError where the parts do not make a problem, where the constraints name what they do not have, and
    where its numbers are so large that sums of them could leave 64 bits (``formulation.problem.magnitude``).
    Cost: linear in layers, edges and pairs of servers, plus the globs of the constraints times the layers.
    """

    name: str = field(init=False)
    layers: tuple[Layer, ...] = field(init=False)
    edges: tuple[Edge, ...] = field(init=False)
    form_edges: tuple[FormEdge, ...] = field(init=False)
    sources: tuple[int | None, ...] = field(init=False)
    servers: tuple[Server, ...] = field(init=False)
    links: tuple[tuple[Link | None, ...], ...] = field(init=False)
    device_classes: tuple[DeviceClass, ...] = field(init=False)
    forward_ns: tuple[tuple[int, ...], ...] = field(init=False)
    backward_ns: tuple[tuple[int, ...], ...] = field(init=False)
    least_forward_ns: tuple[tuple[int, ...], ...] = field(init=False)
    least_backward_ns: tuple[tuple[int, ...], ...] = field(init=False)
    predictor: Predictor = field(init=False, repr=False, compare=False)
    parameter_bytes: tuple[int, ...] = field(init=False)
    updated_bytes: tuple[int, ...] = field(init=False)
    gradient_bytes: tuple[int, ...] = field(init=False)
    optimizer_bytes: tuple[int, ...] = field(init=False)
    input_bytes: tuple[int, ...] = field(init=False)
    output_bytes: tuple[int, ...] = field(init=False)
    stash_bytes: tuple[int, ...] = field(init=False)
    sent_bytes: tuple[int, ...] = field(init=False)
    copies: tuple[Copy | None, ...] = field(init=False)
    training: Training
    cost: CostModel
    constraints: Constraints
    demands: Demands = field(init=False)
    lent_bytes: tuple[int, ...] = field(init=False)
    goals: tuple[Goal, ...]
    model: LayerGraph = field(repr=False, compare=False)
    cluster: Cluster = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        check_goals(self.goals, self.constraints, self.cost, self.training)
        for name, value in _derived(self).items():
            object.__setattr__(self, name, value)
        check_magnitude(self)

    @property
    def layer_graph(self) -> nx.DiGraph:
        """A new networkx graph of the layers as a user wrote them; changing it does not change the instance."""
        return self.model.graph()

    @property
    def cluster_graph(self) -> nx.Graph:
        """A new networkx graph of the cluster as a user wrote it; changing it does not change the instance."""
        return self.cluster.graph()

    @property
    def devices(self) -> int:
        """Number of devices of the cluster."""
        return self.cluster.ends[-1]

    def lanes(self, counts: tuple[tuple[int, int], ...]) -> int:
        """Return how many adapters a stage on devices of these servers has (``shares.lanes``)."""
        return lanes(self, counts)

    def copied(self, layer: int, first: int) -> Copy | None:
        """Return what a layer copies in a stage that starts at layer ``first``; None if nothing."""
        found = self.copies[layer]
        return found if found is not None and found.earlier < first else None

    def trains(self, layer: int) -> bool:
        """Tell whether a layer makes gradients of weights, its own or those that it shares with an earlier one."""
        return self.gradient_bytes[layer] + (self.copies[layer] or NOTHING_COPIED).gradient_bytes > 0

    def class_index(self, server: int) -> int:
        """Return the index of a server's device class in ``device_classes``."""
        return self.device_classes.index(self.servers[server].device_class)


def build_instance(
    layers: nx.DiGraph,
    cluster: nx.Graph,
    training: Training,
    cost: CostModel,
    constraints: Constraints | None = None,
    goals: tuple[Goal, ...] = (Goal.BOTTLENECK,),
) -> Instance:
    """Turn a layer graph and a cluster graph into the numeric problem; both are copied.

    Byte counts of the graph, taken in ``element_bytes`` per element, are scaled to ``bytes_per_element`` of the
    training and multiplied by the micro-batch. Without ``goals`` the bottleneck is minimised, by which papers
    compare; what is minimised where a user says nothing is ``formulation.problem.options.default_goals``. Raises
    ValueError as :class:`Instance` does.
    """
    return Instance(
        model=LayerGraph.of(layers),
        cluster=Cluster.of(cluster),
        training=training,
        cost=cost,
        constraints=constraints or Constraints(),
        goals=goals,
    )


def _derived(written: Instance) -> dict[str, object]:
    """Return every derived field of an instance from those that a user writes."""
    model, training, cost = written.model, written.training, written.cost
    demands = resolve(written.constraints, model, written.cluster.servers)
    rows = narrowed(model.layers, demands, training.micro_batch)
    crossing = activation_sizes((size for _, _, size in model.edges), model.element_bytes, training)
    sizes = layer_sizes(rows, model.element_bytes, training)
    edges = tuple(Edge(one, other, size) for (one, other, _), size in zip(model.edges, crossing, strict=True))
    sources = _sources(rows, edges)
    servers = lessened(written.cluster.servers, demands)
    classes = tuple(dict.fromkeys(server.device_class for server in servers))
    check_measured(rows, classes, cost)
    products = dict(zip((layer.name for layer in rows), backward_products(rows, model.ties), strict=True))
    predictor = Predictor(training, cost, model.element_bytes, products)
    passes = [[predictor.passes_ns(layer, one) for layer in rows] for one in classes]
    least = [[predictor.least_ns(layer, one) for layer in rows] for one in classes]
    return {
        "name": model.name,
        "layers": rows,
        "edges": edges,
        "form_edges": _form_edges(rows, edges, sources),
        "sources": sources,
        "servers": servers,
        "links": written.cluster.links,
        "device_classes": classes,
        "predictor": predictor,
        "forward_ns": tuple(tuple(forward for forward, _ in row) for row in passes),
        "backward_ns": tuple(tuple(backward for _, backward in row) for row in passes),
        "least_forward_ns": tuple(tuple(forward for forward, _ in row) for row in least),
        "least_backward_ns": tuple(tuple(backward for _, backward in row) for row in least),
        "demands": demands,
        "copies": copies_of(model.ties, len(rows), model.element_bytes, training),
        "lent_bytes": lent_bytes(edges, sizes["output_bytes"], sizes["stash_bytes"], demands.recompute_layers),
        **sizes,
    }


def check_goals(goals: tuple[Goal, ...], constraints: Constraints, cost: CostModel, training: Training) -> None:
    """Raise ValueError for no goal, a goal twice, or a time that cost model or schedule do not have."""
    schedule = training.schedule
    if not goals or len(set(goals)) < len(goals):
        raise ValueError(f"goals are {', '.join(goals) or 'none'}, expected one or more different ones")
    judged = {*goals, *(limit.goal for limit in constraints.at_most)}
    if Goal.ITERATION_TIME in judged and cost.combine is not Combine.MAX:
        raise ValueError("iteration_time is paced by the slowest stage: it needs cost.combine 'max', not 'sum'")
    if Goal.ITERATION_TIME in judged and (training.chunks > 1 or schedule.in_halves):
        about = "whole backward passes" if schedule.in_halves else "stages on devices of their own"
        found = f"the schedule is {schedule}" if schedule.in_halves else f"training.chunks is {training.chunks}"
        raise ValueError(f"iteration_time: the formula is about {about}, and {found}; ask for step_time")
    if Goal.STEP_TIME in judged and not schedule.flushes:
        raise ValueError(f"step_time: no step ends under {schedule}, which runs without a flush; ask for period")
    if Goal.PERIOD in judged and schedule.flushes:
        raise ValueError(f"period: {schedule} runs empty after every step; ask for step_time")
    for limit in constraints.at_most:
        if limit.goal.executed:
            raise ValueError(
                f"at_most: no search limits the executed {limit.goal}; limit iteration_time or bottleneck"
            )


def check_measured(layers: Sequence[Layer], classes: Sequence[DeviceClass], cost: CostModel) -> None:
    """Raise ValueError where some layers were measured on a device class of the cluster and others were not.

    Measured and computed times do not mix: the unmeasured layers would be as fast as the data sheet. Curves, whose
    times depend on the form, do not go with computing that overlaps with communicating (``CostModel``).
    """
    if not any(layer.measured for layer in layers):
        return
    for one in classes:
        curved = next((layer.name for layer in layers if len(layer.measured_on(one.name)) > 1), None)
        if curved is not None and cost.stage_time is StageTime.OVERLAP:
            raise ValueError(
                f"layer {curved} is measured in several sizes on {one.name}:"
                " take cost.stage_time 'add', not 'overlap'"
            )
        known = [layer for layer in layers if layer.measured_on(one.name)]
        if known and len(known) < len(layers):
            missing = next(layer.name for layer in layers if not layer.measured_on(one.name))
            some = f"{len(known)} of {len(layers)} layers are measured on it"
            raise ValueError(f"device class {one.name}: {some}, {missing} is not")
        if not known and any(layer.measured for layer in layers) and not any(layer.macs for layer in layers):
            names = ", ".join(sorted({row.device_class for layer in layers for row in layer.measured}))
            raise ValueError(
                f"device class {one.name}: the model was measured on {names} only; name it as one of these"
            )


def _sources(layers: tuple[Layer, ...], edges: tuple[Edge, ...]) -> tuple[int | None, ...]:
    producer_of = {edge.consumer: edge.producer for edge in edges}
    sources: list[int | None] = []
    for index, layer in enumerate(layers):
        if layer.split is not Split.FOLLOW:
            sources.append(index)
        else:
            producer = producer_of.get(index)
            sources.append(None if producer is None else sources[producer])
    return tuple(sources)


def _form_edges(
    layers: tuple[Layer, ...], edges: tuple[Edge, ...], sources: tuple[int | None, ...]
) -> tuple[FormEdge, ...]:
    meeting: list[FormEdge] = []
    for edge in edges:
        source = sources[edge.producer]
        if layers[edge.consumer].split is not Split.FOLLOW and source is not None:
            meeting.append(FormEdge(source, edge.consumer, edge.size_bytes))
    return tuple(meeting)
