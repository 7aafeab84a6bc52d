"""Measured times: from a profile into a graph file, through a scenario, into the times of an instance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipecut.commands.main import main
from pipecut.formulation.predictor.curves import Measured
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.instance import build_instance
from pipecut.formulation.problem.layers import layer_graph
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.training import Training
from pipecut.ingest.graphs.graph_file import read_graph, write_graph
from tests.examples import BYTE_LINK, chain, matrix

PROFILE = (
    "node1 -- Input0 -- forward_compute_time=9.0, backward_compute_time=0.0, activation_size=8.0,"
    " parameter_size=0.0\n"
    "node2 -- Linear(2) -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0,"
    " parameter_size=24.0\n"
    "node3 -- ReLU() -- forward_compute_time=0.5, backward_compute_time=0.25, activation_size=8.0,"
    " parameter_size=0.0\n"
    "\tnode1 -- node2\n\tnode2 -- node3\n"
)


def measured(*classes: str) -> tuple[Measured, ...]:
    return tuple(Measured(one, 4, 100, 202) for one in classes)


def cluster(*names: str):
    servers = [Server(name, DeviceClass(name, 1 << 30, 10**9), 1) for name in names]
    links = [(one, other, BYTE_LINK) for at, one in enumerate(names) for other in names[:at]]
    return cluster_graph("c", servers, links)


def graph(*rows: tuple[Measured, ...]):
    from dataclasses import replace

    layers = [replace(matrix(f"l{at}", 10), measured=row) for at, row in enumerate(rows)]
    return layer_graph("g", layers, [])


def test_measured_times_count_and_are_scaled_to_the_micro_batch() -> None:
    """Measured with 4 samples, trained with 2: half, rounded up. On another class operations count."""
    instance = build_instance(
        graph(measured("gpu")), cluster("gpu", "other"), Training(2), CostModel(flops_per_mac=1)
    )
    assert (instance.forward_ns, instance.backward_ns) == (((50,), (20,)), ((101,), (40,)))


def test_a_class_is_measured_in_full_or_not_at_all() -> None:
    with pytest.raises(ValueError, match="device class gpu: 1 of 2 layers are measured on it, l1 is not"):
        build_instance(graph(measured("gpu"), ()), cluster("gpu"), Training(1), CostModel())


def test_a_profile_needs_a_device_that_it_was_measured_on() -> None:
    bare = layer_graph("g", [matrix("a")], [])
    row = bare.nodes["a"]["layer"]
    named = layer_graph("g", [type(row)(**{**_fields(row), "measured": measured("V100")})], [])
    with pytest.raises(ValueError, match=r"device class gpu: the model was measured on V100 only"):
        build_instance(named, cluster("gpu"), Training(1), CostModel())


def _fields(row):
    return {name: getattr(row, name) for name in type(row).__dataclass_fields__}


def test_graph_files_keep_measured_times(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    write_graph(graph(measured("gpu", "old")), path)
    assert read_graph(path).nodes["l0"]["layer"].measured == measured("gpu", "old")
    write_graph(chain([matrix("a")], []), path)
    assert "measured" not in path.read_text(encoding="utf-8")


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
