from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.costs.times import cut_bytes
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Placement
from pipecut.formulation.problem.groups import Group, line
from pipecut.formulation.problem.instance import build_instance
from pipecut.formulation.problem.options import Boundary, BoundaryCharge, Combine, CostModel
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link, ceil_fraction
from pipecut.solvers.reference import line_dp
from pipecut_literature.hetpipe import planner as hetpipe
from pipecut_literature.hetpipe.partition import Prices, best_partition, partition
from pipecut_literature.hetpipe.planner import Allocation, global_staleness, virtual_workers
from tests.examples import GIGA, UNIT, chain, instance_of, matrix, mesh, on_servers
from tests.expected import expected_ns
from tests.generators import cluster_graphs, instances, layer_graphs
from tests.laws import so_many

SLOW_DRAWS = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(60))
HETPIPE = CostModel(boundary_charge=BoundaryCharge.RECEIVER, boundary=Boundary.BOTH, combine=Combine.MAX)
"""The cost model under which HetPipe sees what is so."""


def cuts(layers, stages):
    """Every way to cut so many layers into so many stages."""
    for inner in itertools.combinations(range(1, layers), stages - 1):
        yield [Span(*pair) for pair in itertools.pairwise((0, *inner, layers))]


def slowest_ns(instance, order, spans):
    """HetPipe's objective, written down once more, one layer and one boundary at a time."""

    def receive(cut, link):
        if cut in (0, len(instance.layers)) or cut_bytes(instance, cut) == 0:
            return 0
        seconds = Fraction(cut_bytes(instance, cut) * 8, link.bits_per_second)
        return ceil_fraction(seconds * GIGA) + link.latency_ns

    times = []
    for at, (server, span) in enumerate(zip(order, spans, strict=True)):
        one = instance.class_index(server)
        time = sum(instance.forward_ns[one][layer] + instance.backward_ns[one][layer] for layer in span.layers)
        if at:
            time += receive(span.first, instance.links[order[at - 1]][server])
        if at + 1 < len(order):
            time += receive(span.stop, instance.links[server][order[at + 1]])
        times.append(time)
    return max(times)


def plan_of(instance, order, spans):
    """One device a stage, on servers in this order."""
    groups = [Group.on_line(instance, line(instance).index(server), 1) for server in order]
    return Plan(tuple(Stage(span, group, (0,) * len(span)) for span, group in zip(spans, groups, strict=True)))


def fits(instance, order, spans, in_flight):
    """HetPipe's memory limit, from the specification of the memory of an asynchronous 1F1B pipeline."""
    plan = plan_of(instance, order, spans)
    for at in range(len(spans)):
        kept = min(in_flight, len(spans) - at)
        # A stage with ``kept`` minibatches in flight is stage 0 of a pipeline of so many stages.
        alone = Plan((plan.stages[at],) + (plan.stages[at],) * (kept - 1))
        if MemoryParts.of_stage(instance, alone, 0).total > instance.servers[order[at]].device_class.memory_bytes:
            return False
    return True


def limited(instance, capacities):
    """An instance whose device classes have these memories, and whose constraints see them."""
    classes = {
        one: replace(one, memory_bytes=size)
        for one, size in zip(instance.device_classes, capacities, strict=False)
    }
    servers = [replace(server, device_class=classes[server.device_class]) for server in instance.servers]
    training = replace(instance.training, schedule=Schedule.ASYNC_ONE_F_ONE_B)
    return on_servers(replace(instance, training=training, constraints=Constraints(memory=True)), servers)


@st.composite
def cases(draw):
    """Small instances with memory limits that some partitions keep, device orders, and minibatches in flight."""
    instance = draw(instances(layer_graphs(5), cluster_graphs(4), st.just(HETPIPE)))
    if draw(st.booleans()):
        sizes = st.integers(50_000, 3_000_000)
        instance = limited(instance, [draw(sizes) for _ in instance.device_classes])
    devices = draw(st.permutations(line(instance)))
    order = tuple(devices[: min(len(devices), len(instance.layers))])
    return instance, order, draw(st.integers(1, 5))


@SLOW_DRAWS
@given(cases())
def test_a_partition_of_one_order_against_every_cut(case):
    instance, order, in_flight = case
    found = partition(instance, order, in_flight)
    memory = instance.constraints.memory
    prices = [
        slowest_ns(instance, order, spans)
        for spans in cuts(len(instance.layers), len(order))
        if not memory or fits(instance, order, spans, in_flight)
    ]
    if found is None:
        assert not prices
    else:
        assert found.order == order
        assert found.bottleneck_ns == min(prices) == slowest_ns(instance, order, found.spans)
        assert not memory or fits(instance, order, found.spans, in_flight)


