"""Hypothesis strategies for small random instances, used by the tests of every room.

Sizes are chosen so that computation, synchronisation of weights, changes of layout and boundaries all take
times of the same order: instances where one of them always wins would let wrong formulas for the others pass.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from typing import Any

import networkx as nx
from hypothesis import assume
from hypothesis import strategies as st

from pipecut.formulation.predictor.curves import Measured
from pipecut.formulation.predictor.roofline import Product, Roofline, Work
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import RECOMPUTED, Constraints, Goal, OnHost, Recompute, Sharded
from pipecut.formulation.problem.groups import Group, GroupKind, forms_on
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import FORMS, FORMS_ALONG, Across, Axis, Layer, Split, layer_graph
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import (
    AllReduce,
    Boundary,
    BoundaryCharge,
    Combine,
    Compute,
    CostModel,
    Count,
    Samples,
    Sharing,
    StageTime,
    Synchronisation,
)
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link

CLASSES = (
    DeviceClass("slow", 6_000_000, 500_000_000, 0, Link(40_000_000, 3_000), 700_000_000),
    DeviceClass("middle", 11_000_000, 1_000_000_000, 0, Link(400_000_000), 0),
    DeviceClass("fast", 24_000_000, 3_000_000_000, 0, Link(100_000_000, 10), 2_000_000_000),
)
RESTRICTED = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2))
IN_ROWS = ((1, 3), (2, 4), (0, 3), (0, 1, 4), (1, 4), (0, 3, 4), (*FORMS, 3, 4))
"""Forms of sequence parallelism beside others, for matrix products."""

sharded_kinds = st.sampled_from(
    [
        *[(Sharded.NONE,)] * 3,
        (Sharded.NONE, Sharded.WEIGHTS),
        (Sharded.OPTIMIZER, Sharded.GRADIENTS),
        (Sharded.WEIGHTS,),
        tuple(Sharded),
    ]
)
"""What stages may divide among devices with the same weights."""
recomputation: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        *({"recompute": one} for one in Recompute if not one.by_blocks),
        *({"recompute": Recompute.ALLOWED, "recompute_layers": (one,)} for one in ("*0", "*[0245]", "*")),
    ]
)
"""Fields that say whether stages may recompute, and which layers alone. Each graph has a layer 0.

