from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from literature.tests.accpar.alexnet import alexnet
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Proof, checked
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.instance import build_instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.options import AllReduce, CostModel
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link, ceil_fraction
from pipecut.solvers.reference import line_dp
from pipecut_literature.accpar import planner as accpar
from pipecut_literature.accpar.code import ACCPAR, optimise
from pipecut_literature.accpar.published import ALEXNET
from pipecut_literature.baselines import data_parallel
from pipecut_literature.common.halves import Halves, LayerShare, bisected, moved_bytes, summed_bytes
from pipecut_literature.common.one_stage import sum_of_costs
from tests.examples import BYTE_LINK, GIGA, chain, instance_of, matrix, mesh
from tests.expected import expected_ns
from tests.generators import cost_models, flat_clusters, instances, layer_graphs, trainings
from tests.laws import so_many

SLOW_DRAWS = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(60))
TABLE = (
    (Fraction(0), Fraction(1, 2), Fraction(1, 2)),
    (Fraction(1, 2), Fraction(1, 2), Fraction(0)),
    (Fraction(1, 2), Fraction(0), Fraction(1, 2)),
)
"""AccPar Table 5 for equal halves and E as large as F, of a tensor: row the layer before, column the one after."""


def chain_of(draw_sizes, draw_weights, draw_macs):
    layers = [
        matrix(f"m{at}", macs, weights, taken=draw_sizes[at], made=draw_sizes[at + 1])
        for at, (weights, macs) in enumerate(zip(draw_weights, draw_macs, strict=True))
    ]
    return chain(layers, draw_sizes[1 : len(layers)])


def two_devices_ns(instance, forms):
    """AccPar's objective on two equal devices of one class, written down once more, each part rounded up."""
    training, (server,) = instance.training, instance.servers
    link = server.link
    batches = training.micro_batches

    def transfer(size):
        return size * 8 * GIGA / link.bits_per_second

    total = 0
    for at, form in enumerate(forms):
        work = Fraction(instance.forward_ns[0][at] + instance.backward_ns[0][at], 2) * batches
        sums = (
            instance.parameter_bytes[at],
            instance.output_bytes[at] * batches,
            instance.input_bytes[at] * batches,
        )[form]
        total += ceil_fraction(work + transfer(Fraction(sums)))
        if at:
            size = instance.edges[at - 1].size_bytes * batches
            total += ceil_fraction(transfer(TABLE[forms[at - 1]][form] * size))
    return total


@SLOW_DRAWS
@given(st.data())
def test_on_two_equal_devices_it_is_the_best_by_its_own_objective(data):
    count = data.draw(st.integers(1, 5))
    sizes = data.draw(st.lists(st.integers(0, 50_000), min_size=count + 1, max_size=count + 1))
    weights = data.draw(st.lists(st.integers(0, 50_000), min_size=count, max_size=count))
    macs = data.draw(st.lists(st.integers(0, 50_000), min_size=count, max_size=count))
    server = Server("s", DeviceClass("unit", 1 << 40, GIGA), 2, Link(data.draw(st.sampled_from([GIGA, 8 * GIGA]))))
    training = Training(global_batch=2, micro_batches=data.draw(st.integers(1, 2)))
    instance = build_instance(
        chain_of(sizes, weights, macs), cluster_graph("one", [server], []), training, CostModel()
    )
    outcome = checked(instance, accpar.solve(instance))
    assert outcome.plan is not None
    (stage,) = outcome.plan.stages
    least = min(two_devices_ns(instance, forms) for forms in itertools.product((0, 1, 2), repeat=count))
    assert two_devices_ns(instance, stage.forms) == least
    assert expected_ns(outcome.notes[0]) == least
    assert f" for one step of {training.micro_batches} micro-batch" in outcome.notes[0]


@SLOW_DRAWS
@given(layer_graphs(splits=(Split.MATRIX, Split.JOIN, Split.FOLLOW)), flat_clusters(4), trainings(), cost_models)
def test_it_is_the_best_by_its_own_costs_on_any_graph(layers, cluster, training, cost):
    instance = build_instance(layers, cluster, training, cost)
    outcome = checked(instance, accpar.solve(instance))
    assert outcome.plan is not None
    costs = accpar.costs(instance)
    choices = [
        (0,)
        if layer.split is Split.FOLLOW or instance.devices == 1
        else sorted({*layer.allowed_forms} & {0, 1, 2})
        for layer in instance.layers
    ]
    least = min(sum_of_costs(instance, forms, *costs) for forms in itertools.product(*choices))
    assert sum_of_costs(instance, outcome.plan.stages[0].forms, *costs) == least


@SLOW_DRAWS
@given(layer_graphs(splits=(Split.MATRIX, Split.JOIN)), st.sampled_from([AllReduce.RING, AllReduce.PLAIN]))
def test_on_two_devices_without_latency_it_believes_what_is_so(layers, all_reduce):
    """On two equal devices, one micro-batch and a link of whole bytes a ns, its objective is the evaluator's."""
    cost = CostModel(all_reduce=all_reduce)
    cluster = cluster_graph("one", [Server("s", DeviceClass("unit", 1 << 40, 2 * GIGA), 2, BYTE_LINK)], [])
    instance = build_instance(layers, cluster, Training(global_batch=4, bytes_per_element=4), cost)
    outcome = checked(instance, accpar.solve(instance))
    assert outcome.plan is not None and outcome.objective is not None
    believed = expected_ns(outcome.notes[0])
    # Every layer and edge is rounded up on its own, by less than 1 ns in each of its parts.
    parts = 3 * len(instance.layers) + 2 * len(instance.form_edges)
    assert abs(believed - outcome.objective) <= parts
    assert evaluate(instance, outcome.plan).feasible