@SLOW_DRAWS
@given(cases())
def test_the_best_order_against_every_order(case):
    instance, order, in_flight = case
    counts = [order.count(server) for server in range(len(instance.servers))]
    found = best_partition(instance, counts, in_flight)
    each = [partition(instance, other, in_flight) for other in set(itertools.permutations(order))]
    prices = [one.bottleneck_ns for one in each if one is not None]
    if found is None:
        assert not prices
    else:
        assert sorted(found.order) == sorted(order)
        assert found.bottleneck_ns == min(prices) == slowest_ns(instance, found.order, found.spans)


@SLOW_DRAWS
@given(instances(), st.integers(1, 4), st.data())
def test_memory_is_that_of_the_specification(instance, in_flight, data):
    instance = replace(instance, training=replace(instance.training, schedule=Schedule.ASYNC_ONE_F_ONE_B))
    first = data.draw(st.integers(0, len(instance.layers) - 1))
    span = Span(first, data.draw(st.integers(first + 1, len(instance.layers))))
    stage = Stage(span, Group.on_line(instance, 0, 1), (0,) * len(span))
    expected = MemoryParts.of_stage(instance, Plan((stage,) * in_flight), 0).total
    assert Prices(instance).memory_bytes(in_flight)[span.first, span.stop] == expected


@SLOW_DRAWS
@given(instances(costs=st.just(HETPIPE)))
def test_under_its_own_cost_model_it_believes_what_is_so(instance):
    outcome = checked(instance, hetpipe.solve(instance))
    believed = expected_ns(outcome.notes[1])
    assert outcome.objective is not None
    if instance.model.ties:  # the paper knows no weights that stages share: their gradients are summed unseen
        assert believed <= outcome.objective
    else:
        assert believed == outcome.objective


@SLOW_DRAWS
@given(instances(), st.booleans())
def test_its_plan_keeps_the_rules_it_sees(instance, memory):
    free = replace(instance, constraints=Constraints(placement=Placement.FREE, memory=memory))
    outcome = checked(free, hetpipe.solve(free))
    assert outcome.plan is not None
    assert len(outcome.plan) == min(instance.devices, len(instance.layers))
    assert all(stage.group.devices == 1 for stage in outcome.plan.stages)
    assert memory or outcome.proof is Proof.FEASIBLE


@SLOW_DRAWS
@given(instances())
def test_on_the_line_it_is_never_better_than_the_optimum(instance):
    outcome = checked(instance, hetpipe.solve(instance))
    assert outcome.blind_to == ("line",)
    if outcome.proof is Proof.FEASIBLE:
        best = line_dp.solve(instance)
        assert best.proof is Proof.OPTIMAL
        assert outcome.objective is not None and best.objective is not None
        assert outcome.objective >= best.objective


def layers_of(*macs):
    return [matrix(f"m{at}", one, weights=4, taken=8, made=8) for at, one in enumerate(macs)]


def test_equal_servers_stand_in_the_order_of_the_line():
    instance = instance_of(chain(layers_of(9, 9, 9, 9), [8, 8, 8]), mesh(2, 2), HETPIPE)
    outcome = checked(instance, hetpipe.solve(instance))
    assert outcome.proof is Proof.FEASIBLE


def test_an_order_off_the_line_proves_nothing_under_line_placement():
    servers = [
        Server("slow", DeviceClass("slow", 1 << 40, GIGA), 1),
        Server("fast", DeviceClass("fast", 1 << 40, 3 * GIGA), 1),
    ]
    cluster = cluster_graph("two", servers, [("slow", "fast", Link(8 * GIGA))])
    # The second layer is the small one, so the slow device must come last.
    instance = instance_of(chain(layers_of(9000, 3000), [8]), cluster)
    outcome = checked(instance, hetpipe.solve(instance))
    assert outcome.plan is not None
    assert [stage.group.counts for stage in outcome.plan.stages] == [((1, 1),), ((0, 1),)]
    assert outcome.proof is Proof.UNKNOWN
    assert any("of the line" in note for note in outcome.notes)


def four_by_four(layers):
    names = ("V", 149), ("R", 163), ("G", 65), ("Q", 53)
    servers = [Server(name, DeviceClass(name, 1 << 40, speed * GIGA), 4, Link(8 * GIGA)) for name, speed in names]
    links = [(one.name, other.name, Link(GIGA)) for one, other in itertools.combinations(servers, 2)]
    return build_instance(
        chain(layers, [8] * (len(layers) - 1)), cluster_graph("hetpipe", servers, links), Training(32), HETPIPE
    )


