"""Scenario files: the ones that ship, what is refused in which words, and overrides."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from pipecut.formulation.problem.cluster import Cluster, servers_of
from pipecut.formulation.problem.layers import Layer, LayerGraph, Split, layer_graph
from pipecut.formulation.problem.options import BoundaryCharge, Combine, CostModel, Samples
from pipecut.formulation.problem.precision import Precision
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.ingest.mistakes import ScenarioError
from pipecut.ingest.scenario.fields import Section
from pipecut.ingest.scenario.load import load_scenario
from pipecut.ingest.scenario.schema import CostSection, TrainingSection, schema_text
from pipecut.ingest.scenario.shipped import scenario_files

ROOT = Path(__file__).parents[3]
SHIPPED = scenario_files(ROOT / "scenarios")
VGG16 = ROOT / "scenarios/pipepar/vgg16.yaml"
SMALL = """
name: small
model: {graph: small.json}
cluster:
  devices: {D: {memory: 1 GiB, peak: 1 TFLOP/s}}
  servers: [{name: a, device: D, devices: 1}, {name: b, device: D, devices: 1, count: 3}]
  between_servers: {bandwidth: 1 Gbit/s}
training: {global_batch: 8}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_shipped_scenarios_load(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == f"{path.parent.name}-{path.stem}"
    if path.parent.name in ("pipepar", "hetpipe"):  # the papers' models, whole minibatches one after another
        assert scenario.model.startswith("ingest.models.")
        assert scenario.model.endswith(f":{path.stem}")
        assert scenario.training.schedule is Schedule.ASYNC_ONE_F_ONE_B
    elif path.parent.name in ("gpt", "llama"):
        assert scenario.model.startswith(f"ingest.models.{path.parent.name}:")
    else:
        assert (path.parent / scenario.model).is_file()
    first = path.read_text(encoding="utf-8").splitlines()[0]
    schema = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / schema).resolve() == ROOT / "scenarios/scenario.schema.json"


def test_all_papers_models_ship() -> None:
    names = {f"{path.parent.name}/{path.stem}" for path in SHIPPED}
    pipepar = {f"pipepar/{model}" for model in ("vgg13", "vgg16", "vgg19", "resnet34", "resnet50", "resnet152")}
    assert pipepar | {"hetpipe/vgg19", "hetpipe/resnet152"} <= names


def test_pipepar_cluster_is_the_papers_figure_3() -> None:
    for path in SHIPPED:
        if path.parent.name != "pipepar":
            continue
        scenario = load_scenario(path)
        servers = servers_of(scenario.cluster)
        assert [server.name for server in servers] == ["server0", "server1", "server2", "server3"]
        assert {server.devices for server in servers} == {2}
        assert {server.device_class.memory_bytes for server in servers} == {11 * 2**30}
        assert {server.device_class.flops_per_second for server in servers} == {13_400_000_000_000}
        inside, between = Link(10 * 10**9), Link(10**9)
        assert Cluster.of(scenario.cluster).links == tuple(
            tuple(inside if one == other else between for other in range(4)) for one in range(4)
        )
        assert scenario.training == Training(64, 1, 4, 4, Schedule.ASYNC_ONE_F_ONE_B)
        assert scenario.cost == CostModel(samples=Samples.FRACTIONS)


def test_hetpipe_cluster_is_the_papers_table_1() -> None:
    scenario = load_scenario(ROOT / "scenarios/hetpipe/vgg19.yaml")
    rows = [
        (server.name, server.devices, server.device_class.memory_bytes >> 30, server.device_class.flops_per_second)
        for server in servers_of(scenario.cluster)
    ]
    assert rows == [
        ("V", 4, 12, 14_900_000_000_000),
        ("R", 4, 24, 16_300_000_000_000),
        ("G", 4, 6, 6_500_000_000_000),
        ("Q", 4, 8, 5_300_000_000_000),
    ]
    matrix = Cluster.of(scenario.cluster).links
    assert matrix[0][0] == Link(126 * 10**9)
    assert matrix[0][3] == Link(56 * 10**9)
    assert scenario.training.global_batch == 32
    assert scenario.cost.boundary_charge is BoundaryCharge.RECEIVER


def test_what_is_left_out_is_the_default_of_the_formulation(tmp_path: Path) -> None:
    scenario = load_scenario(write(tmp_path, SMALL))
    assert scenario.training == Training(8, micro_batch_choices=(1, 2, 4, 8))
    assert scenario.cost == CostModel()
    assert scenario.expected is None
    limits = scenario.solver.limits()
    assert (scenario.solver.name, limits.time_limit_s, limits.workers, limits.seed) == ("auto", None, 2, 0)


@pytest.mark.parametrize(("section", "record"), [(CostSection, CostModel), (TrainingSection, Training)])
def test_sections_have_the_fields_of_the_formulation(section: type[Section], record: type) -> None:
    derived = {"micro_batch_choices", "schedule_choices", "chunk_choices", "dealt"}
    assert set(section.model_fields) == {field.name for field in dataclasses.fields(record)} - derived


