"""The paper's planner: where its recurrence is exact, where it is not, and what its listing does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Proof, checked
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.instance import build_instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.options import Boundary, BoundaryCharge, Combine, CostModel, Samples, StageTime
from pipecut.formulation.problem.plan import Span
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.reference import algorithm_2 as pipepar
from pipecut.solvers.reference import algorithm_2_as_printed as pipepar_listed
from pipecut.solvers.reference import line_dp
from pipecut.solvers.reference.flat_cluster import flat_view, slowest_link
from tests.examples import BYTE_LINK, GIGA, PLAIN, TURING, UNIT, chain, instance_of, matrix, mesh, vgg16
from tests.expected import expected_ns
from tests.generators import cost_models, divisible, flat_clusters, instances, layer_graphs, trainings
from tests.laws import so_many
from tests.one_stage import one_stage


def price(instance, solve, **options):
    outcome = checked(instance, solve(instance, **options))
    assert outcome.objective is not None
    return outcome.objective


def believed(outcome):
    """What the recurrence said, from the notes."""
    (note,) = (note for note in outcome.notes if "expects" in note)
    return expected_ns(note)


def single(name, macs):
    """A layer that no two devices should share: weights, input and output are all dear to sum."""
    return matrix(name, macs, weights=10**6, taken=10**6, made=10**6)


def work(*macs):
    return chain([single(f"m{at}", one) for at, one in enumerate(macs)], [0] * (len(macs) - 1))


def shape(outcome):
    return [(stage.span, stage.group.counts) for stage in outcome.plan.stages]


# --- where the recurrence is exact --------------------------------------------------------------------------


@given(instances(layer_graphs(7), flat_clusters(6)).filter(divisible))
def test_on_one_server_it_believes_what_is_so(instance):
    outcome = checked(instance, pipepar.solve(instance))
    assert "sees one flat row of devices" in outcome.notes
    assert believed(outcome) == outcome.objective
    assert (outcome.proof, outcome.bound) == (Proof.FEASIBLE, None)


@pytest.mark.slow
@settings(max_examples=so_many(80))
@given(instances(layer_graphs(6), flat_clusters(4)).filter(divisible))
def test_on_one_server_it_is_best_among_plans_that_use_all_devices(instance):
    assume(5 <= brute_force.count_plans(instance) <= 1000)

    def all_used(plan):
        return sum(stage.group.devices for stage in plan.stages) == instance.devices

    assert price(instance, brute_force.solve, accept=all_used) == price(instance, pipepar.solve)


@given(layer_graphs(7), flat_clusters(5), trainings(), cost_models)
def test_on_one_server_the_best_number_of_devices_gives_the_optimum(layers, cluster, training, cost):
    """PipePar on 1 .. D devices of one class and one link agrees with the line, which may leave devices idle."""
    (server,) = (row["server"] for _, row in cluster.nodes(data=True))
    counts = range(1, server.devices + 1)
    clusters = [cluster_graph("part", [replace(server, devices=count)], []) for count in counts]
    parts = [build_instance(layers, part, training, cost) for part in clusters]
    assume(divisible(parts[-1]))
    assert min(price(part, pipepar.solve) for part in parts) == price(parts[-1], line_dp.solve)


@given(instances(layer_graphs(6), flat_clusters(4)).filter(divisible))
def test_the_walk_attains_f_of_every_span(instance):
    """Inside a span too, as on the lower of two levels: its own two ends are not boundaries."""
    view = flat_view(instance, instance.devices, slowest_link(instance))
    compute = [view.times.compute(kind) for kind in view.kinds]
    moved = [view.times.communication[kind] for kind in view.kinds]
    level = pipepar.StageLevel(instance.cost, compute, moved, (view.activation, view.gradient))
    receivers = instance.cost.boundary_charge is BoundaryCharge.RECEIVER
    combine = max if instance.cost.combine is Combine.MAX else lambda one, other: one + other
    for end in range(1, len(instance.layers) + 1):
        for first in range(end):
            total, used = 0, 0
            for span, n in level.walk(first, end):
                before = int(view.activation[span.first]) * (span.first > first)
                behind = int(view.gradient[span.stop]) * (span.stop < end)
                across = before + int(view.gradient[span.first]) * (span.first > first)
                own = int(compute[n][span.first, span.stop])
                extra = int(moved[n][span.first, span.stop]) + receivers * (before + behind)
                overlap = instance.cost.stage_time is StageTime.OVERLAP
                total = combine(total, max(own, extra) if overlap else own + extra)
                total = combine(total, (not receivers) * across)
                used += n
            assert (used, total) == (instance.devices, level.least(end)[first])


@given(layer_graphs(7), st.integers(1, 4), trainings(), cost_models)
def test_one_device_a_server_and_equal_links_are_one_server(layers, count, training, cost):
    cost = replace(cost, samples=Samples.FRACTIONS)  # as the paper divides spans
    apart = build_instance(layers, mesh(*[1] * count), training, cost)
    together = build_instance(layers, mesh(count), training, cost)
    assert price(apart, pipepar.solve) == price(together, pipepar.solve)
    assert believed(pipepar.solve(together, levels=2)) == believed(pipepar.solve(together, levels=1))
    # Among servers of one device the time of a whole span is shared, not layer by layer: one rounding, not one of
    # every layer and of every change of layout. It is shared where every device does a layer whole, too.
    assume(all(row.split is not Split.JOIN or row.allowed_forms != (1,) for row in apart.layers))
    one, two = (believed(pipepar.solve(apart, levels=levels)) for levels in (1, 2))
    assert one - 2 * (len(apart.layers) + len(apart.form_edges)) <= two <= one


@given(instances(layer_graphs(7)).filter(divisible), st.sampled_from([1, 2]))
def test_it_is_never_better_than_the_optimum(instance, levels):
    assume(levels == 1 or len({server.devices for server in instance.servers}) == 1)
    assert price(instance, pipepar.solve, levels=levels) >= price(instance, line_dp.solve)


# --- where it is not ----------------------------------------------------------------------------------------


def test_it_does_not_see_which_devices_are_fast():
    """A device twice as fast stands first. PipePar balances 3 | 3 for two slow ones; the optimum is 4 | 2."""
    fast = DeviceClass("fast", 1 << 40, 2 * GIGA)
    cluster = cluster_graph("mixed", [Server("f", fast, 1), Server("u", UNIT, 1)], [("f", "u", BYTE_LINK)])
    instance = instance_of(work(*[100] * 6), cluster)
    assert price(instance, line_dp.solve) == 600
    outcome = pipepar.solve(instance)
    assert (believed(outcome), outcome.objective) == (900, 900)
    assert shape(outcome) == [(Span(0, 3), ((0, 1),)), (Span(3, 6), ((1, 1),))]


def test_one_level_does_not_see_where_devices_stand():
    """VGG16 on the paper's cluster. The optimum shares the convolutions inside a server, over 10 Gbit/s; with one
    level every group is believed to be joined by 1 Gbit/s, so they stay on one device. Two levels find it.
    """
    instance = papers_instance()
    best = price(instance, line_dp.solve)
    assert price(instance, pipepar.solve, levels=2) == best
    one = pipepar.solve(instance, levels=1)
    assert one.objective is not None
    assert 1.4 * best < one.objective < believed(one)


def test_all_devices_are_used_even_where_that_hurts():
    """One layer, two devices: to share it costs a sum of 8 * 10**6 bits; the line leaves one idle."""
    instance = instance_of(work(100), mesh(2))
    assert price(instance, line_dp.solve) == 300
    assert price(instance, pipepar.solve) == 150 + 10**6


# --- two levels ---------------------------------------------------------------------------------------------


def test_two_levels_cut_inside_and_between_servers():
    """Works 1 | 1 | 1 | 1 on two servers of two: a cut in each server, where 40 bytes cross, and one between."""
    layers = chain([single(name, 100) for name in "abcd"], [40, 1, 40])
    instance = instance_of(layers, mesh(2, 2, between=Link(GIGA)))
    outcome = checked(instance, pipepar.solve(instance))
    assert "sees 2 levels: servers, and devices in each" in outcome.notes
    assert (believed(outcome), outcome.objective) == (300, 300)
    assert [counts for _, counts in shape(outcome)] == [((0, 1),), ((0, 1),), ((1, 1),), ((1, 1),)]


def test_two_levels_charge_receivers_once():
    """As above; receivers pay 40 ns for each transfer inside a server and 8 ns (1 byte) for each between them."""
    layers = chain([single(name, 100) for name in "abcd"], [40, 1, 40])
    receivers = replace(PLAIN, boundary_charge=BoundaryCharge.RECEIVER)
    instance = instance_of(layers, mesh(2, 2, between=Link(GIGA)), receivers)
    outcome = checked(instance, pipepar.solve(instance, levels=2))
    assert len(shape(outcome)) == 4
    assert (believed(outcome), outcome.objective) == (348, 348)
    total = replace(instance, cost=replace(receivers, combine=Combine.SUM))
    outcome = checked(total, pipepar.solve(total, levels=2))
    assert (believed(outcome), outcome.objective) == (1200 + 4 * 40 + 2 * 8, 1200 + 4 * 40 + 2 * 8)


def test_a_stage_on_several_servers_becomes_one_stage_on_their_devices():
    """One layer of 600 with few weights on two servers of two: believed ((600 / 2 + 4) / 2 + 4 of the servers)."""
    layers = chain([matrix("a", 200, weights=4, taken=50, made=50)], [])
    instance = instance_of(layers, mesh(2, 2, between=Link(4 * GIGA)))
    outcome = checked(instance, pipepar.solve(instance))
    assert shape(outcome) == [(Span(0, 1), ((0, 2), (1, 2)))]
    assert believed(outcome) == (300 + 4) // 2 + 8
    assert outcome.objective == 150 + 12


def test_levels_are_chosen_by_the_cluster():
    layers, slow = work(1), Link(GIGA)
    assert pipepar.suits_two_levels(instance_of(layers, mesh(2, 2, between=slow)))
    assert not pipepar.suits_two_levels(instance_of(layers, mesh(2, 2)))
    assert not pipepar.suits_two_levels(instance_of(layers, mesh(2, 1, between=slow)))
    assert not pipepar.suits_two_levels(instance_of(layers, mesh(1, 1, between=slow)))
    assert not pipepar.suits_two_levels(instance_of(layers, mesh(4)))


def test_levels_that_make_no_sense():
    instance = instance_of(work(1), mesh(2, 1))
    with pytest.raises(ValueError, match="levels is 3, expected 1 or 2"):
        pipepar.solve(instance, levels=3)
    with pytest.raises(ValueError, match="levels is 0, expected 1 or 2"):
        pipepar.solve(instance, levels=0)
    with pytest.raises(ValueError, match="the same number of devices"):
        pipepar.solve(instance, levels=2)


def papers_instance(batch=64, **options):
    cluster = mesh(2, 2, 2, 2, inside=Link(10 * GIGA), between=Link(GIGA), kind=TURING)
    return instance_of(vgg16(), cluster, CostModel(**options), Training(batch))


@pytest.mark.parametrize("boundary", Boundary)
@pytest.mark.parametrize("batch", [64, 128])
def test_vgg16_on_the_papers_cluster(batch, boundary):
    """The order of the paper's Fig. 4: data parallelism worst by far, PipePar ahead, the optimum ahead of all."""
    instance = papers_instance(batch, boundary=boundary)
    best, planned = price(instance, line_dp.solve), price(instance, pipepar.solve)
    assert best <= planned <= price(instance, pipepar.solve, levels=1)
    assert 7 * planned < price(instance, one_stage)


