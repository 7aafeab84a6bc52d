"""What certificates, CP-SAT and the programmes over states all read, held by pricing every plan.

Possible groups, alike servers, states of devices, shares and cut bytes are common ground
(docs/decisions/0006-independence.md): a mistake in one would be made by all of them alike. So instances are made
on purpose, with servers that are alike and servers that differ in one thing, and every plan of them is priced
(``tests.enumerator`` reads neither possible groups nor alike servers).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from random import Random

import networkx as nx
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from pipecut.formulation.certificates.check import certifiable, verify
from pipecut.formulation.constraints.devices.reserve import Reserve
from pipecut.formulation.constraints.layers.pin import Pin
from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.costs.times import cut_bytes
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.groups import Group, GroupKind, forms_on
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import FORMS_ALONG, Axis, layer_graph
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import CostModel, Samples, Sharing
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.shares import equal_shares
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.formulation.suffixes import alike_servers
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.certifying import certify
from pipecut.solvers.cpsat.constraints import symmetry as placing
from tests.enumerator import every_plan, truth
from tests.examples import PLAIN, chain, matrix
from tests.generators import (
    OF_SINGLE_STAGES,
    any_costs,
    any_recomputation,
    goals_of,
    hosts,
    layer_graphs,
    sharded_kinds,
    trainings,
    typed_clusters,
)
from tests.laws import so_many
from tests.solvers.cpsat.demanded import SLOW
from tests.solvers.cpsat.demanded import constraints as demands

ONE = Limits(workers=1)
CARD = DeviceClass("card", 4_000, 10**9)
INSIDE, BETWEEN = Link(8 * 10**9, 3), Link(2 * 10**9, 40)
LAYERS = chain(
    [
        matrix("a", 90, 10, taken=40, made=60),
        matrix("b", 120, 60, taken=60, made=20),
        replace(matrix("c", 70, 5, taken=20), allowed_forms=(1,)),
    ],
    [60, 20],
)
TRAINING = Training(global_batch=4, micro_batches=2, schedule=Schedule.ONE_F_ONE_B)
FREE = Constraints(placement=Placement.FREE)


def cluster(*servers: Server, links: dict[tuple[int, int], Link] | None = None) -> nx.Graph:
    """A full mesh, in which some links are others."""
    pairs = itertools.combinations(range(len(servers)), 2)
    known = links or {}
    return cluster_graph(
        "made", servers, [(servers[a].name, servers[b].name, known.get((a, b), BETWEEN)) for a, b in pairs]
    )


def server(at: int, devices: int = 1, kind: DeviceClass = CARD, inside: Link = INSIDE) -> Server:
    return Server(f"s{at}", kind, devices, inside if devices > 1 else None)


def made(
    graph: nx.Graph, constraints: Constraints = FREE, cost: CostModel = PLAIN, layers: nx.DiGraph = LAYERS
) -> Instance:
    return build_instance(layers, graph, TRAINING, cost, constraints)


def without_demands(constraints: Constraints) -> Constraints:
    """Leave out what names servers."""
    return replace(constraints, pins=())


THREE = tuple(server(at) for at in range(3))
TWO_PAIRS = (server(0, 2), server(1, 2))
WITH_MEMORY = replace(FREE, memory=True)
SLOWER, LATER = Link(10**9, 40), Link(2 * 10**9, 41)


def grid_of_two(axes: tuple[Axis, ...] = (Axis.PAIRS,), layers: int = 1) -> Instance:
    """Servers 0 and 2 have the same links to all others, and stand before and behind server 1 in every group."""
    slow, fast, middle = Link(30_000_000), Link(10_000_000_000), Link(1_000_000_000)
    pairs = {(0, 1): slow, (0, 2): slow, (1, 2): slow, (0, 3): fast, (2, 3): fast, (1, 3): middle}
    graph = cluster(server(0), server(1, 2, inside=middle), server(2), server(3), links=pairs)
    rows = [matrix(f"l{at}", 2_944, 113_430, taken=64_250, made=76_771) for at in range(layers)]
    demands = replace(FREE, splits=axes, devices_per_stage=(4,))
    return made(graph, demands, CostModel(), chain(rows, [76_771] * (layers - 1)))


CASES: dict[str, tuple[Instance, list[list[int]]]] = {
    "three alike": (made(cluster(*THREE)), [[0, 1, 2]]),
    "two alike pairs": (made(cluster(*TWO_PAIRS)), [[0, 1]]),
    "pairs and replicas": (made(cluster(*TWO_PAIRS), replace(FREE, tensor_parallel_degrees=(1, 2))), [[0, 1]]),
    "one link is slower": (made(cluster(*THREE, links={(1, 2): SLOWER})), [[0], [1, 2]]),
    "one link is later": (made(cluster(*THREE, links={(0, 1): LATER})), [[0, 1], [2]]),
    "a link inside is later": (made(cluster(server(0, 2), server(1, 2, inside=Link(8 * 10**9, 4)))), [[0], [1]]),
    "one device more": (made(cluster(server(0, 2), server(1), server(2))), [[0], [1, 2]]),
    "one costs more": (
        made(cluster(server(0), server(1, kind=replace(CARD, price_per_hour=5)), server(2))),
        [[0, 2], [1]],
    ),
    "one has less memory": (
        made(cluster(server(0), server(1, kind=replace(CARD, memory_bytes=650)), server(2)), WITH_MEMORY),
        [[0, 2], [1]],
    ),
    "one reserves memory": (
        made(cluster(*THREE), replace(WITH_MEMORY, reserve=(Reserve("s2", 3_400),))),
        [[0, 1], [2]],
    ),
    "a grid tells apart": (grid_of_two(), [[0], [1], [2], [3]]),
    "one is faster": (
        made(cluster(server(0), server(1, kind=replace(CARD, flops_per_second=2 * 10**9)))),
        [[0], [1]],
    ),
}
"""Free placement: the servers that cannot be told apart."""
DEMANDED: dict[str, tuple[Instance, list[list[int]]]] = {
    "a pin": (made(cluster(*THREE), replace(FREE, pins=(Pin("b", servers=("s1",)),))), [[0, 2], [1]]),
    "a pin of two": (made(cluster(*THREE), replace(FREE, pins=(Pin("b", servers=("s1", "s2")),))), [[0], [1, 2]]),
}
"""Where only demands tell servers apart, which certificates and states do not look at."""


def exchanged(plan: Plan, one: int, other: int) -> Plan:
    """Return the plan with two servers exchanged."""
    to = {one: other, other: one}
    stages = []
    for stage in plan.stages:
        counts = tuple(sorted((to.get(at, at), count) for at, count in stage.group.counts))
        stages.append(replace(stage, group=replace(stage.group, counts=counts)))
    return Plan(tuple(stages))


def judged(instance: Instance, plan: Plan) -> tuple[object, ...]:
    """Return everything that a plan is judged by: all goals, and whether it keeps the rules."""
    found = evaluate(replace(instance, goals=tuple(goals_of(instance.cost, instance.training.schedule))), plan)
    return found.feasible, found.objective, found.further


def can_be_exchanged(instance: Instance, one: int, other: int) -> bool:
    """Price every plan, and the same with two servers exchanged."""
    if instance.servers[one].devices != instance.servers[other].devices:
        return False
    return all(
        judged(instance, plan) == judged(instance, exchanged(plan, one, other)) for plan in every_plan(instance)
    )


@pytest.mark.few("one link", "a grid", "one is faster")
@pytest.mark.parametrize(("instance", "classes"), CASES.values(), ids=CASES)
def test_servers_are_alike_exactly_if_every_plan_costs_the_same_when_they_change_places(
    instance: Instance, classes: list[list[int]]
) -> None:
    assert sorted(alike_servers(instance, Group.possible(instance))) == classes
    together = {pair for row in classes for pair in itertools.combinations(row, 2)}
    for pair in itertools.combinations(range(len(instance.servers)), 2):
        assert can_be_exchanged(instance, *pair) is (pair in together)


@st.composite
def with_twins(draw: st.DrawFn) -> Instance:
    """Servers of few types, and every way in which the devices of a group may work together."""
    plain = build_instance(
        draw(layer_graphs(max_layers=2)), draw(typed_clusters()), draw(trainings()), draw(any_costs)
    )
    asked = replace(
        draw(demands(plain)),
        placement=Placement.FREE,
        splits=(*draw(st.sets(st.sampled_from(tuple(FORMS_ALONG)))), *[Axis.PAIRS][: draw(st.integers(0, 3))]),
        tensor_parallel_degrees=draw(st.sampled_from([(), (), (), (1,), (1, 2, 4), (2, 3, 4, 6)])),
        devices_per_stage=draw(st.sampled_from([(), (4,), (4, 6), (1, 5, 6)])),
        max_servers=draw(st.sampled_from([None, None, None, 2])),
        **draw(any_recomputation),
        sharded=draw(sharded_kinds),
        optimizer_on_host=draw(hosts),
    )
    try:
        schedule = draw(st.sampled_from(OF_SINGLE_STAGES))
        return replace(plain, training=replace(plain.training, schedule=schedule), constraints=asked)
    except ValueError:  # demands that leave no form
        reject()


def drawn_plan(chance: Random, instance: Instance, groups: tuple[Group, ...]) -> Plan:
    """Return a plan on possible groups, mostly large ones; it may break rules that do not speak of one stage."""
    total = len(instance.layers)
    inner = sorted(chance.sample(range(1, total), min(chance.randrange(3), total - 1)))
    stages = []
    for first, stop in itertools.pairwise((0, *inner, total)):
        group = max(chance.choices(groups, k=3), key=lambda one: (one.mode.grid > 1, one.devices))
        forms = (forms_on(row, group) or row.allowed_forms for row in instance.layers[first:stop])
        stages.append(Stage(Span(first, stop), group, tuple(map(chance.choice, forms))))
    return Plan(tuple(stages))


@pytest.mark.slow
@settings(max_examples=so_many(100), deadline=None, suppress_health_check=SLOW)
@given(with_twins(), st.randoms(use_true_random=False))
def test_whatever_groups_may_do_a_plan_stays_the_same_when_alike_servers_change_places(
    instance: Instance, chance: Random
) -> None:
    try:
        groups = Group.possible(instance)
    except ValueError:
        reject()
    for demanded in (False, True):
        judged_by = instance if demanded else replace(instance, constraints=without_demands(instance.constraints))
        classes = alike_servers(instance, groups, demanded=demanded)
        for pair in (pair for row in classes for pair in itertools.combinations(row, 2)):
            moved = tuple(group for group in groups if len({dict(group.counts).get(at) for at in pair}) > 1)
            for plan in (drawn_plan(chance, instance, moved) for _ in range(8 if moved else 0)):
                assert judged(judged_by, plan) == judged(judged_by, exchanged(plan, *pair))


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=SLOW)
@given(with_twins())
def test_groups_that_are_told_apart_no_more_are_of_one_kind(instance: Instance) -> None:
    """Kinds are found once for groups of alike servers in the same order; here each is found by itself."""
    try:
        groups = Group.possible(instance)
    except ValueError:
        reject()
    assert GroupKind.all_of(instance, groups) == [GroupKind.of(instance, group) for group in groups]


@pytest.mark.parametrize(("instance", "classes"), DEMANDED.values(), ids=DEMANDED)
def test_the_model_tells_servers_apart_that_a_pin_tells_apart(
    instance: Instance, classes: list[list[int]]
) -> None:
    assert sorted(placing.alike_servers(instance)) == classes
    together = {pair for row in classes for pair in itertools.combinations(row, 2)}
    for pair in itertools.combinations(range(len(instance.servers)), 2):
        assert can_be_exchanged(instance, *pair) is (pair in together)


def test_a_limit_that_only_a_grid_keeps_is_not_proved_impossible() -> None:
    """Servers that a grid tells apart were exchanged, which left a group out: "there is no plan"."""
    limit = GoalLimit(Goal.BOTTLENECK, 50_000_000)
    five = grid_of_two(layers=5)
    demands = replace(five.constraints, no_cut=("*",), at_most=(limit,))
    found = find_any("cpsat").load()(replace(five, constraints=demands, goals=(Goal.DEVICES,)), ONE)
    assert (found.proof, found.objective) == (Proof.OPTIMAL, 4)


def steps(instance: Instance) -> Instance:
    return replace(instance, goals=(Goal.ITERATION_TIME,))


@pytest.mark.few("three alike", "one is faster", "a pin of two")
@pytest.mark.parametrize("name", [*CASES, *DEMANDED])
def test_every_method_finds_what_pricing_every_plan_finds(name: str) -> None:
    instance, _ = (CASES | DEMANDED)[name]
    answers = 0
    for judged_by in (instance, steps(instance), replace(instance, goals=(Goal.COST,))):
        best = truth(judged_by)
        assert best.values is not None
        for method in ("cpsat", "state_dp", "step_dp", "brute_force"):
            try:
                found = checked(judged_by, find_any(method).load()(judged_by, ONE))
            except ValueError:
                continue
            assert (method, found.objective, found.bound) == (method, best.values[0], best.values[0])
            answers += 1
    assert answers >= (6 if name in DEMANDED else 8)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", [*CASES, *DEMANDED])
def test_a_certificate_proves_what_pricing_every_plan_finds_and_no_more(name: str) -> None:
    """Demands and limits are not seen by labels: what they prove is the best plan without."""
    instance, _ = (CASES | DEMANDED)[name]
    assert certifiable(instance) is None
    best = truth(instance)
    without = truth(
        build_instance(
            instance.layer_graph,
            instance.cluster_graph,
            instance.training,
            instance.cost,
            replace(instance.constraints, pins=()),
        )
    )
    assert best.plan is not None and best.values is not None and without.values is not None
    certificate = certify(instance, best.plan, best.values[0])
    verify(instance, certificate)
    assert certificate.bound == without.values[0]


@pytest.mark.parametrize(
    ("constraints", "in_vain"),
    [
        (FREE, 0),
        (Constraints(), 0),
        (replace(FREE, max_servers=1), 0),
        (replace(FREE, devices_per_stage=(2,)), 0),
        (Constraints(devices_per_stage=(1, 3), tensor_parallel_degrees=(1,)), 0),
        (replace(FREE, tensor_parallel_degrees=(1, 2)), 0),
        (Constraints(tensor_parallel_degrees=(2,)), 1),
    ],
    ids=str,
)
def test_the_possible_groups_are_those_of_the_plans_that_keep_the_rules(
    constraints: Constraints, in_vain: int
) -> None:
    """Devices 0, 0, 1, 2 in line. In the last case nobody can take the second and third: one goes before them."""
    instance = made(cluster(server(0, 2), server(1), server(2)), constraints)
    keeping = (plan for plan in every_plan(instance) if evaluate(instance, plan).feasible)
    kept = {stage.group for plan in keeping for stage in plan.stages}
    possible = set(Group.possible(instance))
    assert kept <= possible and len(possible - kept) == in_vain


MIXED = (server(0, 2), server(1, 1, kind=replace(CARD, name="quick", flops_per_second=3 * 10**9)))


@pytest.mark.parametrize(
    ("replicas", "devices"),
    [(1, (1, 1)), (2, (1, 1)), (1, (2, 1)), (3, (2, 1))],
)
def test_proportional_shares_device_by_device(replicas: int, devices: tuple[int, int]) -> None:
    """Every device's share from the page: in proportion to speed; a replica takes the next devices."""
    instance = made(
        cluster(*MIXED),
        replace(FREE, tensor_parallel_degrees=(1, 2, 3)),
        replace(PLAIN, sharing=Sharing.PROPORTIONAL),
    )
    held = tuple((at, count) for at, count in enumerate(devices) if count)
    shares = GroupKind.of(instance, Group(held, Mode(replicas))).shares
    speeds = [speed for count, speed in zip(devices, (1, 3), strict=True) for _ in range(count)]
    each = [Fraction(speed, sum(speeds)) for speed in speeds]
    degree = len(each) // replicas
    rows = [each[at : at + degree] for at in range(0, len(each), degree)]
    assert shares.rows == shares.columns and shares.samples == 0
    assert shares.rows.by_class == (each[0], each[-1]) and shares.rows.device == max(each)
    assert shares.replica == max(sum(row) for row in rows)
    assert shares.rows.gather == max(sum(row) - one for row in rows for one in row)
    assert shares.shard == max(one / sum(row) for row in rows for one in row)
    assert shares.rows.turn == max(one * (sum(row) - one) / sum(row) for row in rows for one in row)