Single blocks are left out: most methods refuse them (``any_recomputation``).
"""
by_blocks: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"recompute": one, **named}
        for one in (Recompute.BLOCKS, Recompute.EVERY_BLOCK)
        for named in (*[dict[str, Any]()] * 2, {"recompute_layers": ("*[0245]",)})
    ]
)
"""Such fields of single blocks: any of them or each, all that there are or those of some layers."""
any_recomputation = st.one_of(recomputation, by_blocks)
hosts = st.sampled_from([*[OnHost.NEVER] * 3, OnHost.ALLOWED, OnHost.ALWAYS])
"""Whether stages may keep the optimiser on the host; mostly not: every choice more doubles the plans."""

tensor_bytes = st.one_of(st.integers(0, 9), st.integers(1_000, 100_000))
links = st.builds(
    Link,
    st.sampled_from([30_000_000, 100_000_000, 1_000_000_000, 100_000_000_000]),
    st.sampled_from([0, 0, 7, 100_000]),
)
sharings = st.sampled_from(
    [
        (StageTime.ADD, Samples.WHOLE),
        (StageTime.ADD, Samples.FRACTIONS),
        (StageTime.OVERLAP, Samples.FRACTIONS),
    ]
)
"""How computing and communicating combine, and what devices have of samples: what goes together."""


def priced(both: tuple[StageTime, Samples], **readings: Any) -> CostModel:
    """Return a cost model of both and of other readings."""
    return CostModel(stage_time=both[0], samples=both[1], **readings)


even_costs = st.builds(
    priced,
    sharings,
    count=st.sampled_from(Count),
    flops_per_mac=st.sampled_from([1, 2]),
    backward_factor=st.sampled_from([Fraction(2), Fraction(0), Fraction(1, 3)]),
    all_reduce=st.sampled_from(AllReduce),
    boundary=st.sampled_from(Boundary),
    boundary_charge=st.sampled_from(BoundaryCharge),
    combine=st.sampled_from(Combine),
    sharing=st.sampled_from(Sharing),
    synchronisation=st.sampled_from([*[Synchronisation.CHARGED] * 3, Synchronisation.OVERLAPPED]),
)
cost_models = st.one_of(
    even_costs,
    st.builds(
        lambda cost, inside: replace(cost, stage_time=StageTime.ADD, expert_load=Fraction(3, 2), inside=inside),
        even_costs,
        st.sampled_from(Synchronisation),
    ),
)
"""Also those in which some experts get more tokens than others, and sums are hidden."""
rooflines = st.builds(
    Roofline,
    largest=st.sampled_from([Fraction(1), Fraction(3, 7)]),
    outer=st.sampled_from([0, 5]),
    inner=st.sampled_from([0, 3]),
    unsized=st.sampled_from([Fraction(1), Fraction(2, 5)]),
    memory=st.sampled_from([Fraction(1), Fraction(1, 3)]),
    kernel_ns=st.sampled_from([0, 0, 1, 20_000]),
    update=st.sampled_from([Fraction(1), Fraction(11, 5)]),
)
any_costs = st.one_of(
    cost_models,
    st.builds(
        lambda cost, roofline: replace(
            cost, compute=Compute.ROOFLINE, roofline=roofline, stage_time=StageTime.ADD
        ),
        cost_models,
        rooflines,
    ),
)
"""Also those that see the sizes of what a device does."""
products = st.builds(
    Product,
    rows=st.integers(1, 40),
    inner=st.integers(1, 40),
    columns=st.integers(1, 40),
    copies=st.integers(1, 3),
    weighted=st.booleans(),
    read_bytes=tensor_bytes,
    written_bytes=tensor_bytes,
)
works = st.builds(
    Work,
    products=st.lists(products, max_size=2).map(tuple),
    kernels=st.integers(0, 2),
    read_bytes=tensor_bytes,
    written_bytes=tensor_bytes,
)


@st.composite
def curves(draw: st.DrawFn, device_class: str, *, rows: int = 4) -> tuple[Measured, ...]:
    """Times measured on a device class, in one size or several."""
    sizes = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=rows, unique=True))
    times = st.integers(0, 400_000)
    return tuple(Measured(device_class, samples, draw(times), draw(times), width) for samples, width in sizes)


OF_SINGLE_STAGES = tuple(one for one in Schedule if not one.in_a_v)
"""Schedules of groups that hold one stage each; the others are those of :func:`chunked`."""
whole_passes = st.sampled_from([one for one in Schedule if not one.in_halves])
"""Schedules under which the stages behind a stage alone say what it keeps."""


def goals_of(cost: CostModel, schedule: Schedule) -> list[Goal]:
    """Return the goals that a cost model and a schedule know."""
    unknown = {Goal.PERIOD if schedule.flushes else Goal.STEP_TIME}
    if cost.combine is not Combine.MAX or schedule.in_halves:
        unknown.add(Goal.ITERATION_TIME)
    return [goal for goal in Goal if goal not in unknown]


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    """Up to 3 micro-batches of up to 3 samples, in 2 or 4 bytes an element."""
    micro_batches = draw(st.integers(1, 3))
    return Training(
        global_batch=micro_batches * draw(st.integers(1, 3)),
        micro_batches=micro_batches,
        bytes_per_element=draw(st.sampled_from([2, 4])),
    )


warm_ups: st.SearchStrategy[Any] = st.sampled_from(["classic", "classic", "eager", "choose"]) | st.lists(
    st.integers(1, 5), min_size=1, max_size=4
).map(lambda drawn: tuple(sorted(drawn, reverse=True)))
"""How stages warm up under 1F1B."""


@st.composite
def layer_graphs(
    draw: st.DrawFn,
    max_layers: int = 5,
    splits: tuple[Split, ...] = tuple(Split),
    places: bool = False,
    tied: bool = True,
    branching: bool = False,
) -> nx.DiGraph:
    """Chains and skips: FOLLOW with and without weights, JOIN, restricted forms, layers without a producer.

    With ``branching`` layers need not read the one before them, so that most graphs have several orders. With
    ``places`` every other model can be cut at some layers only. With ``tied`` some layers of every other model
    share weights.
    """
    layers: list[Layer] = []
    edges: list[tuple[str, str, int]] = []
    for index in range(draw(st.integers(1, max_layers))):
        split = draw(st.sampled_from(splits))
        layers.append(_layer(draw, f"layer{index}", split))
        for producer in _producers(draw, index, split, branching):
            edges.append((f"layer{producer}", f"layer{index}", draw(tensor_bytes)))
    cuts = None
    if places and draw(st.booleans()):
        cuts = sorted(draw(st.sets(st.sampled_from([layer.name for layer in layers[1:]])))) if layers[1:] else []
    graph = layer_graph("random", layers, edges, cuts=cuts)
    graph.graph["ties"] = tuple(draw(ties(layers))) if tied and draw(st.booleans()) else ()
    return graph


@st.composite
def ties(draw: st.DrawFn, layers: list[Layer]) -> list[tuple[tuple[str, ...], int, int]]:
    """Up to two groups of layers that share weights, among them layers of several groups."""
    found: list[tuple[tuple[str, ...], int, int]] = []
    begun: set[int] = set()
    weighted = [at for at, layer in enumerate(layers[:-1]) if layer.parameter_bytes]
    for first in draw(st.sets(st.sampled_from(weighted), max_size=2)) if weighted else ():
        later = draw(st.sets(st.integers(first + 1, len(layers) - 1), min_size=1, max_size=3))
        size = layers[first].parameter_bytes
        shared = draw(st.sampled_from([size, size // 2]))
        known = layers[first].trained_bytes
        trained = draw(st.sampled_from([min(shared, known), max(0, shared - (size - known))]))
        if first not in begun:
            found.append((tuple(layers[at].name for at in (first, *sorted(later))), shared, trained))
        begun.add(first)
    return found


forms_of = {
    False: st.one_of(st.just(FORMS), st.sampled_from(RESTRICTED)),
    True: st.one_of(st.just(FORMS), st.sampled_from(RESTRICTED), st.sampled_from((FORMS, *IN_ROWS))),
}
"""Which forms a layer may take; True: a matrix product."""


@st.composite
def acrosses(draw: st.DrawFn, matrix: bool, forms: tuple[int, ...]) -> Across | None:
    """What a layer with these forms may do across its rows or columns, and often nothing."""
    axis = draw(st.sampled_from([None, None, Axis.EXPERTS] if matrix else [None, None, *tuple(FORMS_ALONG)[1:]]))
    if axis is None:
        return None
    if axis is Axis.VOCABULARY:
        return Across(axis, sent_bytes=draw(tensor_bytes))
    return Across(axis, draw(st.sampled_from([0, 0, 2, 3])), 0 if axis is Axis.EXPERTS else draw(tensor_bytes))


def _layer(draw: st.DrawFn, name: str, split: Split) -> Layer:
    matrix, follow = split is Split.MATRIX, split is Split.FOLLOW
    weights = draw(tensor_bytes if matrix else st.one_of(st.just(0), tensor_bytes))
    forms = FORMS if follow else draw(forms_of[matrix])
    across = None if follow else draw(acrosses(matrix, forms))
    along = FORMS_ALONG[across.axis] if across and draw(st.booleans()) else ()
    return Layer(
        name=name,
        operator="any",
        split=split,
        parameter_bytes=weights,
        input_bytes=draw(tensor_bytes),
        output_bytes=draw(tensor_bytes),
        stash_bytes=draw(tensor_bytes),
        macs=draw(st.integers(0, 1_000_000)) if matrix else 0,
        torchstat_flops=draw(st.integers(0, 1_000_000)),
        trainable_bytes=draw(st.sampled_from([None, None, None, 0, weights // 2])),
        backward=draw(st.sampled_from([True, True, True, False])),
        allowed_forms=(*forms, *along),
        work=draw(st.none() | works),
        across=across,
    )


def _producers(draw: st.DrawFn, index: int, split: Split, branching: bool) -> set[int]:
    if index == 0 or draw(st.integers(0, 9)) == 0:
        return set()
    any_before = st.integers(0, index - 1)
    if branching:
        return draw(st.sets(any_before, min_size=1, max_size=1 if split is Split.FOLLOW else 2))
    if split is Split.FOLLOW:
        return {draw(st.one_of(st.just(index - 1), any_before))}
    return {index - 1} | draw(st.sets(any_before, max_size=2))


@st.composite
def cluster_graphs(draw: st.DrawFn, max_devices: int = 4, max_servers: int = 3) -> nx.Graph:
    """One to three servers of one to three classes, in a full mesh or around a switch; some have adapters."""
    servers: list[Server] = []
    left = max_devices
    shared = draw(st.booleans())
    for index in range(draw(st.integers(1, min(max_servers, max_devices)))):
        if left == 0:
            break
        devices = draw(st.integers(1, min(3, left)))
        link = draw(links) if devices > 1 else None
        adapters = draw(st.integers(0, devices)) if shared else 0
        servers.append(Server(f"server{index}", draw(st.sampled_from(CLASSES)), devices, link, adapters))
        left -= devices
    names = [server.name for server in servers]
    if draw(st.booleans()):
        return cluster_graph("star", servers, [(name, "switch", draw(links)) for name in names], ["switch"])
    pairs = [(one, other) for at, one in enumerate(names) for other in names[:at]]
    return cluster_graph("mesh", servers, [(*pair, draw(links)) for pair in pairs])


@st.composite
def typed_clusters(draw: st.DrawFn, max_devices: int = 6, max_servers: int = 4) -> nx.Graph:
    """Servers of up to three types in any order: types say what servers and the links between them are.

    Servers of one type have the same links to all others, whatever else may tell them apart.
    """
    types = draw(st.sampled_from([2, 2, 3, 1]))
    within = {
        pair: draw(links)
        for one in range(types)
        for pair in ((one, one, "in"), *((one, two) for two in range(types)))
    }
    made = [
        (draw(st.integers(1, 3)), draw(st.sampled_from(CLASSES)), draw(st.integers(0, 2))) for _ in range(types)
    ]
    servers: list[Server] = []
    of: list[int] = []
    for one in draw(st.lists(st.integers(0, types - 1), min_size=3, max_size=max_servers)):
        devices, kind, adapters = made[one]
        if sum(server.devices for server in servers) + devices <= max_devices:
            link = within[one, one, "in"] if devices > 1 else None
            servers.append(Server(f"server{len(servers)}", kind, devices, link, min(adapters, devices)))
            of.append(one)
    pairs = itertools.combinations(range(len(servers)), 2)
    joined = [(servers[a].name, servers[b].name, within[min(of[a], of[b]), max(of[a], of[b])]) for a, b in pairs]
    return cluster_graph("typed", servers, joined)


@st.composite
def flat_clusters(draw: st.DrawFn, max_devices: int = 4) -> nx.Graph:
    """One server: one class of devices and one link."""
    devices = draw(st.integers(1, max_devices))
    return cluster_graph("flat", [Server("server0", draw(st.sampled_from(CLASSES)), devices, draw(links))], [])


@st.composite
def instances(
    draw: st.DrawFn,
    layers: st.SearchStrategy[nx.DiGraph] | None = None,
    clusters: st.SearchStrategy[nx.Graph] | None = None,
    costs: st.SearchStrategy[CostModel] = any_costs,
) -> Instance:
    """Small random instances; every part can be replaced."""
    return build_instance(
        draw(layers if layers is not None else layer_graphs()),
        draw(clusters if clusters is not None else cluster_graphs()),
        draw(trainings()),
        draw(costs),
    )


@st.composite
def groups(draw: st.DrawFn, instance: Instance) -> Group:
    """Draw any device group of an instance's cluster, on the line or not."""
    counts = [draw(st.integers(0, server.devices)) for server in instance.servers]
    if not any(counts):
        counts[draw(st.integers(0, len(counts) - 1))] = 1
    replicas = draw(st.sampled_from([one for one in range(1, sum(counts) + 1) if sum(counts) % one == 0]))
    held = tuple((server, count) for server, count in enumerate(counts) if count)
    return Group(
        held,
        Mode(replicas, draw(st.sampled_from(RECOMPUTED)), draw(st.sampled_from(Sharded)), draw(st.booleans())),
    )


