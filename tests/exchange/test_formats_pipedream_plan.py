"""PipeDream's plans: read over an instance of the same profile, written back, and what is wrong with them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exchange.pipedream_plan import printed_configuration, read_pipedream_plan, write_pipedream_plan
from formulation.evaluate import evaluate
from formulation.problem.cluster import Server, cluster_graph
from formulation.problem.constraints import Constraints
from formulation.problem.instance import build_instance
from formulation.problem.options import CostModel, Training
from formulation.problem.plan import Span, Stage
from ingest.graphs.errors import FormatError
from ingest.graphs.pipedream_profile import measured_layers, read_profile
from ingest.graphs.profiled_model import ProfiledLayer, ProfiledModel
from tests.examples import BYTE_LINK, UNIT

DATA = Path(os.environ.get("PIPECUT_DATA", Path(__file__).parents[3] / "shared" / "data"))
NUMBERS = "forward_compute_time=1.500, backward_compute_time=3.000, activation_size=40.000, parameter_size=8.000"
PLANNED = "\n".join(
    [
        f"in -- Input0 -- {NUMBERS} -- stage_id=0",
        f"b -- ReLU -- {NUMBERS} -- stage_id=0",
        f"a -- Conv2d(1, 1) -- {NUMBERS} -- stage_id=0",
        f"c -- Linear -- {NUMBERS} -- stage_id=1",
        "\tin -- a",
        "\ta -- b",
        "\tb -- c",
        "",
    ]
)


def instance_of(profile, devices=4, degrees=()):
    cluster = cluster_graph("one", [Server("s", UNIT, devices, BYTE_LINK)], [])
    constraints = Constraints(tensor_parallel_degrees=degrees)
    layers = measured_layers(profile, 4, "made", UNIT.name)
    return build_instance(layers, cluster, Training(4), CostModel(), constraints)


def file_of(folder, text=PLANNED):
    path = folder / "gpus=4.txt"
    path.write_text(text, encoding="utf-8")
    return path


def problems(folder, text=PLANNED, replicas=None, devices=4):
    instance = instance_of(read_profile(file_of(folder)), devices)
    with pytest.raises(FormatError) as caught:
        read_pipedream_plan(file_of(folder, text), instance, replicas)
    return caught.value.problems


def test_stages_by_name_and_replicas_by_configuration(tmp_path):
    """The file lists b before a; the instance has them in execution order. Inputs are not planned."""
    path = file_of(tmp_path)
    instance = instance_of(read_profile(path))
    assert [layer.name for layer in instance.layers] == ["a", "b", "c"]
    plan = read_pipedream_plan(path, instance, "3-1")
    assert [(stage.span, stage.group.counts, stage.forms) for stage in plan.stages] == [
        (Span(0, 2), ((0, 3),), (0, 0)),
        (Span(2, 3), ((0, 1),), (0,)),
    ]
    assert evaluate(instance, plan).feasible
    straight = read_pipedream_plan(path, instance)
    assert [stage.group.devices for stage in straight.stages] == [1, 1]


def test_replicas_of_single_devices_where_the_instance_knows_them(tmp_path):
    path = file_of(tmp_path)
    instance = instance_of(read_profile(path), degrees=(1,))
    plan = read_pipedream_plan(path, instance, "3-1")
    assert [(stage.group.devices, stage.group.replicas) for stage in plan.stages] == [(3, 3), (1, 1)]
    assert evaluate(instance, plan).feasible


def test_written_back_it_is_the_same(tmp_path):
    path = file_of(tmp_path)
    profile = read_profile(path)
    instance = instance_of(profile)
    plan = read_pipedream_plan(path, instance, "3-1")
    again = tmp_path / "again.txt"
    assert write_pipedream_plan(again, profile, instance, plan) == "3-1"
    assert again.read_text(encoding="utf-8") == PLANNED
    assert read_pipedream_plan(again, instance, "3-1") == plan


def test_times_are_written_to_the_nanosecond(tmp_path):
    layers = (ProfiledLayer("a", "X", 1, 1_234_567, 5, 0), ProfiledLayer("b", "X", 0, 2_000_000, 5, 0))
    profile = ProfiledModel(layers, ((0, 1), (0, 1)))
    instance = instance_of(profile)
    one = read_pipedream_plan(file_of(tmp_path, _text("a", "b")), instance)
    path = tmp_path / "written.txt"
    assert write_pipedream_plan(path, profile, instance, one) == "1-1"
    first, second, *edges = path.read_text(encoding="utf-8").splitlines()
    assert "forward_compute_time=0.000001, backward_compute_time=1.234567," in first
    assert "forward_compute_time=0.000, backward_compute_time=2.000," in second
    assert edges == ["\ta -- b"] * 2
    read = read_profile(path)
    assert [(one.forward_ns, one.backward_ns) for one in read.layers] == [(1, 1_234_567), (0, 2_000_000)]


def _text(*names):
    lines = [f"{name} -- X -- {NUMBERS} -- stage_id={stage}" for stage, name in enumerate(names)]
    return "\n".join([*lines, "\ta -- b", ""])


def test_a_published_profile_goes_out_and_comes_back(tmp_path):
    source = DATA / "pipedream-profiles" / "vgg16" / "graph.txt"
    if not source.exists():
        pytest.skip("no public profile of vgg16 in the data folder")
    profile = read_profile(source)
    instance = instance_of(profile)
    text = source.read_text(encoding="utf-8").splitlines()
    order = {layer.name: at for at, layer in enumerate(instance.layers)}
    lines = [
        line if line.startswith("\t") else f"{line} -- stage_id={int(order.get(line.split(' -- ')[0], 0) >= 17)}"
        for line in text
    ]
    path = file_of(tmp_path, "\n".join(lines) + "\n")
    plan = read_pipedream_plan(path, instance, "3-1")
    assert [(stage.span, stage.group.devices) for stage in plan.stages] == [(Span(0, 17), 3), (Span(17, 40), 1)]
    again = tmp_path / "again.txt"
    assert write_pipedream_plan(again, profile, instance, plan) == "3-1"
    assert read_pipedream_plan(again, instance, "3-1") == plan
    assert read_profile(again) == read_profile(path)


def test_names_that_only_one_side_knows(tmp_path):
    found = problems(tmp_path, PLANNED.replace("c -- Linear", "d -- Linear").replace("b -- c", "b -- d"))
    assert found == (": layer 'c' of the model is missing", ": no layer is called 'd' in the model")


def test_a_bare_profile_is_no_plan(tmp_path):
    found = problems(tmp_path, PLANNED.replace(" -- stage_id=1", ""))
    assert found == (": layer 'c' has no stage_id; expected the output of PipeDream's optimiser",)


def test_stages_that_are_no_runs_of_layers(tmp_path):
    swapped = PLANNED.replace("stage_id=0", "stage_id=2").replace("stage_id=1", "stage_id=0")
    found = problems(tmp_path, swapped)
    assert found == (
        ": layer 'c' of stage 0 comes after layer 'b' of stage 2;"
        " expected stages that follow one another in execution order",
        ": no layer is in stage 1",
    )


def test_configurations_that_do_not_fit(tmp_path):
    assert problems(tmp_path, replicas="3-0") == (": replicas: found '3-0', expected numbers like '3-1'",)
    assert problems(tmp_path, replicas="2-1-1") == (": replicas: found 3 numbers in '2-1-1' for 2 stages",)
    few = ": found stages on 4 devices (3 + 1), expected at most 2, the cluster's"
    assert problems(tmp_path, replicas="3-1", devices=2) == (few,)


def test_what_pipedream_cannot_say_is_not_written(tmp_path):
    profile = read_profile(file_of(tmp_path))
    instance = instance_of(profile)
    plan = read_pipedream_plan(file_of(tmp_path), instance, "2-1")
    split = Stage(plan.stages[0].span, plan.stages[0].group, (2, 0))
    with pytest.raises(ValueError, match="stage 0, layer 'a': form 2, expected 0"):
        write_pipedream_plan(tmp_path / "x", profile, instance, type(plan)((split, plan.stages[1])))
    with pytest.raises(ValueError, match="layer 'c' of the profile is in no stage"):
        write_pipedream_plan(tmp_path / "x", profile, instance, type(plan)(plan.stages[:1]))
    assert not (tmp_path / "x").exists()


def test_the_programs_output_gives_the_configuration():
    printed = """Number of machines in budget not used: 0...

(Split start, split end) / compute time taken per stage / replication factor per stage:
(0, 17) 0.514 3
(17, 40) 0.158535 1
"""
    assert printed_configuration(printed) == "3-1"
    with pytest.raises(ValueError, match="found no line"):
        printed_configuration("3-1")
    with pytest.raises(ValueError, match=r"found a stage \(0, 17\), expected one that starts with state 40"):
        printed_configuration(printed * 2)
