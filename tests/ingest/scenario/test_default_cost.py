"""How layers are priced where a scenario does not say: by a roofline if its devices allow one, or by the peak."""

from __future__ import annotations

from pathlib import Path

import pytest

import pipecut
from pipecut.formulation.problem.options import Compute
from pipecut.ingest.mistakes import ScenarioError
from pipecut.ingest.scenario.load import Scenario, load_scenario
from pipecut.ingest.scenario.shipped import SHIPPED

OWN = "devices: {card: {memory: 1 GiB, peak: 1 TFLOP/s}}\n  servers: [{name: n, device: card, devices: 1}]"
WITH = OWN.replace("peak:", "memory_bandwidth: 10 GB/s, peak:")
LIBRARY = "machines: {dgx-h100: 1}"


def load(folder: Path, cluster: str, cost: str = "") -> Scenario:
    path = folder / "it.yaml"
    text = (
        f"name: it\nmodel: {{graph: layers.json}}\ncluster:\n  {cluster}\n"
        f"training: {{global_batch: 4, bytes_per_element: 2}}\n{cost}"
    )
    path.write_text(text, encoding="utf-8")
    return load_scenario(path)


@pytest.mark.parametrize(
    ("cluster", "cost", "compute", "said"),
    [
        (LIBRARY, "", Compute.ROOFLINE, False),
        (WITH, "", Compute.ROOFLINE, False),
        (WITH, "cost: {boundary_charge: receiver}", Compute.ROOFLINE, False),
        (OWN, "", Compute.PEAK, True),
        (OWN, "cost: {boundary_charge: receiver}", Compute.PEAK, True),
        (WITH, "cost: {flops_per_mac: 1}", Compute.PEAK, False),
        (WITH, "cost: {stage_time: overlap}", Compute.PEAK, False),
        (WITH, "cost: {compute: peak}", Compute.PEAK, False),
        (OWN, "cost: {compute: peak}", Compute.PEAK, False),
        (OWN, "cost: {compute: roofline}", Compute.ROOFLINE, False),
    ],
)
def test_what_is_not_said_follows_from_the_devices(
    tmp_path: Path, cluster: str, cost: str, compute: Compute, *, said: bool
) -> None:
    scenario = load(tmp_path, cluster, cost)
    assert scenario.cost.compute is compute
    assert ("memory_bandwidth of card" in scenario.note) is said
    assert bool(scenario.note) is said


def test_one_device_without_a_bandwidth_is_enough_for_the_peak(tmp_path: Path) -> None:
    mixed = WITH.replace("}}", "}, old: {memory: 1 GiB, peak: 1 TFLOP/s}}").replace(
        "devices: 1}]", "devices: 1}, {name: m, device: old, devices: 1}]"
    )
    scenario = load(tmp_path, f"{mixed}\n  between_servers: {{bandwidth: 1 Gbit/s}}")
    assert scenario.cost.compute is Compute.PEAK
    assert "memory_bandwidth of old," in scenario.note


def test_in_python_it_is_the_same(tmp_path: Path) -> None:
    graph = pipecut.read_scenario(SHIPPED / "witness" / "line.yaml").layers()
    for cluster in (OWN, WITH):
        problem = load(tmp_path, cluster).instance(graph)
        assert pipecut.build(problem.model, problem.cluster, problem.training).cost == problem.cost
        assert any("memory_bandwidth" in note for note in problem.model.notes) is (cluster == OWN)


def test_what_reproduces_a_paper_says_by_what_layers_are_priced() -> None:
    papers = [path for folder in ("pipepar", "hetpipe") for path in sorted((SHIPPED / folder).glob("*.yaml"))]
    named = [path for path in papers if not path.name.endswith(".sweep.yaml")]
    assert len(named) == 8
    assert all("\n  compute: peak " in path.read_text(encoding="utf-8") for path in named)


def test_a_section_that_is_called_otherwise_is_known_by_its_keys() -> None:
    with pytest.raises(ScenarioError, match="unknown key; did you mean 'cost'"):
        load_scenario(SHIPPED / "witness" / "line.yaml", ["cost_model.compute=peak"])
