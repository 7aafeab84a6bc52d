"""``pipecut run`` and ``pipecut validate``: what is refused, and what is told of gradients that differ."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from pipecut.commands import validate
from pipecut.execution.measuring import Validation
from pipecut.execution.running.validating import Difference, StepsCompared
from tests.command_line import Command

NET = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), (torch.zeros(2, 4),)
"""
SCENARIO = """
name: small
model: {build: "small_net:net"}
cluster:
  devices: {card: {memory: 1 GiB, peak: 1 TFLOP/s}}
  servers: [{name: one, count: 3, device: card, devices: 1}]
  between_servers: {bandwidth: 1 GB/s}
training: {global_batch: 4, micro_batches: 2}
search: paper
"""

MANY_DEVICES = """
name: small
model: {build: "small_net:net"}
cluster:
  devices: {card: {memory: 1 GiB, peak: 1 GFLOP/s}}
  servers: [{name: one, device: card, devices: DEVICES, link: {bandwidth: 100 GB/s}}]
training: {global_batch: 2, micro_batches: 2}
constraints: {devices_per_stage: [DEVICES]}
search: paper
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("small_net.py").write_text(NET, encoding="utf-8")
    Path("small.yaml").write_text(SCENARIO, encoding="utf-8")
    sys.modules.pop("small_net", None)  # of another test: a model is built before a script is written of it
    return write_plan({"one0": 1}, {"one1": 1})


def write_plan(first: dict[str, int], second: dict[str, int], forms: str = "[0]") -> Path:
    stages = (
        f'{{"layers": ["0", "1"], "devices": {first}}}, {{"layers": ["2"], "devices": {second}, "forms": {forms}}}'
    )
    path = Path("plan.json")
    path.write_text('{"stages": [' + stages.replace("'", '"') + "]}", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", "training.schedule=async_one_f_one_b"], "has no flush"),
        (["--schedule", "interleaved", "--chunks", "3"], "the plan has 2 stages, no multiple of its 3 chunks"),
        (["--steps", "0"], "expected a whole number from 1"),
        (["--learning-rate", "-1"], "expected a number from 0 to 1000000"),
        (["--schedule-file", "absent.csv"], "absent.csv"),
        (["--resume", "nowhere"], "--resume: nowhere holds no snapshot"),
        (["--wait", "0"], "expected a whole number from 1"),
    ],
)
def test_what_cannot_be_run(pipecut: Command, plan: Path, options: list[str], words: str) -> None:
    ran = pipecut("run", plan, "small.yaml", *options)
    assert ran.code == 2 and words in ran.err, ran.err


@pytest.mark.slow
def test_more_devices_than_samples_are_run(pipecut: Command, plan: Path) -> None:
    """Of one sample one device does all, and has the gradients of the unsplit model; the other one rests."""
    wide = write_plan({"one0": 1, "one1": 1}, {"one2": 1})
    ran = pipecut("validate", wide, "small.yaml", "--set", "training.micro_batches=4")
    assert ran.code == 0, ran.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "devices", "samples"), [("cnn", 4, 1), ("gpt", 4, 3), ("tied_gpt", 4, 1), ("unet", 2, 3)]
)
def test_what_is_proved_of_fewer_samples_than_devices_is_run(
    pipecut: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, devices: int, samples: int
) -> None:
    """Of the U-Net on two: its narrowest tensor has two channels, and where a device has none nothing runs."""
    monkeypatch.chdir(tmp_path)
    Path("small_net.py").write_text(f"from tests.execution.models import {model} as net\n", encoding="utf-8")
    Path("small.yaml").write_text(MANY_DEVICES.replace("DEVICES", str(devices)), encoding="utf-8")
    sys.modules.pop("small_net", None)
    batch = ("--set", f"training.global_batch={2 * samples}")
    planned = pipecut("plan", "small.yaml", *batch, "--out", "plan.json", "--time-limit", "20 s")
    assert planned.code == 0, planned.err
    ran = pipecut("validate", "plan.json", "small.yaml", *batch)
    assert ran.code == 0, ran.err


NORMALISED = """
from torch import nn
import torch

def net():
    parts = nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)
    return nn.Sequential(*parts), (torch.zeros(2, 4, 3),)
