"""Plan files: round trip, compact ways of writing, mistakes in their words, the paper's own plan."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import Layer, Split, layer_graph
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.ingest.files import atomic_write
from pipecut.ingest.plans.plan_file import PRICES, PlanError, plan_of, plan_to_dict, read_plan, write_plan
from pipecut.ingest.scenario.load import load_scenario

ROOT = Path(__file__).parents[3]


def chain(names: Sequence[str]) -> nx.DiGraph:
    layers = [Layer(name, "linear", Split.MATRIX, 400, 40, 40, 40, 1000 + at) for at, name in enumerate(names)]
    return layer_graph("chain", layers, [(one, two, 40) for one, two in itertools.pairwise(names)])


def small_instance() -> Instance:
    kind = DeviceClass("D", 10**9, 10**9)
    servers = [Server(name, kind, 2, Link(10**9)) for name in ("left", "right")]
    cluster = cluster_graph("pair", servers, [("left", "right", Link(10**8))])
    return build_instance(chain([f"layer.{at}" for at in range(6)]), cluster, Training(8), CostModel())


SMALL = small_instance()
PLAN = Plan(
    (
        Stage(Span(0, 2), Group(((0, 1),)), (0, 0)),
        Stage(Span(2, 6), Group(((0, 1), (1, 2))), (0, 1, 2, 0)),
    )
)


def read_text(folder: Path, text: str) -> Plan:
    path = folder / "plan.json"
    path.write_text(text, encoding="utf-8")
    return read_plan(path, SMALL)


def test_plan_round_trips_with_its_price(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    evaluation = evaluate(SMALL, PLAN)
    write_plan(path, SMALL, PLAN, evaluation)
    assert read_plan(path, SMALL) == PLAN
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["objective"] == evaluation.objective
    assert written["violations"] == []
    first, second = written["stages"]
    assert first["layers"] == ["layer.0", "layer.1"]
    assert second["devices"] == {"left": 1, "right": 2}
    assert second["forms"] == [0, 1, 2, 0]
    for row, cost in zip(written["stages"], evaluation.stages, strict=True):
        assert row["optimizer_ns"] == 0
        assert {key: row[key] for key in PRICES[:-1]} == {key: getattr(cost, key) for key in PRICES[:-1]}
        assert set(row) == {
            "layers",
            "devices",
            "forms",
            "replicas",
            "recompute",
            "sharded",
            "optimizer_on_host",
            *PRICES,
        }
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_warm_ups_that_a_plan_chose_are_written_and_read(tmp_path: Path) -> None:
    path, instance = tmp_path / "plan.json", replace(SMALL, training=Training(8, 8, warm_up="choose"))
    plan = Plan(tuple(replace(stage, warm_up=many) for stage, many in zip(PLAN.stages, (7, 2), strict=True)))
    write_plan(path, instance, plan, evaluate(instance, plan))
    assert read_plan(path, instance) == plan
    assert [row["warm_up"] for row in json.loads(path.read_text(encoding="utf-8"))["stages"]] == [7, 2]
    assert evaluate(instance, plan).feasible and evaluate(instance, PLAN).feasible
    assert [one.message for one in evaluate(SMALL, plan).violations] == [
        "stage 0 runs 7 forward passes before its first backward pass, expected 1 of 1 micro-batches with"
        " training.warm_up classic",
        "stage 1 runs 2 forward passes before its first backward pass, expected 1 of 1 micro-batches with"
        " training.warm_up classic",
    ]
    text = path.read_text(encoding="utf-8")
    for wrong in ("0", "true", '"4"', "2.5"):
        with pytest.raises(
            PlanError, match=r"stages\[1\].warm_up: expected a number of forward passes, 1 or more"
        ):
            read_text(tmp_path, text.replace('"warm_up": 2', f'"warm_up": {wrong}'))


def test_plan_that_is_none_is_written_without_prices() -> None:
    plan = Plan(PLAN.stages[:1])
    written = plan_to_dict(SMALL, plan, evaluate(SMALL, plan))
    assert written["objective"] is None
    assert written["violations"]
    assert set(written["stages"][0]) == {
        "layers",
        "devices",
        "forms",
        "replicas",
        "recompute",
        "sharded",
        "optimizer_on_host",
    }


@given(st.data())
def test_any_contiguous_plan_round_trips(data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, 5))))
    ends = [0, *cuts, 6]
    stages = []
    for first, stop in itertools.pairwise(ends):
        counts = data.draw(st.dictionaries(st.sampled_from((0, 1)), st.integers(1, 4), min_size=1))
        forms = data.draw(st.lists(st.sampled_from((0, 1, 2)), min_size=stop - first, max_size=stop - first))
        stages.append(Stage(Span(first, stop), Group(tuple(sorted(counts.items()))), tuple(forms)))
    plan = Plan(tuple(stages))
    text = json.dumps(plan_to_dict(SMALL, plan, evaluate(SMALL, plan)))
    assert plan_of(json.loads(text), SMALL) == (plan, [])


def test_layers_can_be_written_in_three_ways(tmp_path: Path) -> None:
    expected = Plan((Stage(Span(1, 4), Group(((1, 2),)), (0, 0, 0)),))
    for layers in (
        '["layer.1", "layer.2", "layer.3"]',
        '{"first": "layer.1", "last": "layer.3"}',
        '{"span": [1, 4]}',
    ):
        assert (
            read_text(tmp_path, f'{{"stages": [{{"layers": {layers}, "devices": {{"right": 2}}}}]}}') == expected
        )


def test_bad_plans_are_read_and_judged_later(tmp_path: Path) -> None:
    text = """{"stages": [{"layers": {"span": [0, 2]}, "devices": {"left": 4}},
                           {"layers": {"span": [1, 5]}, "devices": {"left": 2}}]}"""
    plan = read_text(tmp_path, text)
    assert [stage.span for stage in plan.stages] == [Span(0, 2), Span(1, 5)]
    assert evaluate(SMALL, plan).violations


def one_stage(layers: object = None, devices: object = None, **more: object) -> dict[str, Any]:
    layers = {"span": [0, 6]} if layers is None else layers
    return {"stages": [{"layers": layers, "devices": {"left": 1} if devices is None else devices, **more}]}


SPAN = "stages[0].layers.span: expected [first, stop] with 0 <= first < stop <= 6, half-open"
WRONG: tuple[tuple[object, tuple[str, ...]], ...] = (
    ([], ('expected {"stages": [...]}',)),
    ({"stages": []}, ("stages: expected 1 stage or more, got none",)),
    ({"stages": [3]}, ('stages[0]: expected {"layers": ..., "devices": ...}, got 3',)),
    ({**one_stage(), "version": 2}, ("expected format 'pipecut plan', version 1",)),
    ({"stages": [{}]}, ("stages[0]: no 'layers'", "stages[0]: no 'devices'")),
    (one_stage(["layer.O"]), ("stages[0].layers[0]: no layer 'layer.O' in the model; did you mean 'layer.5'?",)),
    (one_stage([7]), ("stages[0].layers[0]: expected the name of a layer, got 7",)),
    (one_stage([]), ("stages[0].layers: expected 1 layer or more, got none",)),
    (
        one_stage(["layer.0", "layer.2"]),
        ("stages[0].layers[1]: 'layer.2' does not follow 'layer.0'; expected 'layer.1'",),
    ),
    (
        one_stage(["layer.5", "layer.0"]),
        ("stages[0].layers[1]: 'layer.0' does not follow 'layer.5'; it is the last",),
    ),
    (
        one_stage({"first": "layer.3", "last": "layer.1"}),
        ("stages[0].layers: 'layer.1' comes before 'layer.3' in the model",),
    ),
    (one_stage({"span": [0, 7]}), (SPAN,)),
    (one_stage({"span": [False, True]}), (SPAN,)),
    (
        one_stage("layer.0"),
        ('stages[0].layers: expected names, {"first": name, "last": name} or {"span": [first, stop]}',),
    ),
    (
        one_stage(devices={"lft": 1, "right": 0}),
        (
            "stages[0].devices: no server 'lft' in the cluster; did you mean 'left'?",
            "stages[0].devices.right: expected 1 to 4 devices, as the whole cluster has, got 0",
        ),
    ),
    (
        one_stage(devices={"left": 5, "right": 2**31 - 1}),
        (
            "stages[0].devices.left: expected 1 to 4 devices, as the whole cluster has, got 5",
            "stages[0].devices.right: expected 1 to 4 devices, as the whole cluster has, got 2147483647",
        ),
    ),
    ({"stages": one_stage()["stages"] * 7}, ("stages: expected 6 at most, as many as layers, got 7",)),
    (
        one_stage(devices=[]),
        ('stages[0].devices: expected {"server name": number of devices}, got an empty list',),
    ),
    (one_stage(forms=[0]), ("stages[0].forms: expected 6 forms, one for each layer, got 1",)),
    (
        one_stage(forms=[0, 0, 0, 0, 34, True]),
        (
            "stages[0].forms[4]: expected a form, 0 to 33, got 34",
            "stages[0].forms[5]: expected a form, 0 to 33, got true",
        ),
    ),
    (one_stage(form=[0]), ("stages[0]: unknown key 'form'; did you mean 'forms'?",)),
)


@pytest.mark.parametrize(("data", "messages"), WRONG, ids=[messages[0][:60] for _, messages in WRONG])
def test_mistakes_are_told_in_these_words(tmp_path: Path, data: object, messages: tuple[str, ...]) -> None:
    with pytest.raises(PlanError) as caught:
        read_text(tmp_path, json.dumps(data))
    assert str(caught.value).splitlines() == [f"{tmp_path / 'plan.json'}: {message}" for message in messages]


NOT_JSON: tuple[tuple[str, str], ...] = (
    ('{"stages": [}', ":1:13: not valid JSON: Expecting value"),
    ('{"stages": [NaN]}', ": NaN is not a number of JSON"),
    ('{"stages": [], "stages": []}', ": key 'stages' appears twice in one object"),
    ("[" * 100_000, ": nested too deeply for a plan"),
    ("\ud800", ": not UTF-8 text at byte 0"),
)


@pytest.mark.parametrize(("text", "message"), NOT_JSON, ids=[message for _, message in NOT_JSON])
def test_text_that_is_no_plan_json(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(PlanError) as caught:
        read_plan(path, SMALL)
    assert str(caught.value) == f"{path}{message}"


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanError, match="No such file"):
        read_plan(tmp_path / "none.json", SMALL)
    monkeypatch.setattr("pipecut.ingest.plans.plan_file.LARGEST_FILE", 10)
    with pytest.raises(PlanError, match="larger than 10 bytes"):
        read_text(tmp_path, '{"stages": []}')


def test_many_mistakes_are_counted_and_told_quickly(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        read_text(tmp_path, json.dumps(one_stage([f"wrong.{at}" for at in range(20_000)])))
    assert str(caught.value).splitlines()[-1] == "... and 19980 more"
    assert len(caught.value.mistakes) == 20_000


def test_write_replaces_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    atomic_write(path, "old\n")

    def broken(self: Path, target: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        atomic_write(path, "new\n")
    assert path.read_text(encoding="utf-8") == "old\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def vgg16_instance() -> Instance:
    features = [f"features.{at}" for at in range(31)]
    classifier = [f"classifier.{at}" for at in range(7)]
    scenario = load_scenario(ROOT / "scenarios/pipepar/vgg16.yaml")
    return scenario.instance(chain([*features, "flatten", *classifier]))


def test_the_example_of_the_document_is_a_plan(tmp_path: Path) -> None:
    document = (ROOT / "docs/formats/plan.md").read_text(encoding="utf-8")
    path = tmp_path / "plan.json"
    path.write_text(document.split("```json\n")[1].split("```")[0], encoding="utf-8")
    plan = read_plan(path, vgg16_instance())
    assert [stage.span for stage in plan.stages] == [Span(0, 2), Span(2, 31), Span(31, 38), Span(38, 39)]
    last = plan.stages[-1].group
    assert (last.replicas, last.tensor_parallel_degree, last.mode.recompute) == (2, 1, True)
    assert all(f"`{price}`" in document for price in PRICES)


def test_table_2_of_the_paper_reads_as_its_eight_stages() -> None:
    instance = vgg16_instance()
    plan = read_plan(ROOT / "scenarios/pipepar/table2.plan.json", instance)
    starts = (0, 1, 4, 6, 17, 18, 22, 25)
    spans = [(stage.span.first, stage.span.stop) for stage in plan.stages]
    assert spans == [*itertools.pairwise(starts), (25, 39)]
    assert [stage.group.counts for stage in plan.stages] == [((gpu // 2, 1),) for gpu in range(8)]
    assert {form for stage in plan.stages for form in stage.forms} == {0}
    assert evaluate(instance, plan).violations == ()
