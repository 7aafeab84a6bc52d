"""Weights that several layers use: what stages pay for copies, by hand, and that every method knows of them."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.certificates.check import verify
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.constraints import Constraints
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import LayerGraph, Tie
from pipecut.formulation.problem.options import BoundaryCharge, Combine, Synchronisation
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.certifying import certify
from tests.enumerator import truth
from tests.examples import PLAIN, chain, instance_of, matrix, mesh
from tests.generators import cluster_graphs, cost_models, instances, layer_graphs
from tests.laws import so_many

ONE = Limits(workers=1)
BLOCKS = 3
FILTERED = [HealthCheck.filter_too_much, HealthCheck.too_slow]


def language_model(tied: bool = True) -> nx.DiGraph:
    """An embedding of 1,000 bytes, blocks of 100, and a head that uses the embedding's weights."""
    blocks = [matrix(f"block{at}", 50, 100, taken=10, made=10) for at in range(BLOCKS)]
    layers = [matrix("embedding", 0, 1_000, made=10), *blocks, matrix("head", 50, 0, taken=10, made=10)]
    graph = chain(layers, [10] * (len(layers) - 1))
    graph.graph["ties"] = ((("embedding", "head"), 1_000, 1_000),) if tied else ()
    return graph


def two_stages(instance: Instance, cut: int) -> Plan:
    """One device a stage, all layers in form 0."""
    total = len(instance.layers)
    spans = (Span(0, cut), Span(cut, total))
    return Plan(tuple(Stage(one, Group.on_line(instance, at, 1), (0,) * len(one)) for at, one in enumerate(spans)))


@pytest.mark.parametrize("cut", [1, 4])
def test_a_stage_behind_the_embedding_copies_it(cut: int) -> None:
    far = Link(4 * 10**9, 5)
    priced = [
        evaluate(instance, two_stages(instance, cut)).stages[1]
        for tied in (False, True)
        for instance in [instance_of(language_model(tied), mesh(1, 1, between=far))]
    ]
    # One copy: weights, gradients and four bytes of optimiser state for each of 250 parameters.
    assert priced[1].memory_bytes - priced[0].memory_bytes == 1_000 + 1_000 + 4 * 250
    # An all-reduce of two: all bytes at half a byte a nanosecond, in two messages.
    assert priced[1].inside_ns - priced[0].inside_ns == 2_000 + 2 * 5


def test_a_stage_with_both_has_the_weights_once() -> None:
    whole = [
        evaluate(instance, Plan((Stage(Span(0, 5), Group.on_line(instance, 0, 1), (0,) * 5),)))
        for tied in (False, True)
        for instance in [instance_of(language_model(tied), mesh(1, 1))]
    ]
    assert whole[0] == whole[1]


def test_the_exchange_comes_once_a_step_and_can_be_overlapped() -> None:
    training = Training(global_batch=4, micro_batches=4)
    # The head computes backward for 100 ns meanwhile.
    for synchronisation, expected in ((Synchronisation.CHARGED, 250), (Synchronisation.OVERLAPPED, 150)):
        cost = replace(PLAIN, synchronisation=synchronisation)
        instance = instance_of(language_model(), mesh(1, 1), cost, training)
        assert evaluate(instance, two_stages(instance, 3)).stages[1].inside_ns == expected


def test_frozen_weights_are_copied_without_gradients() -> None:
    graph = language_model()
    graph.nodes["embedding"]["layer"] = replace(graph.nodes["embedding"]["layer"], trainable_bytes=0)
    graph.graph["ties"] = ((("embedding", "head"), 1_000, 0),)
    instance = instance_of(graph, mesh(1, 1))
    stage = evaluate(instance, two_stages(instance, 4)).stages[1]
    assert (stage.inside_ns, stage.memory.weights, stage.memory.gradients, stage.memory.optimizer) == (
        0,
        1_000,
        0,
        0,
    )
    # The head has no weights of its own, and computes no gradient of those that it shares.
    assert instance.backward_ns[0][4] == instance.forward_ns[0][4] == 50


def test_weights_of_three_layers_are_copied_by_every_stage_but_the_first() -> None:
    layers = [matrix(name, 10, 80 * (name == "a")) for name in "abcd"]
    graph = chain(layers, [1, 1, 1])
    graph.graph["ties"] = ((("a", "b", "d"), 80, 80),)
    instance = instance_of(graph, mesh(4))
    stages = tuple(Stage(Span(at, at + 1), Group.on_line(instance, at, 1), (0,)) for at in range(4))
    assert [stage.memory.weights for stage in evaluate(instance, Plan(stages)).stages] == [80, 80, 0, 80]
    joined = (stages[0], Stage(Span(1, 4), Group.on_line(instance, 1, 1), (0, 0, 0)))
    assert [stage.memory.weights for stage in evaluate(instance, Plan(joined)).stages] == [80, 80]


@pytest.mark.parametrize("name", ["cpsat", "state_dp", "step_dp"])
def test_without_copies_the_answer_would_be_another(name: str) -> None:
    """The embedding and a block fill one device, two blocks and a head the other; a copy has no room."""
    card = mesh(1, 1).nodes["s0"]["server"].device_class
    cluster, proofs = mesh(1, 1, kind=replace(card, memory_bytes=3_500)), []
    for tied in (False, True):
        rules = Constraints(memory=True, devices_per_stage=(1,))
        instance = replace(instance_of(language_model(tied), cluster), constraints=rules)
        proofs.append(checked(instance, find_any(name).load()(instance, ONE)).proof)
    assert proofs == [Proof.OPTIMAL, Proof.INFEASIBLE]


@st.composite
def tied_instances(draw: st.DrawFn) -> Instance:
    """Instances in which a layer shares weights with an earlier one, some with memory that binds."""
    instance = draw(
        instances(layer_graphs(max_layers=4, places=True), cluster_graphs(max_devices=3), costs=cost_models)
    )
    assume(any(instance.copies))
    return replace(instance, constraints=Constraints(memory=draw(st.booleans())))


@settings(
    max_examples=so_many(40),
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(tied_instances())
def test_every_method_agrees_with_brute_force(instance: Instance) -> None:
    best = truth(instance)
    for name in ("cpsat", "line_dp", "state_dp", "step_dp"):
        try:
            found = checked(instance, find_any(name).load()(instance, ONE))
        except ValueError:
            continue
        if found.proof is Proof.OPTIMAL:
            assert (found.objective,) == best.values
        else:
            assert (found.proof is Proof.INFEASIBLE and best.values is None) or found.objective is not None


@settings(
    max_examples=so_many(30),
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(tied_instances())
def test_certificates_know_of_copies(instance: Instance) -> None:
    instance = replace(
        instance, cost=replace(instance.cost, combine=Combine.MAX, boundary_charge=BoundaryCharge.LINK)
    )
    best = truth(instance)
    assume(best.plan is not None)
    assert best.plan is not None and best.values is not None
    certificate = certify(instance, best.plan, best.values[0])
    verify(instance, certificate)
    assert certificate.bound == best.values[0]


def test_another_order_has_the_weights_at_another_layer() -> None:
    model = LayerGraph.of(language_model())
    graph = replace(model, edges=())
    moved = graph.in_order((4, 0, 1, 2, 3))
    assert [layer.parameter_bytes for layer in moved.layers] == [1_000, 0, 100, 100, 100]
    assert moved.ties == (Tie((0, 1), 1_000, 1_000),)
    assert moved.in_order((1, 2, 3, 4, 0)) == graph
    assert sum(layer.parameter_bytes for layer in graph.untied().layers) == 300
