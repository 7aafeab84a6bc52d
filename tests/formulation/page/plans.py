"""Instances with everything that the page prices, and plans for them: good, bad, and none at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import networkx as nx
from hypothesis import strategies as st

from formulation.constraints.plans.at_most import GoalLimit
from formulation.constraints.plans.own import Own
from formulation.constraints.violation import Violation
from formulation.evaluate import evaluate
from formulation.problem.cluster import DeviceClass, Server, cluster_graph, servers_of
from formulation.problem.groups import Group
from formulation.problem.instance import Instance, build_instance
from formulation.problem.layers import Layer, Measured, Split
from formulation.problem.modes import Mode
from formulation.problem.options import Combine, Constraints, Goal, Placement, Recompute, Schedule, Training
from formulation.problem.plan import Plan, Span, Stage
from formulation.problem.precision import PRESETS, Precision
from tests.generators import CLASSES, cluster_graphs, cost_models, groups, layer_graphs, links
from tests.solvers.cpsat import demanded


class Case(NamedTuple):
    """A plan, and the instance that it is for."""

    instance: Instance
    plan: Plan


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any instance and plan; one plan in ten has something that takes its price away."""
    instance = draw(free_instances())
    plan = draw(plans(instance))
    limits = draw(constraints(instance, plan))
    goals = draw(st.lists(st.sampled_from(_goals(instance)), min_size=1, unique=True))
    built = build_instance(
        instance.layer_graph, instance.cluster_graph, instance.training, instance.cost, limits, tuple(goals)
    )
    return Case(built, plan if draw(st.integers(0, 9)) else draw(spoilt(plan)))


@st.composite
def free_instances(draw: st.DrawFn) -> Instance:
    """An instance without constraints."""
    layers, cluster = draw(layer_graphs(places=True)), draw(st.one_of(cluster_graphs(max_devices=6), rings()))
    layers.graph["element_bytes"] = draw(st.sampled_from([4, 4, 3]))
    cluster = draw(renewed(cluster))
    if draw(st.integers(0, 4)) == 0:
        measured = draw(st.sets(st.sampled_from(sorted({one.device_class.name for one in servers_of(cluster)}))))
        for _, row in layers.nodes(data=True):
            row["layer"] = replace(row["layer"], measured=tuple(draw(times(name)) for name in sorted(measured)))
        _give_macs(layers)
    micro_batches = draw(st.integers(1, 4))
    training = Training(
        global_batch=micro_batches * draw(st.integers(1, 3)),
        micro_batches=micro_batches,
        bytes_per_element=draw(st.sampled_from([2, 4])),
        optimizer_bytes_per_parameter=draw(st.sampled_from([0, 4, 7])),
        schedule=draw(st.sampled_from(Schedule)),
        precision=draw(st.none() | st.sampled_from(list(PRESETS.values())) | st.just(Precision(3, 5, 1, 0))),
    )
    return build_instance(layers, cluster, training, draw(cost_models))


def times(device_class: str) -> st.SearchStrategy[Measured]:
    """Times measured on a device class."""
    some = st.integers(0, 10**6)
    return st.builds(Measured, st.just(device_class), st.integers(1, 4), some, some)


def _give_macs(layers: nx.DiGraph) -> None:
    """A model with measured times has a price on other classes only if something can be counted."""
    first = next(iter(layers.nodes))
    layers.nodes[first]["layer"] = replace(layers.nodes[first]["layer"], macs=77_777)


@st.composite
def rings(draw: st.DrawFn) -> nx.Graph:
    """Servers and switches in a ring, with some chords: most pairs have several paths and no link of their own."""
    servers = [
        Server(f"server{at}", draw(st.sampled_from(CLASSES)), count, draw(links) if count > 1 else None)
        for at, count in enumerate(draw(st.lists(st.integers(1, 2), min_size=2, max_size=4)))
    ]
    switches = [f"switch{at}" for at in range(draw(st.integers(1, 3)))]
    around = draw(st.permutations([*(server.name for server in servers), *switches]))
    drawn = {frozenset(pair) for pair in zip(around, [*around[1:], around[0]], strict=True)}
    drawn |= {frozenset(draw(st.permutations(around))[:2]) for _ in range(draw(st.integers(0, 2)))}
    pairs = sorted(tuple(sorted(pair)) for pair in drawn)
    return cluster_graph("ring", servers, [(one, other, draw(links)) for one, other in pairs], switches)


@st.composite
def renewed(draw: st.DrawFn, cluster: nx.Graph) -> nx.Graph:
    """The same cluster with prices, and with memories of the size of these layers."""
    classes: dict[DeviceClass, DeviceClass] = {}
    for one in sorted({server.device_class for server in servers_of(cluster)}, key=lambda one: one.name):
        memory = draw(st.sampled_from([200_000, 1_000_000, 5_000_000]))
        classes[one] = replace(one, memory_bytes=memory, price_per_hour=draw(st.integers(0, 9)))
    servers = [replace(row, device_class=classes[row.device_class]) for row in servers_of(cluster)]
    drawn = [(one, other, link) for one, other, link in cluster.edges(data="link")]
    return cluster_graph("renewed", servers, drawn, set(cluster) - {server.name for server in servers})


