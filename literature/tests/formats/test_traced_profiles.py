"""``pipecut trace graph.txt``: a profile of PipeDream as a layer graph with measured times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipecut.commands.main import main

PROFILE = (
    "node1 -- Input0 -- forward_compute_time=9.0, backward_compute_time=0.0, activation_size=8.0,"
    " parameter_size=0.0\n"
    "node2 -- Linear(2) -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0,"
    " parameter_size=24.0\n"
    "node3 -- ReLU() -- forward_compute_time=0.5, backward_compute_time=0.25, activation_size=8.0,"
    " parameter_size=0.0\n"
    "\tnode1 -- node2\n\tnode2 -- node3\n"
)


def test_the_command_line_reads_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile, out = tmp_path / "graph.txt", tmp_path / "g.json"
    profile.write_text(PROFILE, encoding="utf-8")
    options = ["--samples", "2", "--device-class", "V100", "--out", str(out)]
    assert main(["trace", str(profile), *options]) == 0
    assert "2 layers, 1 edge, 24 B of parameters" in capsys.readouterr().out
    rows = json.loads(out.read_text(encoding="utf-8"))["layers"]
    assert rows[0]["measured"] == [
        {"device_class": "V100", "samples": 2, "forward_ns": 1_000_000, "backward_ns": 2_000_000}
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["graph.txt", "--out", "g.json"], "give --samples N and --device-class NAME"),
        (["a.b:c", "--samples", "2", "--out", "g.json"], "are for a PipeDream profile"),
        (["none.txt", "--samples", "2", "--device-class", "x", "--out", "g.json"], "none.txt"),
        (
            ["graph.txt", "--samples", "0", "--device-class", "x", "--out", "g.json"],
            "expected a whole number from 1",
        ),
    ],
)
def test_wrong_profiles_are_refused(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("graph.txt").write_text(PROFILE, encoding="utf-8")
    assert main(["trace", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not Path("g.json").exists()
