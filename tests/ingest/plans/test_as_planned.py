"""Plan files that say what their scenario left open: the order of the layers, the number of micro-batches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipecut.formulation.certificates.check import Certificate
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import Layer, Split, layer_graph
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.ingest.plans.certificate_file import (
    CertificateFileError,
    read_certificate,
    read_certificate_as_made,
    write_certificate,
)
from pipecut.ingest.plans.plan_file import PlanError, as_planned, read_plan, read_plan_as_made, write_plan


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
    ordered, plan = read_plan_as_made(path, instance)
    assert [layer.name for layer in ordered.layers] == ["a0", "b0", "a1", "b1", "join"]
    one = Group(((0, 1),))
    assert plan == Plan((Stage(Span(0, 2), one, (0, 0)), Stage(Span(2, 5), one, (0, 0, 0))))
    found = evaluate(ordered, plan)
    assert found.feasible and found.stages[1].boundary_ns == 2 * 200 * 8 / 10
    write_plan(path, ordered, plan, found)
    assert read_plan_as_made(path, instance) == (ordered, plan)


def test_the_order_of_the_model_is_left_alone(tmp_path: Path) -> None:
    path, instance = tmp_path / "plan.json", two_branches()
    path.write_text(json.dumps(stages("a0 a1", "b0 b1 join")))
    ordered, plan = read_plan_as_made(path, instance)
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
    assert as_planned(data, instance) is instance
    with pytest.raises(PlanError, match=reason):
        read_plan_as_made(path, instance)


def test_a_plan_says_how_many_micro_batches_it_chose(tmp_path: Path) -> None:
    path, fixed = tmp_path / "plan.json", two_branches()
    path.write_text(json.dumps(stages("a0 a1", "b0 b1 join") | {"micro_batches": 4}))
    assert read_plan_as_made(path, fixed)[0] is fixed
    left_open = replace(fixed, training=Training(8, 1, micro_batch_choices=(1, 4)))
    about, plan = read_plan_as_made(path, left_open)
    assert about.training == Training(8, 4, micro_batch_choices=(1, 4))
    write_plan(path, about, plan, evaluate(about, plan))
    assert read_plan_as_made(path, left_open) == (about, plan)
    path.write_text(json.dumps(stages("a0 a1", "b0 b1 join") | {"micro_batches": 2}))
    assert read_plan_as_made(path, left_open)[0] is left_open


def test_a_certificate_is_about_what_its_plan_chose(tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    left_open = replace(two_branches(), training=Training(8, 1, micro_batch_choices=(1, 4)))
    path.write_text(json.dumps(stages("a0 b0", "a1 b1 join") | {"micro_batches": 4}))
    about, plan = read_plan_as_made(path, left_open)
    labels = {(0, (2,), ((0,), 1)): ((0, 0),)}
    certificate = Certificate("0" * 64, plan, 5, 3, labels)
    write_certificate(path, about, certificate)
    assert read_certificate_as_made(path, left_open) == (about, certificate)
    with pytest.raises(CertificateFileError, match="does not follow"):
        read_certificate(path, left_open)
