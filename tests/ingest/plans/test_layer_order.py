"""Plan files that cut another order of the layers than the traced one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from formulation.evaluate import evaluate
from formulation.problem.cluster import DeviceClass, Server, cluster_graph
from formulation.problem.groups import Group
from formulation.problem.instance import Instance, build_instance
from formulation.problem.layers import Layer, Split, layer_graph
from formulation.problem.options import CostModel, Training
from formulation.problem.plan import Plan, Span, Stage
from formulation.problem.units import Link
from ingest.plans.layer_order import in_order_of
from ingest.plans.plan_file import PlanError, read_plan, read_plan_in_order, write_plan


def two_branches() -> Instance:
    names = ("a0", "a1", "b0", "b1", "join")
    layers = [Layer(name, "block", Split.JOIN, 0, 100, 100, 100, 10**6) for name in names]
    edges = [("a0", "a1", 100), ("b0", "b1", 100), ("a1", "join", 100), ("b1", "join", 100)]
    card = DeviceClass("card", 1 << 30, 10**12)
    cluster = cluster_graph("c", [Server("s", card, 2, Link(10**10))], [])
    return build_instance(layer_graph("two", layers, edges), cluster, Training(1), CostModel())


def stages(*rows: str) -> dict[str, object]:
    return {"stages": [{"layers": row.split(), "devices": {"s": 1}} for row in rows]}


def test_a_plan_of_another_order_is_priced_in_that_order(tmp_path: Path) -> None:
    path, instance = tmp_path / "plan.json", two_branches()
    path.write_text(json.dumps(stages("a0 b0", "a1 b1 join")))
    with pytest.raises(PlanError, match="'b0' does not follow 'a0'"):
        read_plan(path, instance)
    ordered, plan = read_plan_in_order(path, instance)
    assert [layer.name for layer in ordered.layers] == ["a0", "b0", "a1", "b1", "join"]
    one = Group(((0, 1),))
    assert plan == Plan((Stage(Span(0, 2), one, (0, 0)), Stage(Span(2, 5), one, (0, 0, 0))))
    found = evaluate(ordered, plan)
    assert found.feasible and found.stages[1].boundary_ns == 2 * 200 * 8 / 10
    write_plan(path, ordered, plan, found)
    assert read_plan_in_order(path, instance) == (ordered, plan)


def test_the_order_of_the_model_is_left_alone(tmp_path: Path) -> None:
    path, instance = tmp_path / "plan.json", two_branches()
    path.write_text(json.dumps(stages("a0 a1", "b0 b1 join")))
    ordered, plan = read_plan_in_order(path, instance)
    assert ordered is instance and plan == read_plan(path, instance)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (stages("a1 a0", "b0 b1 join"), "'a0' does not follow 'a1'"),
        (stages("a0 b0", "a1 b1"), "'b0' does not follow 'a0'"),
        (stages("a0 b0", "a1 b1 b1 join"), "'b0' does not follow 'a0'"),
        (stages("a0 b0", "a1 nope join"), "no layer 'nope'"),
        ({"stages": 3}, "expected"),
    ],
)
def test_what_is_no_order_of_the_model_is_a_mistake(tmp_path: Path, data: object, reason: str) -> None:
    path, instance = tmp_path / "plan.json", two_branches()
    path.write_text(json.dumps(data))
    assert in_order_of(data, instance) is instance
    with pytest.raises(PlanError, match=reason):
        read_plan_in_order(path, instance)
