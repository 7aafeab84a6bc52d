"""The complete, frozen, numeric problem: what a solver gets and all that it gets.

An instance is made from two networkx graphs and option records by :func:`build_instance`. Layers
are numbered 0..N-1 in pipeline order, servers 0..V-1 in line order, and every quantity is per micro-batch.

How large the numbers of an instance may be: asked once, when it is made, so that nothing below can overflow.

Solvers count in 64 bits. The largest sums that any of them forms are those of everything at its dearest: all
layers of a micro-batch one after another, a step of such micro-batches, the bytes of the whole model with all its
copies on one device, the price of the whole cluster. Each is bounded here from above, in integers of any size.
Where a solver multiplies beyond that it divides first (``solvers.cpsat.model``: areas, by their unit), and CP-SAT
itself refuses a model with larger sums (``solvers.cpsat.engine``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from operator import attrgetter
from typing import Any

import networkx as nx

from pipecut.formulation.predictor.layer_times import Predictor
from pipecut.formulation.problem.cluster import Cluster, DeviceClass, Server
from pipecut.formulation.problem.constraints import Constraints, Demands, Goal, OnHost, Recompute, Sharded
from pipecut.formulation.problem.demands import lessened, narrowed, resolve, with_memory
from pipecut.formulation.problem.layers import FORMS, Edge, FormEdge, Layer, LayerGraph, Split
from pipecut.formulation.problem.options import AllReduce, Combine, Compute, CostModel, StageTime
from pipecut.formulation.problem.precision import (
    NOTHING_COPIED,
    Copy,
    activation_sizes,
    backward_products,
    copies_of,
    layer_sizes,
    lent_bytes,
)
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import BITS_PER_BYTE, NS_PER_SECOND, Link, ceil_div, ceil_fraction, slowest

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
    find, firsts = instance.predictor.most_ns, {at: instance.layers[at] for at in instance.alike}
    most = [{at: find(layer, one) for at, layer in firsts.items()} for one in instance.device_classes]
    by_class = [[runs * row[at][0] + row[at][1] for at in instance.alike] for row in most]
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
    lent = made if instance.constraints.recompute.by_blocks else sum(instance.lent_bytes)
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
    ``others`` and ``priced`` keep what was asked for once: the instances that differ in their training alone
    (:meth:`trained`), and prices of layers, stages and cuts (``costs.once``).
    ``updated_bytes`` are the weights that are trained, ``sent_bytes`` those of ``Across``. ``alike[l]`` is the
    first layer that differs from layer ``l`` in nothing but its name and where it stands.

    Raises ValueError where the parts do not make a problem, where the constraints name what they do not have, and
    where its numbers are so large that sums of them could leave 64 bits (``formulation.problem.instance``).
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
    alike: tuple[int, ...] = field(init=False, repr=False)
    others: dict[Training, Instance] = field(init=False, repr=False, compare=False, default_factory=dict)
    priced: dict[Any, dict[Any, Any]] = field(init=False, repr=False, compare=False, default_factory=dict)
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

    def copied(self, layer: int, first: int) -> Copy | None:
        """Return what a layer copies in a stage that starts at layer ``first``; None if nothing."""
        found = self.copies[layer]
        return found if found is not None and found.earlier < first else None

    def trains(self, layer: int) -> bool:
        """Tell whether a layer makes gradients of weights, its own or those that it shares with an earlier one."""
        return self.gradient_bytes[layer] + (self.copies[layer] or NOTHING_COPIED).gradient_bytes > 0

    def trained(self, training: Training) -> Instance:
        """Return the instance with another training: the same one whenever it is asked for."""
        known = self.others.get(training)
        return known or self.others.setdefault(training, replace(self, training=training))

    def class_index(self, server: int) -> int:
        """Return the index of a server's device class in ``device_classes``."""
        return self.device_classes.index(self.servers[server].device_class)


