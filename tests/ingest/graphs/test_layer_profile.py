"""``pipecut profile``: measured, named by a scenario, planned with; and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import pytest

pytest.importorskip("torch")

import torch

from pipecut.execution import profiling as profile
from pipecut.execution.errors import RunFailedError
from pipecut.execution.profiling import ProfiledPasses, segments_of, turn
from pipecut.execution.splitting.stages import ModelProgram
from pipecut.ingest.errors import GraphFileError, ModelError
from pipecut.ingest.graphs.layer_profile import LayerProfile, machine_name, read_profile, with_times
from pipecut.ingest.graphs.layer_profile import write_profile as written_again
from tests.command_line import Command
from tests.commands.test_execution_commands import NET, SCENARIO, write_plan
from tests.execution import models
from tests.execution.cases import equal_plan

ROWS = [{"name": name, "forward_ns": 1000, "backward_ns": 2000} for name in ("0", "1", "2")]
TIMES = {"samples": 2, "whole_forward_ns": 3000, "whole_backward_ns": 6000, "spread": 0.0, "layers": ROWS}
PROFILE = {
    "format": "pipecut profile",
    "version": 1,
    "model": "small_net:net",
    "device_class": "card",
    "machine": machine_name(),
    "torch": torch.__version__,
    "threads": 1,
    "link": {"latency_ns": 1, "bits_per_second": 1},
    "times": [TIMES],
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("small_net.py").write_text(NET, encoding="utf-8")
    named = SCENARIO.replace('"small_net:net"', '"small_net:net", profile: profile.json')
    Path("small.yaml").write_text(named, encoding="utf-8")
    alone = named + "constraints: {devices_per_stage: [1], stages: {at_most: 1}}\n"
    Path("one.yaml").write_text(alone, encoding="utf-8")
    return tmp_path


def write_profile(**changed: object) -> None:
    Path("profile.json").write_text(json.dumps(PROFILE | changed), encoding="utf-8")


@pytest.mark.slow
def test_a_profile_is_measured_and_planned_with(pipecut: Command, files: Path) -> None:
    found = pipecut(
        "profile", "small.yaml", "--out", "profile.json", "--samples", "1", "--rounds", "2", "--most-spread", "9",
        "--json",
    )  # fmt: skip
    assert found.code == 0, found.err
    written = read_profile(Path("profile.json"))
    assert [one.samples for one in written.times] == [1, 2] and written.machine == machine_name()
    (mine,) = [one for one in found.json["sizes"] if one["samples"] == 2]
    assert mine["probe_ns"] == written.probe_ns(2) and mine["probe_ns"] > 0
    rows = {one["layer"]: one for one in found.json["layers"]}
    assert list(rows) == ["0", "1", "2"] and all(one["forward_ns"] > 0 for one in rows.values())
    assert sum(one["forward_ns"] for one in rows.values()) == mine["sum_forward_ns"]
    planned = pipecut("plan", "one.yaml", "--json")
    assert planned.code == 0, planned.err
    both = sum(one["forward_ns"] + one["backward_ns"] for one in rows.values())
    assert planned.json["stages"][0]["compute_ns"] == both
    shown = pipecut("profile", "small.yaml", "--out", "profile.json", "--rounds", "2", "--most-spread", "9")
    assert shown.code == 0 and "whole" in shown.out and "link between two processes" in shown.out


def test_times_of_a_profile_are_planned_with(pipecut: Command, files: Path) -> None:
    write_profile()
    planned = pipecut("plan", "one.yaml", "--json")
    assert planned.json["stages"][0]["compute_ns"] == 9000
    alone = "of 2 samples alone, so times of devices that share a stage are extrapolated"
    assert any(alone in note for note in planned.json["notes"])


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("changed", "options", "words"),
    [
        ({"device_class": "cpu"}, [], "measured on device class 'cpu', and the cluster has card"),
        ({}, ["--set", "training.micro_batches=1"], "with 2 samples a micro-batch, the training has 4"),
        ({"times": [TIMES | {"layers": ROWS[:2]}]}, [], "layer 2 is in the model only"),
        ({"times": [TIMES | {"layers": [*ROWS, ROWS[0] | {"name": "9"}]}]}, [], "layer 9 is in the profile only"),
        ({"times": []}, [], "times: List should have at least 1 item"),
        ({"version": 2}, [], "version: expected 1, got 2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    pipecut: Command, files: Path, changed: dict[str, object], options: list[str], words: str
) -> None:
    write_profile(**changed)
    ran = pipecut("plan", "small.yaml", *options)
    assert ran.code == 2 and words in ran.err and "profile.json" in ran.err, ran.err


@pytest.mark.parametrize(
    ("key", "words"), [("machine", "with processor another, and"), ("torch", "with torch another, and")]
)
def test_another_machine_validates_nothing(pipecut: Command, files: Path, key: str, words: str) -> None:
    write_profile(**{key: "another"})
    ran = pipecut("validate", write_plan({"one0": 1}, {"one1": 1}), "small.yaml")
    assert ran.code == 2 and words in ran.err


def test_unsteady_times_are_refused_with_both_numbers() -> None:
    with pytest.raises(RunFailedError, match=r"spreads over 30\.0% of their median, at most 15\.0% is taken"):
        profile._check_steady(ProfiledPasses(4, {}, (1, 1), 0.3, 0, 1), 0.15)
    with pytest.raises(RunFailedError, match="5000 page faults each, at most 2000"):
        profile._check_steady(ProfiledPasses(4, {}, (1, 1), 0.1, 5000, 1), 0.15)


def test_several_sizes_are_a_curve_and_what_lies_outside_is_said(pipecut: Command, files: Path) -> None:
    """Times for 1 and 4 samples: 2 lie on the straight line between them, 8 are twice those of 4."""
    small, large = ([row | {"forward_ns": ns, "backward_ns": 2 * ns} for row in ROWS] for ns in (1000, 7000))
    write_profile(times=[TIMES | {"samples": 1, "layers": small}, TIMES | {"samples": 4, "layers": large}])
    planned = pipecut("plan", "one.yaml", "--json").json
    assert planned["stages"][0]["compute_ns"] == 3 * 3 * 3000
    assert not any("extrapolated" in note for note in planned["notes"])
    outside = pipecut("plan", "one.yaml", "--set", "training.global_batch=16", "--json").json
    assert outside["stages"][0]["compute_ns"] == 3 * 3 * 14_000
    assert any("of 1 to 4 samples, so times of 8 are extrapolated" in note for note in outside["notes"])


def test_a_profile_says_how_fast_the_machine_was_if_it_knows(files: Path) -> None:
    """The probe is that of the nearest size; profiles of before it was kept are read, and know none."""
    write_profile()
    old = read_profile(Path("profile.json"))
    assert old.probe_ns(2) is None
    write_profile(times=[TIMES | {"samples": 1, "probe_ns": 100}, TIMES | {"samples": 8, "probe_ns": 300}])
    found = read_profile(Path("profile.json"))
    assert [found.probe_ns(many) for many in (1, 4, 5, 9)] == [100, 100, 300, 300]
    written_again(found, Path("again.json"))
    assert read_profile(Path("again.json")) == found
    write_profile(times=[TIMES | {"probe_ns": 0}])
    with pytest.raises(GraphFileError, match=r"times\[0\]\.probe_ns: expected 1 or more"):
        read_profile(Path("profile.json"))


def test_processes_at_once_keep_the_mean_of_their_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stand-ins for processes, whose machine took 100 and 301 ns for a probe."""
    each = [[ProfiledPasses(2, {"0": (1, 2)}, (1, 2), 0.0, 0, ns)] for ns in (100.0, 301.0)]
    told = iter([each, [(1, 1), (1, 1)]])
    monkeypatch.setattr(profile, "in_processes", lambda *_: next(told))
    job = profile.ProfileJob("small_net:net", None, Path(), (2,), 1, 2, 0, at_once=2)
    assert profile.profiled(job, "card", 0.1, lambda *_: None).probe_ns(2) == 200


def test_one_size_serves_no_other() -> None:
    with pytest.raises(ModelError, match="choose the measured size, or profile again with --samples 1,2"):
        with_times(nx.DiGraph(), LayerProfile.model_validate(PROFILE), ["card"], [1, 2], "p.json")


@pytest.mark.few("tied_gpt")
@pytest.mark.parametrize("make", [models.resnet, models.tied_gpt])
def test_every_layer_of_a_segment_is_timed(make: object) -> None:
    """All layers that compute anything have a time, and their sum is near that of passes that nobody read."""
    model, inputs = make()  # type: ignore[operator]
    program = ModelProgram.of(model, inputs)
    segments = segments_of(program, program.split(equal_plan(len(program.layers), (1, 1))), inputs)
    for segment in segments:
        found = turn(segment)
        assert set(found.forward) == set(segment.stage.layers)
        assert set(found.backward) <= set(segment.stage.layers) and len(found.backward) > 1
        assert all(one > 0 for one in (*found.forward.values(), *found.backward.values(), *found.whole))
        assert all(one.grad is None for one in segment.stage.parameters())
