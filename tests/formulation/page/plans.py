"""Instances with everything that the page prices, and plans for them: good, bad, and none at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import networkx as nx
from hypothesis import strategies as st

from pipecut.formulation.constraints.constraint import Violation
from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.constraints.plans.own import Own
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph, servers_of
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, forms_on
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import FORMS_ALONG, PAIRS, Axis, Layer, Split, with_pairs
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import StageTime
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.precision import Precision
from pipecut.formulation.problem.training import Schedule, Training
from tests.generators import (
    CLASSES,
    OF_SINGLE_STAGES,
    any_costs,
    any_recomputation,
    by_blocks,
    chunked,
    cluster_graphs,
    curves,
    goals_of,
    groups,
    hosts,
    layer_graphs,
    links,
    sharded_kinds,
    warm_ups,
)
from tests.solvers.cpsat import demanded


class Case(NamedTuple):
    """A plan, and the instance that it is for."""

    instance: Instance
    plan: Plan


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any instance and plan, in one of five its groups hold several stages; one plan in ten has a mistake."""
    if draw(st.integers(0, 4)):
        instance = draw(free_instances())
        plan = draw(plans(instance))
    else:
        instance, plan = draw(chunked(any_costs))
    limits = draw(constraints(instance, plan))
    goals = draw(st.lists(st.sampled_from(_goals(instance)), min_size=1, unique=True))
    built = build_instance(
        instance.layer_graph, instance.cluster_graph, instance.training, instance.cost, limits, tuple(goals)
    )
    return Case(built, plan if draw(st.integers(0, 9)) else draw(spoilt(plan)))


@st.composite
def free_instances(draw: st.DrawFn) -> Instance:
    """An instance without constraints."""
    cost = draw(any_costs)
    layers, cluster = draw(layer_graphs(places=True)), draw(st.one_of(cluster_graphs(max_devices=6), rings()))
    layers.graph["element_bytes"] = draw(st.sampled_from([4, 4, 3]))
    cluster = draw(renewed(cluster))
    if draw(st.integers(0, 4)) == 0:
        rows = 3 if cost.stage_time is StageTime.ADD else 1
        measured = draw(st.sets(st.sampled_from(sorted({one.device_class.name for one in servers_of(cluster)}))))
        for _, row in layers.nodes(data=True):
            row["layer"] = replace(
                row["layer"],
                measured=tuple(one for name in sorted(measured) for one in draw(curves(name, rows=rows))),
            )
        _give_macs(layers)
    micro_batches, schedule = draw(st.integers(1, 4)), draw(st.sampled_from(OF_SINGLE_STAGES))
    training = Training(
        global_batch=micro_batches * draw(st.integers(1, 3)),
        micro_batches=micro_batches,
        bytes_per_element=draw(st.sampled_from([2, 4])),
        optimizer_bytes_per_parameter=draw(st.sampled_from([0, 4, 7])),
        schedule=schedule,
        warm_up=draw(warm_ups) if schedule is Schedule.ONE_F_ONE_B else "classic",
        precision=draw(
            st.none()
            | st.sampled_from(list(Precision.presets().values()))
            | st.sampled_from([Precision(3, 5, 1, 0), Precision(2, 2, 2, 8, Fraction(3, 8))])
        ),
    )
    return build_instance(layers, cluster, training, cost)


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
    found = goals_of(instance.cost, instance.training.schedule)
    return [one for one in found if one is not Goal.ITERATION_TIME or instance.training.chunks == 1]