@pytest.mark.parametrize(("devices", "replicas"), [(4, 1), (4, 2), (4, 4), (6, 2), (6, 3), (3, 1)])
@pytest.mark.parametrize("samples", range(1, 9))
def test_whole_samples_dealt_one_by_one(samples: int, devices: int, replicas: int) -> None:
    """The samples that lie on the fullest device, are missing on the emptiest, and must be sent to turn them."""
    shares = equal_shares(devices, replicas, 1, samples)
    dealt = [len(range(at, samples, replicas)) for at in range(replicas)]
    degree = devices // replicas
    each = [[len(range(at, own, degree)) for at in range(degree)] for own in dealt]
    assert shares.replica == Fraction(max(dealt), samples) and shares.samples == max(dealt)
    assert shares.rows.device == Fraction(max(map(max, each)), samples)
    missing = max(own - one for own, row in zip(dealt, each, strict=True) for one in row)
    assert shares.rows.gather == Fraction(missing, samples)
    # Each device has a part of all columns: it sends the rest of its samples, and fetches its own of others.
    turned = max(max(one * (degree - 1), own - one) for own, row in zip(dealt, each, strict=True) for one in row)
    assert shares.rows.turn == Fraction(turned, samples * degree)
    assert shares.columns.device == shares.replica / degree and shares.columns.gather == shares.replica * (
        1 - shares.shard
    )