def build_instance(
    layers: nx.DiGraph | LayerGraph,
    cluster: nx.Graph | Cluster,
    training: Training,
    cost: CostModel,
    constraints: Constraints | None = None,
    goals: tuple[Goal, ...] = (Goal.BOTTLENECK,),
) -> Instance:
    """Turn a layer graph and a cluster graph into the numeric problem; graphs of networkx are copied.

    Byte counts of the graph, taken in ``element_bytes`` per element, are scaled to ``bytes_per_element`` of the
    training and multiplied by the micro-batch. Without ``goals`` the bottleneck is minimised, by which papers
    compare; what is minimised where a user says nothing is ``formulation.problem.options.default_goals``. Raises
    ValueError as :class:`Instance` does.
    """
    return Instance(
        model=layers if isinstance(layers, LayerGraph) else LayerGraph.of(layers),
        cluster=cluster if isinstance(cluster, Cluster) else Cluster.of(cluster),
        training=training,
        cost=cost,
        constraints=constraints or Constraints(),
        goals=goals,
    )


def _derived(written: Instance) -> dict[str, object]:
    """Return every derived field of an instance from those that a user writes."""
    model, training, cost = written.model, written.training, written.cost
    elements = training.elements
    demands = resolve(written.constraints, model, written.cluster.servers)
    rows = narrowed(model, demands, training.micro_batch)
    crossing = activation_sizes(
        (size for _, _, size in model.edges), model.element_bytes, elements, training.micro_batch
    )
    sizes = layer_sizes(rows, model.element_bytes, elements, training.micro_batch)
    edges = tuple(Edge(one, other, size) for (one, other, _), size in zip(model.edges, crossing, strict=True))
    sources = _sources(rows, edges)
    servers = lessened(written.cluster.servers, demands)
    classes = tuple(dict.fromkeys(server.device_class for server in servers))
    check_measured(rows, classes, cost)
    products = dict(zip((layer.name for layer in rows), backward_products(rows, model.ties), strict=True))
    predictor = Predictor(training, cost, model.element_bytes, products)
    copies = copies_of(model.ties, len(rows), model.element_bytes, elements)
    lent = lent_bytes(edges, sizes["output_bytes"], sizes["stash_bytes"], demands.recompute_layers)
    again = [at in demands.recompute_layers for at in range(len(rows))]
    copied = [copy and replace(copy, earlier=at - copy.earlier) for at, copy in enumerate(copies)]
    alike = _alike(
        zip(map(ALL_BUT_NAME, rows), products.values(), copied, lent, again, *sizes.values(), strict=True)
    )
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
        "demands": demands,
        "copies": copies,
        "lent_bytes": lent,
        "alike": alike,
        **sizes,
        **_passes(predictor, {at: rows[at] for at in alike}, classes, alike),
    }


def _passes(
    predictor: Predictor, firsts: Mapping[int, Layer], classes: Sequence[DeviceClass], alike: Sequence[int]
) -> dict[str, object]:
    """Return the times of layers by class, those that are alike found once."""
    found = dict[str, object]()
    for start, ask in (("", predictor.passes_ns), ("least_", predictor.least_ns)):
        both = [{at: ask(layer, one) for at, layer in firsts.items()} for one in classes]
        for which, name in enumerate(("forward_ns", "backward_ns")):
            found[start + name] = tuple(tuple(row[at][which] for at in alike) for row in both)
    return found


ALL_BUT_NAME = attrgetter(*(one.name for one in fields(Layer) if one.name != "name"))


def _alike(rows: Iterable[tuple[object, ...]]) -> tuple[int, ...]:
    """Return for each layer the first one of which everything is the same."""
    known = dict[tuple[object, ...], int]()
    return tuple(known.setdefault(row, at) for at, row in enumerate(rows))


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


def with_servers(instance: Instance, servers: Sequence[Server]) -> Instance:
    """Return the instance with other amounts of memory on its servers, given as it has them: without its reserves.

    Without its margin, too: of all amounts that leave so much the least. Raises ValueError where anything but
    memory differs.
    """
    for old, new in zip(instance.servers, servers, strict=True):
        size = old.device_class.memory_bytes
        if replace(new, device_class=replace(new.device_class, memory_bytes=size)) != old:
            raise ValueError(f"server {old.name}: more than its memory differs from {new}")
    reserve, margin = dict(instance.demands.reserve), instance.demands.memory_margin
    sizes = [ceil_fraction(row.device_class.memory_bytes * (1 + margin)) for row in servers]
    whole = with_memory(servers, (size + reserve.get(at, 0) for at, size in enumerate(sizes)))
    return replace(instance, cluster=replace(instance.cluster, servers=whole))
