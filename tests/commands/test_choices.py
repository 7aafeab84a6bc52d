"""A scenario that leaves the order of layers and the number of micro-batches open, on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pipecut.ingest.graphs.graph_file import write_graph
from tests.command_line import Command
from tests.commands.fakes import saying_nothing_of
from tests.solvers.choices.test_any_order import towers

SCENARIO = """\
name: towers
model: {graph: towers.json}
cluster:
  devices: {card: {memory: 1 GiB, peak: 1 TFLOP/s}}
  servers: [{name: s, device: card, devices: 2, link: {bandwidth: 1 Tbit/s}}]
training: {global_batch: 8, micro_batches: choose}
constraints: {devices_per_stage: [1], memory: false}
objective: bottleneck
search: paper
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("among", "order", "said", "words"),
    [
        (
            "[one_f_one_b, gpipe, naive]",
            ["one_f_one_b", 2, 8],
            "one_f_one_b in 2 chunks, 8 micro-batches chosen; searched one_f_one_b in 2 chunks (2, 8)",
            "interleaved 1F1B of 2 stages a group, chosen among",
        ),
        (
            "choose",
            ["zero_bubble_v", 2, 8],
            "zero_bubble_v, 8 micro-batches chosen; searched zero_bubble_v (2, 8)",
            "ZB-V, chosen among",
        ),
    ],
    ids=["listed", "all"],
)
def test_an_order_of_the_passes_is_chosen_and_goes_with_the_plan(
    pipecut: Command, towers_yaml: Path, among: str, order: list[object], said: str, words: str
) -> None:
    plan, page = towers_yaml.parent / "plan.json", towers_yaml.parent / "page.html"
    written = f"micro_batches: [2, 8], schedule: {among}, chunks: [1, 2]}}"
    text = SCENARIO.replace("micro_batches: choose}", written)
    towers_yaml.write_text(saying_nothing_of("objective", text))
    found = pipecut("plan", towers_yaml, "--json", "--out", plan)
    scope = found.json["scope"]
    assert found.code == 0 and found.json["proof"] == "optimal"
    assert scope["chunk_choices"] == [1, 2] and set(scope["schedule_choices"]) >= {"one_f_one_b", "gpipe", "naive"}
    listed = " ".join(scope["words"])
    assert all(one in listed for one in ("chosen among 1F1B, interleaved 1F1B of 2 stages a group", "GPipe"))
    note = next(note for note in found.json["notes"] if " chosen; searched " in note)
    chosen, searched = said.split("; searched ")
    assert note.startswith(chosen) and searched in note
    written_down = json.loads(plan.read_text())
    assert [written_down[key] for key in ("schedule", "chunks", "micro_batches")] == order

    priced = pipecut("evaluate", plan, towers_yaml, "--json")
    assert priced.code == 0 and priced.json["objective"] == found.json["objective"]
    ran = pipecut("simulate", towers_yaml, "--plan", plan, "--out", page, "--json")
    assert ran.code == 0 and ran.json["makespan_ns"] == found.json["objective"]
    assert words in page.read_text()
    formula = pipecut("plan", towers_yaml, "--set", "objective=bottleneck")
    assert formula.code == 2 and "take objective step_time" in formula.err


def test_a_claim_says_what_it_compares(pipecut: Command, towers_yaml: Path) -> None:
    free = pipecut("plan", towers_yaml, "--set", "training.micro_batches=4").out
    assert "no order of the layers has a better plan" in free and "4 cuts of an order of 5 layers" in free
    assert "the best plan of the traced one has 204.0 us" in free
    traced = pipecut("plan", towers_yaml, "--set", "training.micro_batches=4", "--set", "model.order=traced").out
    assert "4 cuts of the traced order of 5 layers" in traced
    assert "no order of the layers is below 156.0 us (156,000 ns), gap 23.5 %" in traced


def test_a_comparison_speaks_of_the_one_order_that_its_solvers_search(pipecut: Command, towers_yaml: Path) -> None:
    found = pipecut("compare", towers_yaml, "--solvers", "cpsat", "--set", "training.micro_batches=4", "--json")
    assert found.json["solvers"][0]["proof"] == "optimal" and found.json["solvers"][0]["objective"] == 204_000
    assert "the traced order" in " ".join(found.json["scope"]["words"])


TIED = """
import torch
from tests.execution.models import GPT

def net():
    model = GPT(layers=8, hidden=64, heads=4, vocabulary=97, sequence=16)
    model.head.weight = model.tokens.weight
    return model, (torch.zeros(2, 16, dtype=torch.int64),)
"""


@pytest.mark.slow
@pytest.mark.parametrize("numbers", ["8", "[4, 8]"])
def test_tied_weights_have_a_plan_where_groups_hold_several_stages(
    pipecut: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: str
) -> None:
    """No method searches all of these plans: the best plain grid stands, with a bound, and is priced as it was."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path("tied.py").write_text(TIED, encoding="utf-8")
    sys.modules.pop("tied", None)
    training = "{global_batch: 64, precision: bf16-mixed, chunks: 2, micro_batches: " + numbers + "}"
    asked = "model: {build: 'tied:net'}\ncluster: {machines: {dgx-a100: 1}}\nobjective: step_time\n"
    Path("tied.yaml").write_text(f"name: tied\n{asked}training: {training}\n", encoding="utf-8")
    found = pipecut("plan", "tied.yaml", "--json", "--time-limit", "20 s", "--out", "plan.json")
    assert (found.code, found.json["proof"], found.json["scope"]["chunks"]) == (3, "feasible", 2)
    assert found.json["objective"] >= found.json["bound"] > 0
    assert any("weights that several stages share" in one for one in found.json["notes"])
    priced = pipecut("evaluate", "plan.json", "tied.yaml", "--json", "--time-limit", "20 s")
    assert (priced.code, priced.json["objective"], priced.json["feasible"]) == (3, found.json["objective"], True)