def test_the_links_of_a_group_device_by_device() -> None:
    """The slowest link between any two devices, and between any two of one replica, bandwidth and latency each."""
    later_inside = server(0, 2, inside=Link(8 * 10**9, 90))
    links = {(0, 1): SLOWER, (1, 2): LATER}
    graph = cluster(later_inside, server(1, 2), server(2), links=links)
    instance = made(graph, replace(FREE, tensor_parallel_degrees=(1, 2, 3, 4, 5)))
    for group in Group.possible(instance):
        devices = [at for at, count in group.counts for _ in range(count)]
        degree = len(devices) // group.replicas
        kind = GroupKind.of(instance, group)
        assert kind.link == slowest_between(instance, [devices])
        replicas = [devices[first : first + degree] for first in range(0, len(devices), degree)]
        assert kind.inner == slowest_between(instance, replicas)


def slowest_between(instance: Instance, rows: list[list[int]]) -> Link | None:
    """Return the least bandwidth and the largest latency between any two devices of a row."""
    found = [instance.links[a][b] for row in rows for a, b in itertools.combinations(row, 2)]
    known = [link for link in found if link is not None]
    if not known:
        return None
    return Link(min(link.bits_per_second for link in known), max(link.latency_ns for link in known))


@pytest.mark.few(1)
@pytest.mark.parametrize("samples", Samples)
@pytest.mark.parametrize("sharing", Sharing)
@pytest.mark.parametrize("placement", Placement)
def test_every_method_agrees_on_mixed_devices(sharing: Sharing, placement: Placement, samples: Samples) -> None:
    for degrees in ((), (1, 2), (1, 3)):
        constraints = Constraints(placement=placement, memory=True, tensor_parallel_degrees=degrees)
        instance = made(cluster(*MIXED), constraints, replace(PLAIN, sharing=sharing, samples=samples))
        agree_all(instance)


