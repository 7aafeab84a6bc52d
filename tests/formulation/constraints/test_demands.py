"""Demands by themselves: what globs and names mean, and that each rule finds exactly its violation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.constraints.constraint import Violation
from pipecut.formulation.constraints.devices.reserve import Reserve
from pipecut.formulation.constraints.layers.forms import FormLimit
from pipecut.formulation.constraints.layers.pin import Pin, Pinned
from pipecut.formulation.constraints.plans.own import Own
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Demands
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import LayerGraph, layer_graph
from pipecut.formulation.problem.plan import Plan, Span, Stage
from tests.examples import PLAIN, chain, follow, instance_of, matrix, mesh

LAYERS = chain([matrix("in", 6), matrix("mid.0"), follow("mid.1"), matrix("fc[3]", allowed=(0, 2))], [1, 1, 1])
INSTANCE = instance_of(LAYERS, mesh(1, 1, 2))


def asked(**demands: Any) -> Instance:
    return replace(INSTANCE, constraints=Constraints(**demands))


def stages(*cuts: int, servers: tuple[int, ...] = (0, 1, 2)) -> Plan:
    """Stages of one device each between the cuts, on servers in order."""
    ends = (0, *cuts, 4)
    return Plan(
        tuple(
            Stage(Span(first, stop), Group(((server, 1),)), (0,) * (stop - first))
            for first, stop, server in zip(ends, ends[1:], servers, strict=False)
        )
    )


UNEQUAL = Plan(
    (
        Stage(Span(0, 2), Group(((0, 1),)), (0, 0)),
        Stage(Span(2, 4), Group(((1, 1), (2, 1))), (0, 0)),
    )
)
"""One device, then two."""


def test_globs_and_names_become_indices() -> None:
    demands = asked(
        stages_at_least=2,
        stages_at_most=3,
        pins=(Pin("mid.*", servers=("s2", "s0")), Pin("fc[3]", stage=-1), Pin("*", device="unit")),
        together=(("mid.?", "in"),),
        apart=(("in", "fc*"),),
        no_cut=("mid.1", "*"),
        devices_per_stage=(2, 1, 2),
        forms=(FormLimit("*", (0, 1)),),
    ).demands
    assert demands == Demands(
        stages_at_least=2,
        stages_at_most=3,
        pins=(Pinned((1, 2), (0, 2), None), Pinned((3,), None, -1), Pinned((0, 1, 2, 3), (0, 1, 2), None)),
        together=((0, 1, 2),),
        apart=(((0,), (3,)),),
        no_cut=(0, 1, 2, 3),
        devices_per_stage=(1, 2),
        forms=(((0, 1, 3), (0, 1)),),
    )


def test_forms_narrow_layers_that_choose_one() -> None:
    instance = asked(forms=(FormLimit("*", (0, 1)), FormLimit("mid*", (1, 2))))
    assert [layer.allowed_forms for layer in instance.layers] == [(0, 1), (1,), (0, 1, 2), (0,)]
    assert replace(instance, constraints=Constraints()) == INSTANCE


def test_a_reserve_makes_a_class_of_its_own_and_is_given_back() -> None:
    classes = [DeviceClass("fast", 100, 2 * 10**9), DeviceClass("slow", 80, 10**9)]
    servers = [Server(f"s{at}", classes[at % 2], 1) for at in range(4)]
    graph = cluster_graph(
        "c", servers, [(f"s{at}", "s0", mesh(1, 1).edges["s0", "s1"]["link"]) for at in (1, 2, 3)]
    )
    plain = build_instance(LAYERS, graph, INSTANCE.training, PLAIN)
    limits = Constraints(memory=True, reserve=(Reserve("s2", 30), Reserve("s1", 0)))
    built = build_instance(LAYERS, graph, INSTANCE.training, PLAIN, limits)
    assert [server.device_class.memory_bytes for server in built.servers] == [100, 80, 70, 80]
    assert [(one.name, one.memory_bytes) for one in built.device_classes] == [
        ("fast", 100),
        ("slow", 80),
        ("fast", 70),
    ]
    assert built == replace(plain, constraints=limits)
    assert built.forward_ns == (plain.forward_ns[0], plain.forward_ns[1], plain.forward_ns[0])
    assert replace(built, constraints=Constraints()) == plain


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"pins": (Pin("mod.*", stage=0),)}, "constraints.pin[0].layers: no layer matches 'mod.*'; the closest"),
    ({"pins": (Pin("in", servers=("S9",)),)}, "constraints.pin[0].server: no server 'S9'"),
    ({"pins": (Pin("in", device="unite"),)}, "constraints.pin[0].device: no device class 'unite'; the closest"),
    ({"together": (("in", "x"),)}, "constraints.together[0]: no layer matches 'x'"),
    ({"no_cut": ("in", "q.q")}, "constraints.no_cut[1]: no layer matches 'q.q'"),
    ({"apart": (("mid*", "*.1"),)}, "constraints.apart[0]: layer mid.1 matches 'mid*' and '*.1', and"),
    ({"forms": (FormLimit("mid.1", (0,)),)}, "constraints.forms[0]: every layer that matches 'mid.1' keeps"),
    ({"forms": (FormLimit("fc*", (1,)),)}, "constraints.forms: they leave layer fc[3] none of its forms (0, 2)"),
    ({"forms": (FormLimit("in", (34,)),)}, "constraints.forms[0]: allowed forms [34], expected some of 0 to 33"),
    ({"forms": (FormLimit("in", (3,)),)}, "constraints.forms: they leave layer in none of its forms (0, 1, 2)"),
    ({"reserve": (Reserve("s7", 1),)}, "constraints.reserve.s7: no server 's7'"),
    ({"reserve": (Reserve("s0", 1 << 40),)}, "constraints.reserve.s0: 1099511627776 bytes of devices that have"),
)  # fmt: skip


@pytest.mark.parametrize(("demands", "message"), WRONG)
def test_what_names_nothing_is_refused(demands: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        asked(**demands)
    assert str(caught.value).startswith(message)


def test_mistakes_are_told_together() -> None:
    with pytest.raises(ValueError, match=r"pin\[0\].*; constraints\.no_cut\[0\]"):
        asked(pins=(Pin("x", stage=0),), no_cut=("y",))


IMPOSSIBLE = (
    ("at least 3 stages and at most 2", {"stages_at_least": 3, "stages_at_most": 2}),
    ("at_least is 0, expected 1 or more", {"stages_at_least": 0}),
    ("devices_per_stage is \\(1, 0\\)", {"devices_per_stage": (1, 0)}),
    ("stages_per_server is 0, expected 1 or more", {"stages_per_server": 0}),
    ("two own constraints", {"own": 2 * (Own("a", lambda *_: iter(()), lambda v: iter(())),)}),
)


@pytest.mark.parametrize(("message", "demands"), IMPOSSIBLE)
def test_contradictions_are_no_constraints(message: str, demands: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=message):
        Constraints(**demands)


def test_a_pin_says_one_thing() -> None:
    for wrong in ({}, {"stage": 1, "device": "x"}, {"servers": ("a",), "stage": 0}):
        with pytest.raises(ValueError, match="exactly one of servers, device and stage"):
            Pin("a", **wrong)
    with pytest.raises(ValueError, match="expected a name of letters"):
        Own("my rule", lambda *_: iter(()), lambda v: iter(()))


def rich(instance: Instance, plan: Plan) -> Any:
    if len(plan) > 1:
        yield Violation("whatever", "plan", len(plan), 1, "stages", "one stage is enough")


BROKEN: tuple[tuple[dict[str, Any], Plan, tuple[str, str, int, int, str]], ...] = (
    ({"stages_at_least": 3}, stages(2), ("stages", "plan", 2, 3, "stages")),
    ({"stages_at_most": 1}, stages(2), ("stages", "plan", 2, 1, "stages")),
    ({"pins": (Pin("fc*", servers=("s0", "s2")),)}, stages(2), ("pin", "stage 1", 1, 0, "devices elsewhere")),
    ({"pins": (Pin("mid.*", stage=0),)}, stages(1), ("pin", "stage 1", 1, 0, "stage")),
    ({"pins": (Pin("in", stage=-1),)}, stages(1), ("pin", "stage 0", 0, 1, "stage")),
    ({"pins": (Pin("in", stage=-3),)}, stages(1), ("pin", "stage 0", 0, -1, "stage")),
    ({"together": (("in", "fc*"),)}, stages(1, 2), ("together", "stage 2", 2, 1, "stages")),
    ({"apart": (("mid.0", "in", "fc*"),)}, stages(3), ("apart", "stage 0", 2, 1, "sets of layers")),
    ({"no_cut": ("mid.1", "in")}, stages(2), ("no_cut", "stage 1", 1, 0, "cuts")),
    ({"devices_per_stage": (3, 2)}, stages(), ("devices_per_stage", "stage 0", 1, 2, "devices")),
    ({"stages_per_server": 1}, stages(1, 2, 3, servers=(0, 1, 2, 2)), ("stages_per_server", "s2", 2, 1, "stages")),
    ({"equal_stages": True}, UNEQUAL, ("equal_stages", "stage 1", 2, 1, "devices")),
    ({"own": (Own("rich", rich, lambda v: iter(())),)}, stages(2), ("own:rich", "plan", 2, 1, "stages")),
)


@pytest.mark.parametrize(("demands", "plan", "expected"), BROKEN)
def test_each_rule_finds_its_violation_and_no_other(
    demands: dict[str, Any], plan: Plan, expected: tuple[str, str, int, int, str]
) -> None:
    assert evaluate(INSTANCE, plan).violations == ()
    (found,) = evaluate(asked(**demands), plan).violations
    assert (found.rule, found.where, found.found, found.limit, found.unit) == expected
    if expected[0] != "own:rich":
        assert f"constraints.{expected[0]}" in found.message


KEPT: tuple[tuple[dict[str, Any], Plan], ...] = (
    ({"stages_at_least": 2, "stages_at_most": 2}, stages(2)),
    ({"pins": (Pin("fc*", servers=("s1",)), Pin("in", device="unit"), Pin("fc*", stage=-1))}, stages(2)),
    ({"together": (("mid*",),), "apart": (("in", "mid*"),)}, stages(1)),
    ({"no_cut": ("in", "mid.1")}, stages(1, 3)),
    ({"devices_per_stage": (1,)}, stages(1, 3)),
    ({"stages_per_server": 1}, stages(1, 3)),
    ({"equal_stages": True}, stages(1, 3)),
)


@pytest.mark.parametrize(("demands", "plan"), KEPT)
def test_a_plan_that_keeps_a_demand_breaks_nothing(demands: dict[str, Any], plan: Plan) -> None:
    assert evaluate(asked(**demands), plan).violations == ()


def test_a_model_is_cut_at_its_places_only() -> None:
    graph = INSTANCE.layer_graph
    graph.graph["cuts"] = ("fc[3]",)
    closed = replace(instance_of(graph, mesh(1, 1, 2)), constraints=Constraints(no_cut=("mid.1",)))
    assert CutSpace.of(closed).places == (0, 3, 4) and closed.model.closed() == (1, 2)
    assert evaluate(closed, stages(3)).violations == () == evaluate(closed, stages()).violations
    one, other = evaluate(closed, stages(1, 2)).violations
    assert (one.rule, one.where, one.found, one.limit) == ("no_cut", "stage 1", 1, 0)
    assert one.message == (
        "model.cuts: stage 1 starts at layer mid.0, which is no place to cut; the nearest are fc[3]"
    )
    assert other.where == "stage 2" and "layer mid.1" in other.message
    nowhere = replace(closed, model=replace(closed.model, cuts=()))
    assert CutSpace.of(nowhere).places == (0, 4)
    assert "the model has none" in evaluate(nowhere, stages(3)).violations[0].message


def test_places_to_cut_survive_a_copy_and_name_layers() -> None:
    model = replace(INSTANCE.model, cuts=(3, 0, 1, 3), notes=("read",))
    assert model.cuts == (1, 3) and LayerGraph.of(model.graph()) == model
    assert LayerGraph.of(model.graph()).notes == ("read",)
    with pytest.raises(ValueError, match="a cut at a layer that it does not have"):
        replace(model, cuts=(4,))
    with pytest.raises(ValueError, match="no layer nowhere to cut at"):
        layer_graph("x", [matrix("a")], [], cuts=["nowhere"])


@given(st.permutations(range(3)))
def test_only_a_pin_tells_servers_apart(order: list[int]) -> None:
    one, other, third = order
    demands = asked(pins=(Pin("in", servers=(f"s{one}", f"s{other}")),)).demands
    assert not demands.tell_apart(one, other)
    assert demands.tell_apart(one, third) and demands.tell_apart(third, other)
    assert not replace(demands, pins=()).tell_apart(one, third)