def test_the_papers_virtual_workers():
    instance = four_by_four(layers_of(*[100] * 6))
    found = {
        one: ["".join("VRGQ"[server] for server in row) for row in virtual_workers(instance, one)]
        for one in Allocation
    }
    assert found[Allocation.WHOLE] == ["VVVVRRRRGGGGQQQQ"]
    assert found[Allocation.NODE_PARTITION] == ["VVVV", "RRRR", "GGGG", "QQQQ"]
    assert found[Allocation.EQUAL_DISTRIBUTION] == ["VRGQ"] * 4
    assert found[Allocation.HYBRID_DISTRIBUTION] == ["VVQQ", "VVQQ", "RRGG", "RRGG"]


def test_equal_distribution_is_a_pipeline_of_servers_with_the_batch_split():
    instance = four_by_four(layers_of(*[10**6] * 8))
    free = replace(instance, constraints=Constraints(placement=Placement.FREE))
    outcome = checked(free, hetpipe.solve(free, allocation=Allocation.EQUAL_DISTRIBUTION))
    assert outcome.plan is not None
    assert sorted(stage.group.counts for stage in outcome.plan.stages) == [((server, 4),) for server in range(4)]
    assert all(form == 0 for stage in outcome.plan.stages for form in stage.forms)
    assert outcome.notes[0].startswith("virtual workers: 4 of 4 devices")


def test_virtual_workers_with_partitions_of_their_own_are_no_plan():
    instance = four_by_four(layers_of(*[100] * 6))
    with pytest.raises(ValueError, match="allocation np has 4 different virtual workers"):
        hetpipe.solve(instance, allocation=Allocation.NODE_PARTITION)
    with pytest.raises(ValueError, match="allocation hd has 2 different"):
        hetpipe.solve(instance, allocation=Allocation.HYBRID_DISTRIBUTION)
    uneven = instance_of(chain(layers_of(1, 1), [8]), mesh(2, 1))
    with pytest.raises(ValueError, match=r"allocation ed: servers have \[1, 2\] devices"):
        virtual_workers(uneven, Allocation.EQUAL_DISTRIBUTION)
    with pytest.raises(ValueError, match="allocation hd: 1 servers of 2 devices"):
        virtual_workers(instance_of(chain(layers_of(1, 1), [8]), mesh(2)), Allocation.HYBRID_DISTRIBUTION)


def test_orders_that_do_not_fit_are_refused():
    instance = instance_of(chain(layers_of(1, 1), [8]), mesh(1, 1, 1))
    with pytest.raises(ValueError, match="2 devices of server s0, which has 1"):
        partition(instance, (0, 0), 1)
    with pytest.raises(ValueError, match="3 devices for 2 layers"):
        partition(instance, (0, 1, 2), 1)
    with pytest.raises(ValueError, match="0 minibatches in flight"):
        partition(instance, (0, 1), 0)
    many = instance_of(chain(layers_of(*[1] * 30), [8] * 29), mesh(*[3] * 8))
    with pytest.raises(
        ValueError, match="the orders of 24 devices on 8 servers make 524288 states, at most 20000"
    ):
        hetpipe.solve(many)


def test_with_little_memory_fewer_minibatches_are_in_flight_and_then_none():
    def on(memory_bytes):
        kind = replace(UNIT, memory_bytes=memory_bytes)
        layers = [replace(matrix(f"m{at}", 100, weights=1000, taken=8, made=8), stash_bytes=8) for at in range(3)]
        training = Training(global_batch=1, schedule=Schedule.ASYNC_ONE_F_ONE_B, optimizer_bytes_per_parameter=0)
        cluster = mesh(3, kind=kind)
        return build_instance(chain(layers, [8, 8]), cluster, training, HETPIPE, Constraints(memory=True))

    # The first of three stages holds 3 weight versions and a gradient of 1000 bytes, and 3 x 8 + 32 bytes more.
    assert "in flight: 3" in checked(on(4056), hetpipe.solve(on(4056))).notes[0]
    less = checked(on(4055), hetpipe.solve(on(4055)))
    assert "in flight: 2" in less.notes[0]
    assert less.proof is Proof.UNKNOWN  # priced with as many in flight as stages, it breaks the rule on memory
    nothing = checked(on(2000), hetpipe.solve(on(2000)))
    assert (nothing.proof, nothing.plan) == (Proof.UNKNOWN, None)


def test_a_stopped_search_says_so():
    instance = instance_of(chain(layers_of(1, 1), [8]), mesh(2))
    outcome = hetpipe.solve(instance, Limits(stopped=lambda: True))
    assert (outcome.proof, outcome.notes) == (Proof.UNKNOWN, ("stopped early",))


def test_staleness_of_waves():
    # The paper's example: D = 0 and s_local = 3 make s_global = 6.
    assert global_staleness(in_flight=4, clock_distance=0) == 6
    assert [global_staleness(1, d) for d in range(3)] == [0, 1, 2]
    assert global_staleness(4, 1) - global_staleness(4, 0) == 4
    with pytest.raises(ValueError, match="N_m 0, D 0"):
        global_staleness(0, 0)