# --- the listing --------------------------------------------------------------------------------------------

FREE = replace(PLAIN, boundary=Boundary.NONE)


@given(instances(layer_graphs(7)).filter(divisible))
def test_the_listing_gives_plans(instance):
    outcome = checked(instance, pipepar_listed.solve(instance))
    assert (outcome.proof, outcome.bound) == (Proof.FEASIBLE, None)
    assert price(instance, line_dp.solve) <= price(instance, pipepar_listed.solve)


@given(instances(layer_graphs(7), flat_clusters(5)).filter(divisible))
def test_the_listing_promises_no_less_than_it_keeps_where_boundaries_are_free(instance):
    """Its walk splits the second part anew, which can only help the bottleneck."""
    free = replace(instance, cost=replace(instance.cost, boundary=Boundary.NONE, combine=Combine.MAX))
    outcome = pipepar_listed.solve(free)
    assert outcome.objective is not None
    assert outcome.objective <= believed(outcome)


def test_the_listing_is_greedy():
    """Four layers of 300 ns, to share one among n costs 2 (n - 1) / n * 100. The best split in two is 2 | 2, both
    on two devices, and the walk splits the second part only, which is no use to the first.
    """
    layers = [matrix(name, 100, weights=100, taken=10**6, made=10**6) for name in "abcd"]
    instance = instance_of(chain(layers, [0, 0, 0]), mesh(4), FREE)
    outcome = checked(instance, pipepar_listed.solve(instance))
    assert shape(outcome) == [
        (Span(0, 2), ((0, 2),)),
        (Span(2, 3), ((0, 1),)),
        (Span(3, 4), ((0, 1),)),
    ]
    assert (believed(outcome), outcome.objective) == (500, 500)
    assert price(instance, pipepar.solve) == price(instance, line_dp.solve) == 300