"""


@pytest.mark.slow
def test_statistics_of_samples_that_devices_share_have_one_verdict(
    pipecut: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small_net.py").write_text(NORMALISED, encoding="utf-8")
    Path("small.yaml").write_text(MANY_DEVICES.replace("DEVICES", "4"), encoding="utf-8")
    sys.modules.pop("small_net", None)
    shared = ("--set", "training.global_batch=8", "--set", "training.precision=fp32")
    planned = pipecut("plan", "small.yaml", *shared, "--out", "plan.json", "--json")
    assert planned.code == 0, planned.err
    (note,) = (one for one in planned.json["notes"] if one.startswith("statistics of batch normalisation (1)"))
    assert "pipecut run, validate and export --to script refuse" in note
    said = "stage 0: layer 1 takes the statistics of the samples that it gets"
    for door in (["run"], ["validate"], ["export", "--to", "script"]):
        ran = pipecut(*door[:1], "plan.json", "small.yaml", *door[1:], *shared)
        assert ran.code == 2 and said in ran.err, (door, ran.err)
    ran = pipecut("export", "plan.json", "small.yaml", "--to", "deepspeed", "--json", *shared)
    assert ran.code == 0 and note in ran.json["notes"], ran.err


@pytest.mark.slow
def test_statistics_of_whole_micro_batches_are_taken(
    pipecut: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small_net.py").write_text(NORMALISED, encoding="utf-8")
    Path("small.yaml").write_text(SCENARIO, encoding="utf-8")
    sys.modules.pop("small_net", None)
    alone = {"layers": ["0", "1", "2", "3", "4"], "devices": {"one0": 1}}
    Path("plan.json").write_text(json.dumps({"stages": [alone]}), encoding="utf-8")
    ran = pipecut("validate", "plan.json", "small.yaml")
    assert ran.code == 0, ran.err
    ran = pipecut("export", "plan.json", "small.yaml", "--to", "deepspeed", "--json")
    assert not any("statistics" in one for one in ran.json["notes"])


def test_a_difference_ends_with_stage_parameter_and_both_numbers(
    pipecut: Command, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    differences = [Difference(0, "0.weight", 1.0, 1.0, 0.0), Difference(1, "2.bias", 1.5, 1.25, 0.2)]
    told = {at: Validation(StepsCompared([one]), []) for at, one in enumerate(differences)}
    monkeypatch.setattr(validate, "carried_out", lambda *_: told)
    ran = pipecut("validate", plan, "small.yaml")
    assert ran.code == 1 and "stage 1: 2.bias: 1.5, the unsplit model 1.25" in ran.out
    found = pipecut("validate", plan, "small.yaml", "--json")
    assert found.code == 1 and not found.json["equal"] and found.json["stages"][1]["expected"] == 1.25


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            StepsCompared([Difference(0, "0.bias", math.nan, 1.0, math.inf, step=2)]),
            "stage 0: 0.bias, step 2: nan",
        ),
        (StepsCompared([Difference(0, "loss", 1.0, 1.0, math.nan)]), "stage 0: loss: 1.0, the unsplit model 1.0"),
        (StepsCompared([], ["parameter 0.bias: no stage trains it"]), "parameter 0.bias: no stage trains it"),
    ],
)
def test_what_is_no_number_or_missing_does_not_pass(
    pipecut: Command, plan: Path, monkeypatch: pytest.MonkeyPatch, told: StepsCompared, words: str
) -> None:
    monkeypatch.setattr(validate, "carried_out", lambda *_: {0: Validation(told, [])})
    ran = pipecut("validate", plan, "small.yaml")
    assert ran.code == 1 and words in ran.out and "are those of the unsplit model" not in ran.out
    assert pipecut("validate", plan, "small.yaml", "--json").json["equal"] is False


def test_a_plan_is_exported(pipecut: Command, plan: Path) -> None:
    ran = pipecut("export", plan, "small.yaml", "--to", "torchtitan")
    assert ran.code == 0
    assert json.loads(ran.out)["parallelism"]["module_fqns_per_model_part"] == [["0", "1"], ["2"]]
    assert "as torchtitan runs it: " in ran.err and "as executed, links without queues, as planned" in ran.err
    ran = pipecut("export", plan, "small.yaml", "--to", "script", "--out", "train.py")
    assert ran.code == 0 and "as pipecut runs it: " in ran.out
    assert "from small_net import net" in Path("train.py").read_text(encoding="utf-8")
    found = pipecut("export", plan, "small.yaml", "--to", "deepspeed", "--json").json
    assert found["out"] is None and "['0', '1']" in found["text"] and found["runs"] == found["objective"]
    ran = pipecut("export", plan, "small.yaml", "--to", "megatron")
    assert ran.code == 2 and "block 1 has no weights, and Megatron-LM's blocks are transformers" in ran.err
    uneven = write_plan({"one0": 1}, {"one1": 1, "one2": 1})
    ran = pipecut("export", uneven, "small.yaml", "--to", "torchtitan")
    assert ran.code == 2 and "plan.json: stage 1 has 2 devices in 2 replicas, stage 0 1 in 1" in ran.err
    ran = pipecut("export", uneven, "small.yaml", "--to", "megatron", "--out", "plan.json")
    assert ran.code == 2 and "would replace" in ran.err


def test_no_script_is_written_for_a_plan_that_is_not_run(pipecut: Command, plan: Path) -> None:
    """Passes without a flush, and more stages than the scenario allows."""
    for setting, why in (
        ("training.schedule=async_one_f_one_b", "has no flush"),
        ("constraints.stages.at_least=3", "the plan breaks a rule of its scenario"),
    ):
        ran = pipecut("export", plan, "small.yaml", "--to", "script", "--set", setting)
        assert ran.code == 2 and why in ran.err


def test_no_script_is_written_for_layers_that_are_not_divided(
    pipecut: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of output features of a grouped convolution keeps every rule, and no process can run it."""
    monkeypatch.chdir(tmp_path)
    net = NET.replace("nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)", "nn.Conv2d(4, 4, 3, groups=2)")
    Path("grouped_net.py").write_text(net.replace("zeros(2, 4)", "zeros(2, 4, 8, 8)"), encoding="utf-8")
    scenario = SCENARIO.replace("small_net", "grouped_net")
    Path("grouped.yaml").write_text(scenario, encoding="utf-8")
    stages = '{"stages": [{"layers": ["0"], "devices": {"one0": 1, "one1": 1}, "forms": [2]}]}'
    Path("plan.json").write_text(stages, encoding="utf-8")
    ran = pipecut("export", "plan.json", "grouped.yaml", "--to", "script", "--out", "train.py")
    assert ran.code == 2 and "stage 0: layer 0 has form 2, and a grouped convolution" in ran.err
    assert not Path("train.py").exists()