def with_micro_batches(written: str) -> str:
    return SMALL.replace("global_batch: 8", f"global_batch: 8, micro_batches: {written}")


@pytest.mark.parametrize(
    ("written", "first", "choices"),
    [("4", 4, ()), ("choose", 1, (1, 2, 4, 8)), ("[8, 2]", 2, (2, 8)), ("[4]", 4, (4,))],
)
def test_micro_batches_are_given_or_chosen(
    tmp_path: Path, written: str, first: int, choices: tuple[int, ...]
) -> None:
    scenario = load_scenario(write(tmp_path, with_micro_batches(written)))
    assert scenario.training == Training(8, first, micro_batch_choices=choices)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("chose", "did you mean 'choose'"),
        ("[2, 3]", "global_batch 8 is not a multiple of micro_batches 3"),
        ("[2, 2]", "expected different numbers, got one twice"),
        ("[]", "expected a whole number of 1 or more, a list of them, or 'choose'"),
        ("0", "expected a whole number of 1 or more"),
        ("true", "expected a whole number of 1 or more"),
    ],
)
def test_numbers_of_micro_batches_that_cannot_be(tmp_path: Path, written: str, reason: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(reason)):
        load_scenario(write(tmp_path, with_micro_batches(written)))


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("bf16-mixed", Precision(2, 4, 2, 12)),
        ("{weights: 1, gradients: 2, activations: 3, optimizer: 0}", Precision(1, 2, 3, 0)),
        (
            "{weights: 2, gradients: 2, activations: 2, optimizer: 8, frozen: 0.5}",
            Precision(2, 2, 2, 8, Fraction(1, 2)),
        ),
    ],
)
def test_precision_is_a_preset_or_four_numbers(tmp_path: Path, written: str, found: Precision) -> None:
    text = with_micro_batches("1").replace("global_batch: 8", f"global_batch: 8, precision: {written}")
    path = write(tmp_path, text)
    assert load_scenario(path).training == Training(8, precision=found)
    graph = LayerGraph.chain("m", [Layer("a", "linear", Split.MATRIX, 80, 40, 40, 40, 8)]).graph()
    instance = load_scenario(path).instance(graph)
    sizes = (instance.parameter_bytes, instance.gradient_bytes, instance.optimizer_bytes, instance.input_bytes)
    parameters, elements_read = 20, 8 * 10
    assert ("training.precision.frozen is not used: all weights are trained" in instance.model.notes) == bool(
        found.frozen
    )
    kinds = (found.weights, found.gradients, found.optimizer)
    assert sizes == (*((parameters * size,) for size in kinds), (elements_read * found.activations,))


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("precision: bf16-mxed", "did you mean 'bf16-mixed'"),
        ("precision: {weights: 2}", "expected fp32, amp, fp16-mixed, bf16-mixed, bf16 or {weights: bytes"),
        (
            "precision: {weights: 0.5, gradients: 2, activations: 2, optimizer: 8}",
            "weights: expected whole bytes, got 0.5; weights that are not trained may have less: frozen: 0.5",
        ),
        (
            "precision: {weights: 2, gradients: 2, activations: 2, optimizer: 8, frozen: x}",
            "expected a number of 0",
        ),
        ("precision: {weights: 2, gradients: 2, activations: 2, optimizer: 8, frozen: 0}", "expected more than 0"),
        ("precision: {weights: 0, gradients: 2, activations: 3, optimizer: 0}", "precision.weights is 0"),
        ("precision: fp32, bytes_per_element: 4", "training.precision says this already"),
        ("precision: fp32, optimizer_bytes_per_parameter: 4", "training.precision says this already"),
    ],
)
def test_precisions_that_cannot_be(tmp_path: Path, written: str, reason: str) -> None:
    path = write(tmp_path, SMALL.replace("global_batch: 8", f"global_batch: 8, {written}"))
    with pytest.raises(ScenarioError, match=re.escape(reason)):
        load_scenario(path)


def test_the_order_of_layers_is_free_unless_a_scenario_says_otherwise(tmp_path: Path) -> None:
    graph = LayerGraph.chain("m", [Layer("a", "linear", Split.MATRIX, 4, 4, 4, 4, 8)]).graph()
    path = write(tmp_path, SMALL)
    assert load_scenario(path).instance(graph).model.free_order
    assert not load_scenario(path, ["model.order=traced"]).instance(graph).model.free_order
    assert "free_order" not in graph.graph
    with pytest.raises(ScenarioError, match=r"model\.order"):
        load_scenario(path, ["model.order=best"])


def test_cost_and_solver_are_read(tmp_path: Path) -> None:
    text = SMALL + (
        "cost: {backward_factor: 3/2, combine: sum, flops_per_mac: 1}\n"
        "solver: {name: dynamic, time_limit: 1.5 s, workers: 1, seed: 7}\n"
        "expect: {objective: 42}\n"
    )
    scenario = load_scenario(write(tmp_path, text))
    assert scenario.cost == CostModel(backward_factor=Fraction(3, 2), combine=Combine.SUM, flops_per_mac=1)
    assert (scenario.solver.name, scenario.solver.time_limit_ns) == ("dynamic", 1_500_000_000)
    assert scenario.solver.limits().time_limit_s == 1.5
    assert scenario.expected == 42