def test_the_listing_walks_on_with_the_devices_that_are_left():
    """A layer worth three devices, then a light one: 3 + 1 of 4 devices, read from one tuple (repairs a, b)."""
    layers = chain([matrix("wide", 900), single("light", 290)], [0])
    instance = instance_of(layers, mesh(4), FREE)
    outcome = checked(instance, pipepar_listed.solve(instance))
    assert shape(outcome) == [(Span(0, 1), ((0, 3),)), (Span(1, 2), ((0, 1),))]
    assert believed(outcome) == outcome.objective == 900


def test_the_listing_may_leave_devices_idle():
    instance = instance_of(work(100), mesh(3), FREE)
    assert shape(pipepar_listed.solve(instance)) == [(Span(0, 1), ((0, 1),))]


def test_the_listing_does_not_see_boundaries():
    """The bytes between the halves cost it nothing, and the evaluator 500 ns each way."""
    layers = chain([single("a", 100), single("b", 100)], [500])
    instance = instance_of(layers, mesh(2))
    outcome = checked(instance, pipepar_listed.solve(instance))
    assert (believed(outcome), outcome.objective) == (300, 1000)
    assert price(instance, line_dp.solve) == 600


def test_a_single_device_is_enough_for_all():
    instance = instance_of(work(1, 2), mesh(1))
    for solve in (pipepar.solve, pipepar_listed.solve, one_stage):
        outcome = checked(instance, solve(instance))
        assert outcome.plan is not None
        assert evaluate(instance, outcome.plan).objective == 9