@pytest.mark.slow
def test_what_a_process_meets_is_told(pipecut: Command, plan: Path) -> None:
    """The model is built anew in every process, whatever is kept of an earlier trace."""
    assert pipecut("trace", "small_net:net", "--out", "graph.json").code == 0
    text = Path("small.yaml").read_text(encoding="utf-8")
    Path("small.yaml").write_text(
        text.replace('{build: "small_net:net"}', "{graph: graph.json}"), encoding="utf-8"
    )
    ran = pipecut("run", plan, "small.yaml")
    assert ran.code == 2 and "only a model has weights" in ran.err and "Traceback" not in ran.err


@pytest.mark.slow
def test_a_run_goes_on_from_a_snapshot_with_another_plan_loss_and_precision(pipecut: Command, plan: Path) -> None:
    loss = "def loss(outputs, inputs):\n    return (outputs - inputs[0]).square().mean()\n"
    Path("small_loss.py").write_text(loss, encoding="utf-8")
    options = ["--loss", "small_loss:loss", "--optimizer", "adam", "--json", "--steps"]
    kept = ["--snapshot", "kept", "--save-every", "2"]
    ran = pipecut("run", plan, "small.yaml", *options, "4", *kept)
    assert ran.code == 0, ran.err
    through = ran.json["steps"]
    saved = [None if one["snapshot"] is None else Path(one["snapshot"]).name for one in through]
    assert saved == [None, "step-00000002", None, "step-00000004"]
    assert sorted(one.name for one in Path("kept").iterdir()) == ["step-00000002", "step-00000004"]
    again = pipecut("run", plan, "small.yaml", *options, "4", *kept)
    assert again.code == 2 and "--snapshot: kept holds snapshots of another run" in again.err
    shutil.rmtree("kept/step-00000004")
    other = write_plan({"one0": 1}, {"one1": 1, "one2": 1}, "[2]")
    found = pipecut("run", other, "small.yaml", *options, "2", "--resume", "kept").json["steps"]
    assert [one["step"] for one in found] == [3, 4]
    for one, wanted in zip(found, through[2:], strict=True):
        assert one["loss"] == pytest.approx(wanted["loss"], rel=1e-4)