def test_its_costs_are_those_of_the_authors_program_at_one_level():
    """Without computing, the types of the highest level on AlexNet, which its program prints as 00000 121."""
    instance = alexnet(2)
    outcome = checked(instance, accpar.solve(instance))
    assert outcome.plan is not None
    assert outcome.plan.stages[0].forms == optimise(ALEXNET, levels=1, types=ACCPAR).types[0]


def test_shares_of_unequal_halves():
    instance = instance_of(
        chain([matrix("a", 1, 100, taken=100, made=100), matrix("b", 1, 100, taken=100, made=100)], [100]), mesh(2)
    )
    part, (edge,) = Fraction(3, 4), instance.form_edges
    table = [[moved_bytes(instance, edge, s, t, LayerShare(), part) for t in (0, 1, 2)] for s in (0, 1, 2)]
    # Turning rows into columns moves 3/16 each way, gathering 3/4 of the tensor (the half with the smaller part).
    assert table == [[0, Fraction(75, 2), 75], [75, 75, 0], [Fraction(75, 2), 0, 75]]
    assert table == [
        [moved_bytes(instance, edge, s, t, LayerShare(), 1 - part) for t in (0, 1, 2)] for s in (0, 1, 2)
    ]
    shares = [LayerShare().split(Split.MATRIX, form, part) for form in (0, 1, 2)]
    assert shares == [
        LayerShare(part, Fraction(1), part),
        LayerShare(part, part, Fraction(1)),
        LayerShare(Fraction(1), part, part),
    ]
    assert [summed_bytes(instance, 0, form, shares[form]) for form in (0, 1, 2)] == [100, 100, 100]


def unlike(*classes):
    servers = [
        Server(f"s{at}", DeviceClass(name, 1 << 40, speed), 2, BYTE_LINK)
        for at, (name, speed) in enumerate(classes)
    ]
    links = [(one.name, other.name, Link(GIGA)) for one, other in itertools.combinations(servers, 2)]
    layers = [matrix("a", 9000, 100, taken=100, made=100), matrix("b", 9000, 100, taken=100, made=100)]
    return instance_of(chain(layers, [100]), cluster_graph("unlike", servers, links))


def test_unequal_devices_are_parted_first_and_get_work_by_their_speed():
    instance = unlike(("slow", 180), ("fast", 420), ("slow", 180))
    machine = bisected(instance)
    assert isinstance(machine, Halves)
    assert machine.part == Fraction(4 * 180, 4 * 180 + 2 * 420)
    assert machine.link == Link(GIGA)
    assert isinstance(machine.first, Halves) and isinstance(machine.second, Halves)
    assert (machine.first.alike, machine.second.alike) == (True, True)
    assert machine.second.first == machine.second.second == 1
    outcome = checked(instance, accpar.solve(instance))
    assert "AccPar gives 46.2% of the work to the first half" in outcome.notes[1]


def test_with_a_fitting_ratio_computing_takes_as_long_as_on_all_speeds_together():
    instance = unlike(("slow", 180), ("fast", 420))
    inside, _ = accpar.costs(instance)
    whole = (instance.forward_ns[0][0] + instance.backward_ns[0][0]) * 180
    # 100 bytes of weights, summed between the servers at 1 Gbit/s, then inside each at 1 byte a ns.
    assert inside[0][0] == pytest.approx(whole / 1200 + 800 + 100, abs=2)


def test_one_device_needs_no_types():
    instance = instance_of(chain([matrix("a", 9, 9, taken=9, made=9)], []), mesh(1))
    assert accpar.solve(instance).objective == data_parallel.solve(instance).objective


@SLOW_DRAWS
@given(instances())
def test_its_plan_keeps_the_rules_and_is_never_better_than_the_optimum(instance):
    outcome = checked(instance, accpar.solve(instance))
    assert outcome.proof is Proof.FEASIBLE
    best = line_dp.solve(instance)
    assert best.proof is Proof.OPTIMAL
    assert outcome.objective is not None and best.objective is not None
    assert outcome.objective >= best.objective


def test_the_half_with_the_slower_links_sets_the_time():
    kind = DeviceClass("unit", 1 << 40, GIGA)
    servers = [Server("quick", kind, 2, BYTE_LINK), Server("slow", kind, 2, Link(GIGA))]
    cluster = cluster_graph("two", servers, [("quick", "slow", Link(GIGA))])
    layers = [matrix("a", 0, 100, taken=100, made=100), matrix("b", 0, 100, taken=100, made=100)]
    inside, between = accpar.costs(instance_of(chain(layers, [100]), cluster))
    # 8 ns a byte between the servers, then the same inside the slow one, and 1 ns inside the other.
    assert inside[0][0] == 800 + 800
    # Form 0 to 2 gathers half a tensor between the servers, and as its consumer takes it whole, again inside.
    assert between[0][0][2] == 400 + 400