@st.composite
def on_grids(draw: st.DrawFn) -> tuple[Instance, tuple[Group, ...]]:
    """An instance whose layers may be split by two forms at once, and groups on which they can be.

    Up to three replicas of 2 x 2, 2 x 3, 3 x 2 or 4 x 2 devices, in servers of up to four.
    """
    rows, columns = draw(st.sampled_from([(2, 2), (2, 3), (3, 2), (4, 2)]))
    replicas = draw(st.sampled_from([1, 1, 2, 3]))
    servers, left = list[Server](), rows * columns * replicas
    while left:
        devices = draw(st.integers(1, min(4, left)))
        link = draw(links) if devices > 1 else None
        classes = st.sampled_from(CLASSES[: draw(st.integers(1, 3))])
        servers.append(
            Server(f"server{len(servers)}", draw(classes), devices, link, draw(st.integers(0, devices)))
        )
        left -= devices
    names = [server.name for server in servers]
    pairs = [(one, other, draw(links)) for at, one in enumerate(names) for other in names[:at]]
    instance = build_instance(
        draw(layer_graphs(max_layers=4)),
        cluster_graph("grid", servers, pairs),
        draw(trainings()),
        draw(any_costs),
        Constraints(splits=(*draw(st.sets(st.sampled_from(tuple(FORMS_ALONG)))), Axis.PAIRS)),
    )
    rest = draw(st.sampled_from(RECOMPUTED)), draw(st.sampled_from(Sharded)), draw(st.booleans())
    counts = tuple((at, server.devices) for at, server in enumerate(servers))
    found = Group(counts, Mode(replicas, *rest, rows)), Group(counts, Mode(replicas, *rest))
    # No stage is in a mode in which a layer of the model has no form.
    assume(all(forms_on(row, group) for row in instance.layers for group in found))
    return instance, found


