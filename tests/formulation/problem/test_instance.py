"""An instance is what a user wrote, and all that follows from it: no two of its parts can disagree."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings

import pipecut
from pipecut.formulation.certificates.check import fingerprint
from pipecut.formulation.constraints.devices.reserve import Reserve
from pipecut.formulation.constraints.layers.forms import FormLimit
from pipecut.formulation.constraints.layers.pin import Pin
from pipecut.formulation.problem.cluster import Cluster, Server, Wiring
from pipecut.formulation.problem.constraints import Constraints, Goal
from pipecut.formulation.problem.instance import Instance, build_instance, with_servers
from pipecut.formulation.problem.layers import Layer, LayerGraph
from pipecut.formulation.problem.options import Combine, CostModel
from pipecut.formulation.problem.training import Training
from pipecut.ingest.scenario.load import load_scenario
from tests.examples import BYTE_LINK, PLAIN, UNIT, chain, instance_of, matrix, mesh
from tests.generators import instances
from tests.laws import so_many
from tests.one_stage import with_layers

WRITTEN = {"model", "cluster", "training", "cost", "constraints", "goals"}
VGG16 = "scenarios/pipepar/vgg16.yaml"


def small(constraints: Constraints | None = None) -> Instance:
    layers = chain([matrix("a", 10), matrix("b", 20)], [4])
    return build_instance(layers, mesh(1, 2), Training(global_batch=1), PLAIN, constraints)


@pytest.mark.slow
def test_a_limit_on_stages_holds() -> None:
    instance = load_scenario(VGG16).load()
    limits = replace(instance.constraints, stages_at_most=1)
    changed = replace(instance, constraints=limits)
    assert changed.demands.stages_at_most == 1
    found = pipecut.plan(changed)
    assert found.objective == 273_202_049
    assert found.plan is not None and len(found.plan) == 1


def test_every_derived_field_refuses_to_be_given() -> None:
    instance = small()
    derived = {field.name for field in fields(instance)} - WRITTEN
    assert {"demands", "layers", "servers", "forward_ns", "links"} <= derived
    for name in derived:
        with pytest.raises((TypeError, ValueError), match=name):
            replace(instance, **{name: getattr(instance, name)})
        with pytest.raises(TypeError):
            Instance(**{one: getattr(instance, one) for one in (*WRITTEN, name)})
        with pytest.raises(AttributeError):
            setattr(instance, name, getattr(instance, name))


def test_parts_are_derived_anew() -> None:
    instance = small()
    assert replace(instance, training=Training(global_batch=2)).forward_ns == ((20, 40),)
    assert replace(instance, cost=replace(PLAIN, flops_per_mac=2)).forward_ns == ((20, 40),)
    limits = Constraints(forms=(FormLimit("a", (0,)),), reserve=(Reserve("s1", 100),), pins=(Pin("b", stage=1),))
    limited = replace(instance, constraints=limits)
    assert limited.layers[0].allowed_forms == (0,)
    assert [one.device_class.memory_bytes for one in limited.servers] == [
        UNIT.memory_bytes,
        UNIT.memory_bytes - 100,
    ]
    assert len(limited.device_classes) == len(limited.forward_ns) == 2
    assert limited.demands.pins[0].layers == (1,)
    assert limited == small(limits)
    assert replace(limited, constraints=Constraints()) == instance


def test_what_the_parts_contradict_is_refused_by_every_route() -> None:
    instance = small()
    with pytest.raises(ValueError, match="no layer matches 'c'"):
        replace(instance, constraints=Constraints(no_cut=("c",)))
    with pytest.raises(ValueError, match="iteration_time is paced by the slowest stage"):
        replace(instance, goals=(Goal.ITERATION_TIME,), cost=CostModel(combine=Combine.SUM))
    with pytest.raises(ValueError, match="leave layer a none of its forms"):
        with_layers(
            replace(instance, constraints=Constraints(forms=(FormLimit("a", (0,)),))),
            [matrix("a", 10, allowed=(1,)), matrix("b", 20)],
        )


def test_graphs_are_copied_in_and_out() -> None:
    layers, cluster = chain([matrix("a", 10), matrix("b", 20)], [4]), mesh(1, 2)
    instance = instance_of(layers, cluster)
    before, mark = instance.forward_ns, fingerprint(instance)
    for graph in (layers, instance.layer_graph):
        graph.nodes["a"]["layer"] = matrix("a", 10**6)
        graph.edges["a", "b"]["bytes"] = 10**6
    for graph in (cluster, instance.cluster_graph):
        graph.nodes["s0"]["server"] = Server("s0", UNIT, 100, BYTE_LINK)
        graph.remove_edge("s0", "s1")
    again = replace(instance, constraints=Constraints())
    assert (again.forward_ns, again.devices, fingerprint(again)) == (before, 3, mark)
    assert instance.layer_graph.edges["a", "b"]["bytes"] == 4
    assert instance.cluster_graph.edges["s0", "s1"]["link"] == BYTE_LINK


def test_graphs_that_were_bent_by_hand_are_checked_again() -> None:
    layers = chain([matrix("a", 10), matrix("b", 20)], [4])
    layers.add_edge("b", "a", bytes=1)
    with pytest.raises(ValueError, match="against the execution order"):
        instance_of(layers, mesh(1, 2))
    cluster = mesh(1, 1)
    cluster.remove_edge("s0", "s1")
    with pytest.raises(ValueError, match="cannot reach each other"):
        instance_of(chain([matrix("a", 10)], []), cluster)
    renamed = mesh(1, 1)
    renamed.nodes["s0"]["server"] = Server("other", UNIT, 1)
    with pytest.raises(ValueError, match="no such pair of servers"):
        instance_of(chain([matrix("a", 10)], []), renamed)


def test_values_of_graphs_are_checked_when_they_are_made_by_hand() -> None:
    rows: tuple[Layer, ...] = (matrix("a"), matrix("b"))
    with pytest.raises(ValueError, match="against the execution order"):
        LayerGraph("x", rows, ((1, 0, 4),), 4)
    with pytest.raises(ValueError, match="layers that it does not have"):
        LayerGraph("x", rows, ((0, 2, 4),), 4)
    with pytest.raises(ValueError, match="element_bytes 0"):
        LayerGraph("x", rows, (), 0)
    with pytest.raises(ValueError, match="named once each"):
        Wiring(("s0",), (), (("s0", "s1", BYTE_LINK),))
    with pytest.raises(ValueError, match="cannot reach each other"):
        Wiring(("s0", "s1"), (), ())
    with pytest.raises(ValueError, match="links between"):
        Cluster("x", (Server("s0", UNIT, 1),), Wiring(("s1",), (), ()))


def test_servers_may_differ_in_memory_only() -> None:
    instance = small(Constraints(reserve=(Reserve("s1", 100),)))
    halved = [replace(one, device_class=replace(one.device_class, memory_bytes=500)) for one in instance.servers]
    changed = with_servers(instance, halved)
    assert [one.device_class.memory_bytes for one in changed.servers] == [500, 500]
    assert [one.device_class.memory_bytes for one in changed.cluster.servers] == [500, 600], "the reserve stays"
    faster = [replace(one, device_class=replace(one.device_class, flops_per_second=1)) for one in instance.servers]
    with pytest.raises(ValueError, match="more than its memory differs"):
        with_servers(instance, faster)


@settings(max_examples=so_many(50), deadline=None)
@given(instances())
def test_copies_are_the_same_instance(instance: Instance) -> None:
    for again in (copy.copy(instance), copy.deepcopy(instance), pickle.loads(pickle.dumps(instance))):  # noqa: S301
        assert again == instance and fingerprint(again) == fingerprint(instance)
        assert replace(again) == instance
    assert (
        build_instance(instance.layer_graph, instance.cluster_graph, instance.training, instance.cost) == instance
    )