def agree_all(instance: Instance) -> None:
    best = truth(instance)
    assert best.values is not None and best.plan is not None
    for method in ("cpsat", "state_dp", "brute_force"):
        found = checked(instance, find_any(method).load()(instance, ONE))
        assert (method, found.objective, found.bound) == (method, best.values[0], best.values[0])
    certificate = certify(instance, best.plan, best.values[0])
    verify(instance, certificate)
    assert certificate.optimal


SKIPS = layer_graph(
    "skips",
    [matrix("a", 50, 5, made=30), matrix("b", 60, 5, made=20), matrix("c", 70, 5, made=90), matrix("d", 40, 5)],
    [("a", "b", 25), ("a", "c", 25), ("a", "d", 4), ("b", "c", 20), ("b", "d", 12), ("c", "d", 60)],
)
"""``a`` makes 30 bytes for a sample and sends 25 + 25 + 4 of them, partly the same ones; it skips two layers."""


def test_what_crosses_a_cut_is_counted_once_also_when_it_skips() -> None:
    """Two samples in a micro-batch. Behind a: all it sends, at most 30. Behind b: 29 of a, 20 of b (not 32)."""
    instance = made(cluster(*THREE), layers=SKIPS)
    assert [cut_bytes(instance, cut) for cut in (1, 2, 3)] == [2 * 30, 2 * (29 + 20), 2 * (4 + 12 + 60)]


@pytest.mark.few(1)
@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize("slow", [2 * 10**9, 4 * 10**8])
def test_every_method_agrees_where_tensors_skip_stages(placement: Placement, slow: int) -> None:
    links = dict.fromkeys(itertools.combinations(range(3), 2), Link(slow, 40))
    agree_all(made(cluster(*THREE, links=links), Constraints(placement=placement), layers=SKIPS))


def test_a_limit_on_cost_is_kept_where_all_but_the_price_is_alike() -> None:
    """The middle server costs more: within the budget it stays idle, and no alike one stands in for it."""
    dear = cluster(server(0), server(1, kind=replace(CARD, price_per_hour=5)), server(2))
    instance = made(dear, replace(FREE, at_most=(GoalLimit(Goal.COST, 4),)))
    best, free = truth(instance), truth(made(dear))
    assert best.values is not None and free.values is not None and best.values > free.values
    for method in ("cpsat", "brute_force"):
        assert checked(instance, find_any(method).load()(instance, ONE)).objective == best.values[0]