@st.composite
def constraints(draw: st.DrawFn, instance: Instance, plan: Plan) -> Constraints:
    """Demands of any kind, modes of stages, and limits at what the plan needs or just below."""
    found = (
        draw(demanded.constraints(instance)) if draw(st.booleans()) else Constraints(memory=draw(st.booleans()))
    )
    limited = draw(
        st.sets(
            st.sampled_from([one for one in _goals(instance) if one not in (Goal.STEP_TIME, Goal.PERIOD)]),
            max_size=2,
        )
    )
    at_most = [
        GoalLimit(goal, max(0, needed(instance, plan, goal) - draw(st.integers(0, 1)))) for goal in sorted(limited)
    ]
    longest = max(len(stage.span) for stage in plan.stages)
    pairs = draw(st.booleans()) or any(stage.group.mode.grid > 1 for stage in plan.stages)
    again = by_blocks if any(stage.again for stage in plan.stages) else st.nothing()
    return replace(
        found,
        placement=draw(st.sampled_from(Placement)),
        max_servers=draw(st.sampled_from([None, None, 1, 2])),
        tensor_parallel_degrees=tuple(draw(st.sets(st.integers(1, 4)))),
        **draw(st.one_of(again, any_recomputation)),
        memory_margin=draw(st.sampled_from([Fraction(0), Fraction(0), Fraction(1, 20), Fraction(1, 3)])),
        splits=(*draw(st.sets(st.sampled_from(tuple(FORMS_ALONG)))), *[Axis.PAIRS] * pairs),
        sharded=draw(sharded_kinds),
        optimizer_on_host=draw(hosts),
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
            group = Group(counts, replace(group.mode, replicas=replicas))
        group = draw(gridded(group))
        any_form, grid = draw(st.integers(0, 9)) == 0, group.mode.grid > 1
        forms = tuple(
            draw(
                st.sampled_from(
                    (0, 1, 2, 3, 4, 6, *PAIRS)[: None if grid else 6]
                    if any_form
                    else offered(instance.layers[layer], group)
                )
            )
            for layer in range(first, stop)
        )
        stages.append(Stage(Span(first, stop), group, forms, again=draw(runs(instance, Span(first, stop), group))))
    if instance.training.warm_up == "classic" or draw(st.booleans()):
        return Plan(tuple(stages))
    own = sorted(draw(st.lists(st.integers(1, 4), min_size=len(stages), max_size=len(stages))), reverse=True)
    return Plan(tuple(replace(stage, warm_up=many) for stage, many in zip(stages, own, strict=True)))


@st.composite
def gridded(draw: st.DrawFn, group: Group) -> Group:
    """The group, with the devices of its replicas in a grid where they can be, mostly."""
    degree = group.tensor_parallel_degree
    rows = [row for row in range(2, degree) if degree % row == 0]
    return replace(group, mode=replace(group.mode, grid=draw(st.sampled_from([*rows, *rows, 1]))))


@st.composite
def runs(draw: st.DrawFn, instance: Instance, span: Span, group: Group) -> tuple[Span, ...]:
    """Blocks of a stage that are computed again: mostly of one that keeps activations, and mostly whole ones."""
    if draw(st.booleans()) or (group.mode.recompute and draw(st.integers(0, 9))):
        return ()
    blocks = [Span(*ends) for ends in CutSpace.of(instance).atoms()]
    inside = [one for one in blocks if span.first <= one.first and one.stop <= span.stop]
    found = [one for one in inside if draw(st.booleans())]
    if draw(st.integers(0, 9)) == 0:
        found[-1:] = [Span(span.first, span.stop)]
    return tuple(found)


def offered(layer: Layer, group: Group) -> tuple[int, ...]:
    """The forms that a layer may take on a group, in a grid with pairs of them."""
    if layer.split is Split.FOLLOW:
        return (0,)
    layer = replace(layer, allowed_forms=with_pairs(layer.allowed_forms))
    return forms_on(layer, group) or layer.allowed_forms


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
                replace(stage, group=Group(group.counts, replace(group.mode, recompute=not group.mode.recompute))),
                replace(stage, span=Span(span.first, span.stop - 1)),
                replace(stage, span=Span(span.first, span.stop + 1)),
                replace(stage, forms=stage.forms[1:]),
                replace(stage, forms=(*stage.forms[1:], 34)),
                replace(stage, group=Group(group.counts, replace(group.mode, grid=5))),
                replace(stage, group=Group(group.counts, replace(group.mode, grid=1))),
                replace(stage, group=Group(group.counts, Mode(0))),
                replace(stage, group=Group(group.counts, Mode(group.devices + 1))),
                replace(stage, group=Group(((0, 3),), Mode(2))),
                replace(stage, group=Group(())),
                replace(stage, group=Group(((0, 0), *group.counts[1:]))),
                replace(stage, group=Group(((99, 1),))),
                replace(stage, group=Group(((0, 9),))),
                replace(stage, warm_up=0),
                replace(stage, warm_up=3),
                replace(stage, again=(span, span)),
                replace(stage, again=(Span(span.first, span.first),)),
                replace(stage, again=(Span(span.first, span.stop + 1),)),
            ]
        )
    )
    return Plan((*plan.stages[:at], bad, *plan.stages[at + 1 :]))
