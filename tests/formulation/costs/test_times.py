"""The time formulas on numbers that fit a head: 1 FLOP is 1 ns, 1 byte is 1 ns."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from pipecut.formulation.costs import times
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.layers import Edge, FormEdge, layer_graph
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import AllReduce, Boundary, CostModel
from pipecut.formulation.problem.plan import Span
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link, Volume
from tests.examples import BYTE_LINK, GIGA, UNIT, chain, follow, instance_of, join, matrix, mesh

PAIR = GroupKind(2, (0,), BYTE_LINK, BYTE_LINK)
TRIO = GroupKind(3, (0,), BYTE_LINK, BYTE_LINK)


def test_compute_rounds_forward_and_backward_up_apart():
    """Forward 7, backward 14: ceil(7/2) + ceil(14/2); ceil(7/3) + ceil(14/3)."""
    instance = instance_of(chain([matrix("a", 7)], []), mesh(3))
    assert times.compute_ns(instance, 0, 0, GroupKind(1, (0,), None)) == 21
    assert times.compute_ns(instance, 0, 0, PAIR) == 4 + 7
    assert times.compute_ns(instance, 0, 0, TRIO) == 3 + 5


def test_a_stage_that_recomputes_runs_forward_twice():
    """Forward 7 on two devices: 2 * 4 + 7; its all-reduce of 4 bytes forward (form 1) comes twice, too."""
    instance = instance_of(chain([matrix("a", 7, taken=8, made=4)], []), mesh(2))
    again = replace(PAIR, mode=Mode(recompute=True))
    assert times.compute_ns(instance, 0, 0, again) == 2 * 4 + 7
    assert [times.inside_ns(instance, 0, form, again) for form in (0, 1, 2)] == [0, 8, 8]


def test_two_replicas_of_two_devices_each():
    """Half of the samples each: 2 of 4 output bytes are summed inside; weights of 90, or shards of 45, across."""
    instance = instance_of(chain([matrix("a", weights=90, taken=8, made=4)], []), mesh(2, 2, inside=BYTE_LINK))
    kind = GroupKind.of(instance, Group.on_line(instance, 0, 4, Mode(2)))
    assert (kind.inner, kind.link) == (instance.links[0][0], instance.links[0][1])
    assert times.passes_ns(instance, 0, 1, kind) == (2, 0)
    assert times.passes_ns(instance, 0, 3, kind) == (1, 1)
    assert times.passes_ns(instance, 0, 4, kind) == (2, 2)
    assert times.synchronisation_ns(instance, 0, 1, kind) == 45
    assert times.synchronisation_ns(instance, 0, 0, kind) == 135


def test_a_replica_that_straddles_servers_feels_their_link():
    slow = mesh(2, 2, inside=Link(80 * GIGA), between=Link(8 * GIGA))
    instance = instance_of(chain([matrix("a")], []), slow)
    assert GroupKind.of(instance, Group.on_line(instance, 0, 4, Mode(2))).inner == Link(80 * GIGA)
    assert GroupKind.of(instance, Group.on_line(instance, 1, 2)).inner == Link(8 * GIGA)
    assert GroupKind.of(instance, Group(((0, 1), (1, 1)), Mode(2))).inner is None


def test_the_slowest_class_sets_the_pace():
    fast = DeviceClass("fast", 1, 2 * GIGA)
    cluster = cluster_graph("mixed", [Server("f", fast, 1), Server("u", UNIT, 1)], [("f", "u", BYTE_LINK)])
    instance = instance_of(chain([matrix("a", 8)], []), cluster)
    assert times.compute_ns(instance, 0, 0, GroupKind(1, (0,), None)) == 12
    assert times.compute_ns(instance, 0, 0, GroupKind.of(instance, Group.on_line(instance, 0, 2))) == 12
    assert times.compute_ns(instance, 0, 0, GroupKind(1, (1,), None)) == 24


def test_options_of_counting():
    cost = CostModel(flops_per_mac=2, backward_factor=Fraction(1, 3))
    instance = instance_of(chain([matrix("a", 10)], []), mesh(1), cost, Training(global_batch=2))
    assert (instance.forward_ns[0][0], instance.backward_ns[0][0]) == (40, 14)


def test_gradients_of_weights_are_shared_by_the_micro_batches():
    """Weights 90 bytes: a step of 3 micro-batches sums them once, 30 ns each; activations are summed each time."""
    layers = chain([matrix("a", weights=90, taken=8, made=4)], [])
    instance = instance_of(layers, mesh(2), training=Training(global_batch=6, micro_batches=3))
    assert [times.inside_ns(instance, 0, form, PAIR) for form in (0, 1, 2)] == [30, 8, 16]


def test_latency_is_paid_for_every_message():
    """Ring over 3 devices: 4 messages; one boundary: 1 message; plain: 1 message; nothing to move: none."""
    slow = GroupKind(3, (0,), Link(8 * GIGA, 1000), Link(8 * GIGA, 1000))
    layers = chain([matrix("a", weights=30), matrix("b")], [12])
    instance = instance_of(layers, mesh(3))
    assert times.inside_ns(instance, 0, 0, slow) == 40 + 4 * 1000
    assert times.inside_ns(instance, 1, 0, slow) == 0
    assert times.activation_ns(instance, 1, Link(8 * GIGA, 1000)) == 12 + 1000
    plain = instance_of(layers, mesh(3), CostModel(all_reduce=AllReduce.PLAIN))
    assert times.inside_ns(plain, 0, 0, slow) == 30 + 1000


def test_transfers_round_up():
    assert Volume(Fraction(10, 3), 0).transfer_ns(BYTE_LINK) == 4
    assert Volume(Fraction(1), 1).transfer_ns(Link(3)) == 2_666_666_667


@pytest.mark.parametrize(
    ("boundary", "activation", "gradient"),
    [(Boundary.NONE, 0, 0), (Boundary.ACTIVATION, 5, 0), (Boundary.BOTH, 5, 5)],
)
def test_boundary_options(boundary, activation, gradient):
    instance = instance_of(chain([matrix("a"), matrix("b")], [5]), mesh(2), CostModel(boundary=boundary))
    assert times.activation_ns(instance, 1, BYTE_LINK) == activation
    assert times.gradient_ns(instance, 1, BYTE_LINK) == gradient


def skipping():
    """a feeds b, c and d; b feeds c; c feeds d. Edges of a: 10 bytes each, but a makes only 25."""
    layers = [matrix("a", made=25), matrix("b", made=7), matrix("c", made=9), join("d")]
    edges = [("a", "b", 10), ("a", "c", 10), ("a", "d", 10), ("b", "c", 7), ("c", "d", 9)]
    return layer_graph("skipping", layers, edges)


def test_a_tensor_crosses_a_cut_once_and_at_most_whole():
    instance = instance_of(skipping(), mesh(4))
    assert [times.cut_bytes(instance, cut) for cut in range(5)] == [0, 25, 27, 19, 0]


def test_follow_layers_pass_on_the_form_of_their_source():
    layers = layer_graph(
        "residual",
        [matrix("a"), follow("norm"), matrix("b"), follow("relu"), join("sum"), follow("last"), follow("lone")],
        [
            ("a", "norm", 1),
            ("norm", "b", 2),
            ("b", "relu", 3),
            ("norm", "sum", 4),
            ("relu", "sum", 5),
            ("sum", "last", 6),
        ],
    )
    instance = instance_of(layers, mesh(2))
    assert instance.sources == (0, 0, 2, 2, 4, 4, None)
    assert instance.form_edges == (FormEdge(0, 2, 2), FormEdge(0, 4, 4), FormEdge(2, 4, 5))
    assert Edge(3, 4, 5) in instance.edges
    assert times.layout_form(instance, Span(0, 7), 5) == 4
    assert times.layout_form(instance, Span(5, 7), 5) is None
    assert times.layout_form(instance, Span(0, 7), 6) is None


def test_groups_feel_their_slowest_link():
    inside, near, far = Link(100 * GIGA, 1), Link(10 * GIGA, 5), Link(20 * GIGA, 9)
    servers = [Server("a", UNIT, 2, inside), Server("b", UNIT, 1), Server("c", UNIT, 2, inside)]
    links = [("a", "b", near), ("b", "c", far), ("a", "c", far)]
    instance = instance_of(chain([matrix("m")], []), cluster_graph("three", servers, links))
    assert GroupKind.of(instance, Group.on_line(instance, 0, 1)) == GroupKind(1, (0,), None)
    assert GroupKind.of(instance, Group.on_line(instance, 0, 2)).link == inside
    assert GroupKind.of(instance, Group.on_line(instance, 1, 2)).link == near
    assert GroupKind.of(instance, Group.on_line(instance, 0, 4)).link == Link(10 * GIGA, 9)
    assert Group.link_between(instance, Group.on_line(instance, 0, 1), Group.on_line(instance, 1, 1)) == inside
    assert Group.link_between(instance, Group.on_line(instance, 0, 1), Group.on_line(instance, 1, 2)) == near
    assert Group.link_between(instance, Group.on_line(instance, 0, 3), Group(((2, 1),))) == far