@st.composite
def chunked(draw: st.DrawFn, costs: st.SearchStrategy[CostModel]) -> tuple[Instance, Plan]:
    """An instance whose groups hold several stages, and a plan of it that has a price, on the line or not."""
    instance = draw(instances(layer_graphs(max_layers=8), costs=costs))
    chunks, ranks = draw(st.sampled_from([(2, 2), (2, 2), (3, 2), (2, 3), (2, 4)]))
    assume(len(instance.layers) >= chunks * ranks)
    micro_batches = ranks * draw(st.integers(1, 3))
    training = replace(instance.training, global_batch=micro_batches, micro_batches=micro_batches, chunks=chunks)
    if chunks == 2 and draw(st.booleans()):
        many = draw(st.integers(1, 7))
        training = replace(training, global_batch=many, micro_batches=many, schedule=Schedule.ZERO_BUBBLE_V)
    instance, depth = replace(instance, training=training), chunks * ranks
    held = [draw(groups(instance)) for _ in range(ranks)]
    each = min(held[0].devices, instance.devices // ranks)
    if each and draw(st.booleans()):  # alike, one behind another: what rules ask of them
        mode = replace(held[0].mode, replicas=each)
        held = [Group.on_line(instance, at * each, each, mode) for at in range(ranks)]
    inner = sorted(draw(st.permutations(range(1, len(instance.layers))))[: depth - 1])
    stages = []
    for at, (first, stop) in enumerate(itertools.pairwise((0, *inner, len(instance.layers)))):
        group = held[training.rank_of(at, depth)]
        allowed = (forms_on(row, group) or row.allowed_forms for row in instance.layers[first:stop])
        stages.append(Stage(Span(first, stop), group, tuple(draw(st.sampled_from(one)) for one in allowed)))
    return instance, Plan(tuple(stages))


def divisible(instance: Instance) -> bool:
    """Tell whether every layer has a form on any number of devices: published planners try all numbers."""
    numbers = range(2, instance.devices + 1)
    kinds = [GroupKind(number, (0,), None) for number in numbers]
    return all(row.split is Split.FOLLOW or forms_on(row, kind) for row in instance.layers for kind in kinds)