def _goals(instance: Instance) -> list[Goal]:
    return [goal for goal in Goal if goal is not Goal.ITERATION_TIME or instance.cost.combine is Combine.MAX]


@st.composite
def constraints(draw: st.DrawFn, instance: Instance, plan: Plan) -> Constraints:
    """Demands of any kind, modes of stages, and limits at what the plan needs or just below."""
    found = (
        draw(demanded.constraints(instance)) if draw(st.booleans()) else Constraints(memory=draw(st.booleans()))
    )
    limited = draw(st.sets(st.sampled_from(_goals(instance)), max_size=2))
    at_most = [
        GoalLimit(goal, max(0, needed(instance, plan, goal) - draw(st.integers(0, 1)))) for goal in sorted(limited)
    ]
    longest = max(len(stage.span) for stage in plan.stages)
    return replace(
        found,
        placement=draw(st.sampled_from(Placement)),
        max_servers=draw(st.sampled_from([None, None, 1, 2])),
        tensor_parallel_degrees=tuple(draw(st.sets(st.integers(1, 4)))),
        recompute=draw(st.sampled_from(Recompute)),
        at_most=tuple(at_most),
        own=(shorter_than(longest + draw(st.integers(0, 1))),) if draw(st.booleans()) else (),
    )


def needed(instance: Instance, plan: Plan, goal: Goal) -> int:
    """The value of a goal; 0 for no plan."""
    graphs = instance.layer_graph, instance.cluster_graph
    return evaluate(build_instance(*graphs, instance.training, instance.cost, None, (goal,)), plan).objective or 0


def shorter_than(most: int) -> Own:
    """A constraint of a user's own: no stage has so many layers."""

    def check(instance: Instance, plan: Plan) -> Iterator[Violation]:
        for index, stage in enumerate(plan.stages):
            if len(stage.span) >= most:
                yield Violation("short", f"stage {index}", len(stage.span), most - 1, "layers", "too long")

    return Own("short", check, lambda variables: iter(()))


@st.composite
def plans(draw: st.DrawFn, instance: Instance) -> Plan:
    """Any stages; on the next devices of the line where there are any left, or anywhere."""
    total = len(instance.layers)
    cuts = sorted(draw(st.sets(st.integers(1, total - 1)))) if total > 1 else []
    line = [server for server, row in enumerate(instance.servers) for _ in range(row.devices)]
    if draw(st.booleans()):
        line = []
    stages: list[Stage] = []
    for first, stop in zip([0, *cuts], [*cuts, total], strict=True):
        group = draw(groups(instance))
        if line:
            taken, line = line[: group.devices], line[group.devices :]
            counts = tuple((server, taken.count(server)) for server in sorted(set(taken)))
            replicas = draw(st.sampled_from([one for one in range(1, len(taken) + 1) if len(taken) % one == 0]))
            group = Group(counts, Mode(replicas, group.recompute))
        any_form = draw(st.integers(0, 9)) == 0
        forms = tuple(
            draw(st.sampled_from((0, 1, 2) if any_form else offered(instance.layers[layer], group)))
            for layer in range(first, stop)
        )
        stages.append(Stage(Span(first, stop), group, forms))
    return Plan(tuple(stages))


def offered(layer: Layer, group: Group) -> tuple[int, ...]:
    """The forms that a layer may take on a group."""
    return (0,) if layer.split is Split.FOLLOW or group.devices == group.replicas else layer.allowed_forms


@st.composite
def spoilt(draw: st.DrawFn, plan: Plan) -> Plan:
    """A plan with one mistake in one stage that makes it none, or leaves only a rule broken."""
    at = draw(st.integers(0, len(plan.stages) - 1))
    stage = plan.stages[at]
    group, span = stage.group, stage.span
    bad = draw(
        st.sampled_from(
            [
                replace(stage, span=Span(span.first + 1, span.stop)),
                replace(stage, span=Span(span.first, span.stop - 1)),
                replace(stage, span=Span(span.first, span.stop + 1)),
                replace(stage, forms=stage.forms[1:]),
                replace(stage, forms=(*stage.forms[1:], 3)),
                replace(stage, group=Group(group.counts, Mode(0))),
                replace(stage, group=Group(group.counts, Mode(group.devices + 1))),
                replace(stage, group=Group(((0, 3),), Mode(2))),
                replace(stage, group=Group(())),
                replace(stage, group=Group(((0, 0), *group.counts[1:]))),
                replace(stage, group=Group(((99, 1),))),
                replace(stage, group=Group(((0, 9),))),
            ]
        )
    )
    return Plan((*plan.stages[:at], bad, *plan.stages[at + 1 :]))
