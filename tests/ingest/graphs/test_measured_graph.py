"""Measured times: from a profile into a graph file, through a scenario, into the times of an instance."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipecut.formulation.predictor.curves import Measured
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.instance import build_instance
from pipecut.formulation.problem.layers import layer_graph
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.training import Training
from pipecut.ingest.graphs.graph_file import read_graph, write_graph
from tests.examples import BYTE_LINK, chain, matrix


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
