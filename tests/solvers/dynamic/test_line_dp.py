"""The dynamic programme over the line: against every plan one by one, by hand, and by laws for any instance."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph, servers_of
from pipecut.formulation.problem.constraints import Constraints, Placement
from pipecut.formulation.problem.instance import build_instance
from pipecut.formulation.problem.options import (
    BoundaryCharge,
    Combine,
    CostModel,
    Samples,
    Sharing,
    StageTime,
    Synchronisation,
)
from pipecut.formulation.problem.plan import Span
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.reference import line_dp
from tests.examples import (
    BYTE_LINK,
    GIGA,
    PLAIN,
    TURING,
    UNIT,
    chain,
    instance_of,
    joined,
    matrix,
    mesh,
    times_a,
    vgg16,
)
from tests.generators import CLASSES, cluster_graphs, cost_models, instances, layer_graphs, links, trainings
from tests.laws import so_many

MOST_PLANS = 500


def optimum(instance):
    outcome = checked(instance, line_dp.solve(instance))
    assert outcome.proof is Proof.OPTIMAL
    assert outcome.objective is not None
    return outcome.objective


@settings(max_examples=so_many(200))
@given(instances(layer_graphs(6), cluster_graphs(5)))
def test_agrees_with_brute_force(instance):
    number = brute_force.count_plans(instance)
    assume(5 <= number <= MOST_PLANS)
    assert checked(instance, brute_force.solve(instance)).objective == optimum(instance)


@settings(max_examples=so_many(100))
@given(instances(layer_graphs(6, places=True), cluster_graphs(5)), st.sets(st.integers(1, 5)))
def test_agrees_with_brute_force_where_some_places_are_closed(instance, closed):
    names = tuple(instance.layers[at].name for at in sorted(closed) if at < len(instance.layers))
    instance = replace(instance, constraints=Constraints(no_cut=names))
    number = brute_force.count_plans(instance)
    assume(5 <= number <= MOST_PLANS)
    outcome = line_dp.solve(instance)
    assert outcome.blind_to == ()
    assert checked(instance, brute_force.solve(instance)).objective == optimum(instance)


@settings(max_examples=so_many(60))
@given(instances(layer_graphs(5), cluster_graphs(5)), st.integers(1, 2))
def test_agrees_with_brute_force_where_stages_may_not_stretch_over_servers(instance, most):
    instance = replace(instance, constraints=Constraints(max_servers=most))
    assume(5 <= brute_force.count_plans(instance) <= MOST_PLANS)
    assert checked(instance, brute_force.solve(instance)).objective == optimum(instance)


@settings(max_examples=so_many(60))
@given(instances(layer_graphs(4), cluster_graphs(4)))
def test_under_free_placement_it_has_a_plan_and_no_bound(instance):
    free = replace(instance, constraints=Constraints(placement=Placement.FREE))
    assume(5 <= brute_force.count_plans(free) <= MOST_PLANS)
    outcome = checked(free, line_dp.solve(free))
    assert (outcome.proof, outcome.bound) == (Proof.FEASIBLE, None)
    assert outcome.objective is not None and outcome.objective == optimum(instance)
    best = brute_force.solve(free).objective
    assert best is not None and best <= outcome.objective


def test_a_long_line_of_single_devices_stays_within_64_bits():
    """130 steps along the line, each over states that no stages reach: sums of FORBIDDEN must not run over."""
    servers = [Server(f"s{at}", UNIT, 1) for at in range(130)]
    spokes = [(server.name, "switch", BYTE_LINK) for server in servers]
    cluster = cluster_graph("star", servers, spokes, ["switch"])
    instance = instance_of(chain(WORK[:1], []), cluster, replace(PLAIN, combine=Combine.SUM))
    assert optimum(replace(instance, constraints=Constraints(max_servers=1))) == 120


def test_it_is_blind_to_memory_and_its_bound_still_holds():
    """One device would be fastest, but has no room for the weights and their gradient; two split them."""
    layers = chain([matrix("a", 10, weights=900, taken=900, made=900)], [])
    small = mesh(2, kind=DeviceClass("small", 5000, GIGA))
    instance = replace(instance_of(layers, small), constraints=Constraints(memory=True))
    claim = line_dp.solve(instance)
    assert claim.blind_to == ("memory",)
    outcome = checked(instance, claim)
    assert (outcome.proof, outcome.objective, outcome.bound) == (Proof.UNKNOWN, 30, 30)
    exact = checked(instance, brute_force.solve(instance))
    assert exact.objective is not None and exact.objective > 30
    assert line_dp.solve(replace(instance, constraints=Constraints())).blind_to == ()


@settings(max_examples=so_many(60))
@given(instances(layer_graphs(4), cluster_graphs(4)))
def test_no_optimal_plan_uses_fewer_devices(instance):
    assume(5 <= brute_force.count_plans(instance) <= MOST_PLANS)
    outcome = line_dp.solve(instance)
    prices = [(evaluate(instance, plan).objective, devices(plan)) for plan in brute_force.plans(instance)]
    assert (outcome.objective, devices(outcome.plan)) == min(prices)


def devices(plan):
    return sum(stage.group.devices for stage in plan.stages)


def single(macs):
    """A layer that no two devices should share: weights, input and output are all dear to sum."""
    return matrix(f"m{macs}", macs, weights=10**6, taken=10**6, made=10**6)


def stages_of(instance):
    plan = line_dp.solve(instance).plan
    assert plan is not None
    return [(stage.span, stage.group.counts) for stage in plan.stages]


FREE_CUTS = [0, 0, 0]
WORK = [single(40), single(10), single(20), single(30)]


def test_cuts_where_the_slowest_stage_is_least():
    """Works 40, 10, 20, 30 (times 3 with backward) on two devices: 50 | 50, on three: 40 | 30 | 30."""
    layers = chain(WORK, FREE_CUTS)
    assert optimum(instance_of(layers, mesh(2))) == 3 * 50
    assert stages_of(instance_of(layers, mesh(2))) == [(Span(0, 2), ((0, 1),)), (Span(2, 4), ((0, 1),))]
    assert optimum(instance_of(layers, mesh(3))) == 3 * 40
    assert optimum(instance_of(layers, mesh(8))) == 3 * 40


def test_idle_devices_come_last_and_none_is_used_in_vain():
    """The largest layer bounds everything, so the fourth to eighth device can do nothing about it."""
    assert [counts for _, counts in stages_of(instance_of(chain(WORK, FREE_CUTS), mesh(3, 5)))] == 3 * [((0, 1),)]


def test_one_device_takes_all():
    instance = instance_of(chain(WORK, FREE_CUTS), mesh(1))
    assert optimum(instance) == 300
    assert stages_of(instance) == [(Span(0, 4), ((0, 1),))]


def test_a_dear_cut_is_not_made():
    """Between the second and third layer 90 bytes cross each way: 180 ns, more than 40 | 60."""
    layers = chain(WORK, [0, 90, 0])
    assert optimum(instance_of(layers, mesh(2))) == 3 * 60
    receivers = replace(PLAIN, boundary_charge=BoundaryCharge.RECEIVER)
    assert optimum(instance_of(layers, mesh(2), receivers)) == 3 * 60
    assert optimum(instance_of(chain(WORK, [0, 9, 0]), mesh(2), receivers)) == 3 * 50 + 9


def test_the_sum_never_gains_from_a_cut_of_equal_devices():
    assert optimum(instance_of(chain(WORK, FREE_CUTS), mesh(4), replace(PLAIN, combine=Combine.SUM))) == 300


def test_the_link_between_stages_depends_on_both_groups():
    """a - b and b - c are fast, a - c slow. The second layer halves on b and c, but then a must reach c.

    On b alone: 3 * 60 ns. On b and c: 90 ns and little to sum, but 10 bytes over a - c take 100 ns each way.
    """
    servers = [Server(name, UNIT, 1) for name in "abc"]
    pairs = [("a", "b", BYTE_LINK), ("b", "c", BYTE_LINK), ("a", "c", Link(8 * GIGA // 10))]
    cluster = cluster_graph("bent", servers, pairs)
    layers = chain([single(50), matrix("share", 60)], [10])
    instance = instance_of(layers, cluster)
    assert optimum(instance) == 180
    assert stages_of(instance)[1] == (Span(1, 2), ((1, 1),))
    near = cluster_graph("near", servers, [*pairs[:2], ("a", "c", Link(8 * GIGA // 3))])
    assert optimum(instance_of(layers, near)) == 150
    assert stages_of(instance_of(layers, near))[1] == (Span(1, 2), ((1, 1), (2, 1)))


def test_a_receiver_pays_on_both_sides():
    """The middle stage receives 4 bytes of activations and 6 bytes of gradients; overlapped, they are free."""
    layers = chain([single(10), single(20), single(9)], [4, 6])
    receivers = replace(PLAIN, boundary_charge=BoundaryCharge.RECEIVER)
    assert optimum(instance_of(layers, mesh(3), receivers)) == 60 + 4 + 6
    overlap = replace(receivers, stage_time=StageTime.OVERLAP)
    assert optimum(instance_of(layers, mesh(3), overlap)) == 60


@pytest.mark.parametrize("limits", [Limits(stopped=lambda: True), Limits(time_limit_s=0.0)])
def test_stopped_early_it_claims_only_a_bound(limits):
    instance = instance_of(chain(WORK, FREE_CUTS), mesh(3))
    outcome = checked(instance, line_dp.solve(instance, limits))
    assert (outcome.proof, outcome.plan, outcome.bound) == (Proof.UNKNOWN, None, lower_bound(instance))


def papers_cluster(between):
    """Four servers of two RTX 2080 Ti, 10 Gbit/s inside (PipePar Fig. 3), a micro-batch of 64."""
    cluster = mesh(2, 2, 2, 2, inside=Link(10 * GIGA), between=Link(between), kind=TURING)
    return instance_of(vgg16(), cluster, CostModel(), Training(64))


def test_vgg16_on_the_papers_cluster():
    """At 1 Gbit/s between servers only small tensors may cross: all convolutions share the first server.

    Its bottleneck by hand: features, conv by conv, forward on half of each micro-batch, then backward twice
    that; and the sum of 14,714,688 gradients over 10 Gbit/s. The other five devices stay idle.
    """
    slow = papers_cluster(GIGA)
    assert stages_of(slow) == [(Span(0, 31), ((0, 2),)), (Span(31, 39), ((1, 1),))]
    compute = sum(-(-slow.forward_ns[0][layer] // 2) - (-slow.backward_ns[0][layer] // 2) for layer in range(31))
    sums = sum(-(-size * 8 // 10) for size in slow.parameter_bytes[:31])
    assert optimum(slow) == compute + sums == 266_979_046
    fast = papers_cluster(10 * GIGA)
    assert optimum(fast) < optimum(slow) / 3
    assert sum(count for _, counts in stages_of(fast) for _, count in counts) == 8


# --- laws ---------------------------------------------------------------------------------------------------


@st.composite
def grown(draw):
    """A cluster, and the same with one more device behind the end of its line."""
    servers = [
        Server(f"s{at}", draw(st.sampled_from(CLASSES)), draw(st.integers(1, 3)), draw(links))
        for at in range(draw(st.integers(1, 3)))
    ]
    extra = Server("extra", draw(st.sampled_from(CLASSES)), 1)
    pairs = [(f"s{one}", f"s{other}", draw(links)) for one in range(len(servers)) for other in range(one)]
    more = [(server.name, "extra", draw(links)) for server in servers]
    small = cluster_graph("small", servers, pairs)
    if draw(st.booleans()):
        return small, cluster_graph("server more", [*servers, extra], [*pairs, *more])
    last = replace(servers[-1], devices=servers[-1].devices + 1)
    return small, cluster_graph("device more", [*servers[:-1], last], pairs)


@given(layer_graphs(7), grown(), trainings(), cost_models)
def test_a_further_device_at_the_end_never_hurts(layers, clusters, training, cost):
    before, after = (optimum(build_instance(layers, cluster, training, cost)) for cluster in clusters)
    assert after <= before


equally = cost_models.map(lambda one: replace(one, sharing=Sharing.EQUAL))


@given(instances(layer_graphs(7), costs=equally), st.integers(2, 9))
def test_everything_times_k_is_the_optimum_times_k(instance, k):
    """Exact, as 172,800 = 4 * 4 * 3 * 9 * 25 * 16 takes in all divisors.

    They are those of devices (squared), micro-batches, links, and an uneven load of experts.
    """
    assert optimum(times_a(instance, 172_800 * k)) == k * optimum(times_a(instance, 172_800))


@given(layer_graphs(7), st.integers(2, 3), st.integers(1, 2), links, links, trainings(), cost_models, st.randoms())
def test_equal_servers_in_another_order_change_nothing(
    layers, count, each, inside, between, training, cost, random
):
    def build(names):
        servers = [Server(name, UNIT, each, inside) for name in names]
        spokes = [(name, "switch", between) for name in names]
        return build_instance(layers, cluster_graph("star", servers, spokes, ["switch"]), training, cost)

    names = [f"server{at}" for at in range(count)]
    shuffled = random.sample(names, count)
    assert optimum(build(names)) == optimum(build(shuffled))
    assert len({id(server) for server in servers_of(build(shuffled).cluster_graph)}) == count


@given(instances(layer_graphs(7)))
def test_more_bandwidth_never_hurts(instance):
    wider = tuple(
        tuple(link and Link(link.bits_per_second * 2, link.latency_ns // 2) for link in row)
        for row in instance.links
    )
    assert optimum(joined(instance, wider)) <= optimum(instance)


@given(instances(layer_graphs(7), costs=cost_models))
def test_overlap_and_free_boundaries_never_hurt(instance):
    instance = replace(
        instance, cost=replace(instance.cost, expert_load=Fraction(1), inside=Synchronisation.CHARGED)
    )
    added = replace(instance, cost=replace(instance.cost, stage_time=StageTime.ADD))
    overlapped = replace(
        instance, cost=replace(instance.cost, stage_time=StageTime.OVERLAP, samples=Samples.FRACTIONS)
    )
    assert optimum(overlapped) <= optimum(added)
    largest = replace(instance, cost=replace(instance.cost, combine=Combine.MAX))
    total = replace(instance, cost=replace(instance.cost, combine=Combine.SUM))
    assert optimum(largest) <= optimum(total)


def test_cost_model_default_is_the_bottleneck_with_links_paying():
    """The laws above hold for every reading; the figures by hand are those of the default one, by equal parts."""
    assert replace(PLAIN, flops_per_mac=2, samples=Samples.WHOLE) == CostModel()
