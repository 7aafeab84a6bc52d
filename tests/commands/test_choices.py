"""A scenario that leaves the order of layers and the number of micro-batches open, on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingest.graphs.graph_file import write_graph
from tests.command_line import Command
from tests.solvers.choices.test_any_order import towers

SCENARIO = """\
name: towers
model: {graph: towers.json}
cluster:
  devices: {card: {memory: 1 GiB, peak: 1 TFLOP/s}}
  servers: [{name: s, device: card, devices: 2, link: {bandwidth: 1 Tbit/s}}]
training: {global_batch: 8, micro_batches: choose}
constraints: {devices_per_stage: [1], memory: false}
"""


@pytest.fixture
def towers_yaml(tmp_path: Path) -> Path:
    """Two towers of 9 + 9 and 4 + 4: one after the other 17 is the least, side by side 13."""
    write_graph(towers([9, 9], [4, 4]), tmp_path / "towers.json")
    path = tmp_path / "towers.yaml"
    path.write_text(SCENARIO)
    return path


def test_what_is_chosen_goes_with_the_plan_and_its_proof(pipecut: Command, towers_yaml: Path) -> None:
    plan, proof = towers_yaml.parent / "plan.json", towers_yaml.parent / "proof.json"
    found = pipecut("plan", towers_yaml, "--json", "--out", plan, "--certificate", proof)
    assert found.code == 0 and found.json["proof"] == "optimal"
    chosen = found.json["micro_batches"]
    assert found.json["scope"]["micro_batch_choices"] == [1, 2, 4, 8] and chosen in (1, 2, 4, 8)
    assert found.json["any_order_bound"] == found.json["objective"] == 13 * 6000 * 8 // chosen
    assert [layer[:2] for stage in found.json["stages"] for layer in stage["layers"]] != [
        "b0",
        "b0",
        "b1",
        "b1",
        "jo",
    ]

    priced = pipecut("evaluate", plan, towers_yaml, "--json")
    assert priced.code == 0 and priced.json["objective"] == found.json["objective"]
    assert priced.json["micro_batches"] == chosen
    verified = pipecut("verify", proof, towers_yaml)
    assert verified.code == 0
    assert f"the plan is optimal, of plans with this order of the layers and {chosen} micro-" in verified.out
    ran = pipecut("simulate", towers_yaml, "--plan", plan)
    assert ran.code == 0 and f"{chosen} micro-" in ran.out


def test_a_claim_says_what_it_compares(pipecut: Command, towers_yaml: Path) -> None:
    free = pipecut("plan", towers_yaml, "--set", "training.micro_batches=4").out
    assert "no order of the layers has a better plan" in free and "4 cuts of an order of 5 layers" in free
    assert "the best plan of the traced one has 204.0 us" in free
    traced = pipecut("plan", towers_yaml, "--set", "training.micro_batches=4", "--set", "model.order=traced").out
    assert "4 cuts of the traced order of 5 layers" in traced
    assert "no order of the layers is below 156.0 us (156,000 ns), gap 23.5 %" in traced