def test_alike_servers_are_counted_and_links_replace_the_mesh(tmp_path: Path) -> None:
    text = SMALL.replace(
        "training:",
        "  links: [{between: [a, b], bandwidth: 2 Gbit/s}, {between: [b2, b0], bandwidth: 3 Gbit/s}]\ntraining:",
    )
    scenario = load_scenario(write(tmp_path, text))
    assert [server.name for server in servers_of(scenario.cluster)] == ["a", "b0", "b1", "b2"]
    matrix = Cluster.of(scenario.cluster).links
    assert [link and link.bits_per_second for link in matrix[0]] == [None, 2 * 10**9, 2 * 10**9, 2 * 10**9]
    assert [link and link.bits_per_second for link in matrix[1]] == [2 * 10**9, None, 10**9, 3 * 10**9]


def test_racks_are_drawn_with_switches(tmp_path: Path) -> None:
    text = SMALL.replace(
        "between_servers: {bandwidth: 1 Gbit/s}",
        "switches: [top, rack]\n"
        "  links:\n"
        "    - {between: [a, top], bandwidth: 4 Gbit/s, latency: 1 us}\n"
        "    - {between: [top, rack], bandwidth: 2 Gbit/s, latency: 5 us}\n"
        "    - {between: [rack, b], bandwidth: 10 Gbit/s, latency: 1 us}\n",
    )
    matrix = Cluster.of(load_scenario(write(tmp_path, text)).cluster).links
    assert matrix[0][1] == Link(2 * 10**9, 7_000)
    assert matrix[1][3] == Link(10 * 10**9, 2_000)


def test_overrides_change_values_and_keep_the_rest() -> None:
    scenario = load_scenario(
        VGG16,
        (
            "training.global_batch=128",
            'cluster.between_servers.bandwidth="10 Gbit/s"',
            "cluster.servers[0].devices=4",
            "cluster.servers.0.count=2",
            'cluster.devices."RTX 2080 Ti".memory=12 GiB',
            "cost.backward_factor=3/2",
            "expect.objective=5",
        ),
    )
    assert scenario.training.global_batch == 128
    assert [server.devices for server in servers_of(scenario.cluster)] == [4, 4]
    assert Cluster.of(scenario.cluster).links[0][1] == Link(10 * 10**9)
    assert servers_of(scenario.cluster)[0].device_class.memory_bytes == 12 * 2**30
    assert scenario.cost.backward_factor == Fraction(3, 2)
    assert scenario.expected == 5
    assert load_scenario(VGG16).training.global_batch == 64


def small_layers(name: str = "small") -> object:
    layer = Layer("only", "linear", Split.MATRIX, 4, 4, 4, 4, 1)
    return layer_graph(name, [layer], [])


def test_load_asks_the_model_source_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Path]] = []

    def load_model_graph(spec: str, base: Path, **_: object) -> object:
        asked.append((spec, base))
        return small_layers()

    monkeypatch.setattr("pipecut.ingest.torch.source.load_model_graph", load_model_graph)
    instance = load_scenario(write(tmp_path, SMALL)).load()
    assert asked == [("small.json", tmp_path)]
    assert (instance.devices, instance.training.global_batch, len(instance.layers)) == (4, 8, 1)


def test_loading_imports_neither_torch_nor_a_solver() -> None:
    code = (
        "import sys; from pipecut.ingest.scenario.load import load_scenario; load_scenario(sys.argv[1]); "
        "print([name for name in ('torch', 'ortools', 'numpy', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(VGG16)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_schema_for_editors_is_up_to_date() -> None:
    stored = (ROOT / "scenarios/scenario.schema.json").read_text(encoding="utf-8")
    again = "write ingest.scenario.schema.schema_text() to scenarios/scenario.schema.json"
    assert json.loads(stored) == json.loads(schema_text()), again


DOCUMENT = (ROOT / "docs/formats/scenario.md").read_text(encoding="utf-8")


def test_the_example_of_the_document_is_a_scenario(tmp_path: Path) -> None:
    example = DOCUMENT.split("```yaml\n")[1].split("```")[0]
    scenario = load_scenario(write(tmp_path, example))
    assert [server.name for server in servers_of(scenario.cluster)] == ["big", "node0", "node1"]
    matrix = Cluster.of(scenario.cluster).links
    assert matrix[0][1] == Link(25 * 10**9, 7_000)
    assert matrix[1][2] == Link(25 * 10**9, 2_000)


def test_the_document_names_every_key_and_choice() -> None:
    sections: list[type[Section]] = Section.__subclasses__()
    for section in sections:
        sections += section.__subclasses__()
    # Sweep files have a document of their own.
    for section in (one for one in sections if not one.__module__.endswith("sweep_file")):
        for key, field in section.model_fields.items():
            kind = field.annotation
            if not (isinstance(kind, type) and issubclass(kind, Section)):
                assert re.search(rf"[`.{{]{key}\b", DOCUMENT), key
            if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
                assert all(f"`{choice.value}`" in DOCUMENT for choice in kind), key
