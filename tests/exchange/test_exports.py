"""Plans written for other programs: read back, parsed by the target's rules, refused with the layer."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from commands.parser.execution_arguments import TARGETS as OFFERED
from exchange.exports import TARGETS, Source, exported_plan
from exchange.layer_lists import read_layer_lists
from exchange.whole_blocks import TargetError
from formulation.problem.cluster import Cluster, DeviceClass, Server
from formulation.problem.groups import Group
from formulation.problem.instance import Instance
from formulation.problem.layers import Layer, LayerGraph, Split
from formulation.problem.modes import Mode
from formulation.problem.options import Constraints, CostModel, Goal, Training
from formulation.problem.plan import Plan, Span, Stage
from formulation.problem.units import Link

NAMES = (
    "tokens",
    "add",
    *(f"blocks.{block}.{part}" for block in range(5) for part in ("norm", "mlp")),
    "norm",
    "head",
)
SOURCE = Source("plan.json", "net.yaml", "package.net:build")


def instance_of(names: tuple[str, ...] = NAMES) -> Instance:
    layers = [Layer(one, "add" if one == "add" else "Linear", Split.MATRIX, 4, 4, 4, 4, 4) for one in names]
    card = DeviceClass("card", 2**30, 10**12)
    cluster = Cluster.mesh("eight", [Server(f"node{at}", card, 1) for at in range(8)], Link(10**9))
    training = Training(global_batch=8, micro_batches=2)
    return Instance(
        model=LayerGraph.chain("net", layers),
        cluster=cluster,
        training=training,
        cost=CostModel(),
        constraints=Constraints(),
        goals=(Goal.BOTTLENECK,),
    )


def plan_of(*starts: int, devices: tuple[int, ...] = (), layers: int = len(NAMES)) -> Plan:
    ends = [*starts[1:], layers]
    wide = devices or (1,) * len(starts)
    first, stages = 0, []
    for begin, end, many in zip(starts, ends, wide, strict=True):
        places = tuple((server, 1) for server in range(first, first + many))
        first += many
        stages.append(Stage(Span(begin, end), Group(places, Mode(many)), (0,) * (end - begin)))
    return Plan(tuple(stages))


def layout(text: str) -> list[str]:
    """Expand Megatron's layout by its rules: stages of letters, without repetitions."""
    (whole,) = re.findall(r'--pipeline-model-parallel-layout "(.+)"', text)
    assert whole[0] == "E" and whole[-1] == "L"
    stages = [re.sub(r"(\w)\*(\d+)", lambda one: one[1] * int(one[2]), stage) for stage in whole.split("|")]
    assert all(stages) and f"--pipeline-model-parallel-size {len(stages)}\n" in text
    assert f"--num-layers {sum(stage.count('t') for stage in stages)}\n" in text
    return stages


def test_torchtitan_gets_modules_and_pipecut_reads_them_again(tmp_path: Path) -> None:
    instance, plan = instance_of(), plan_of(0, 6, 8)
    text = exported_plan(instance, plan, "torchtitan", SOURCE)
    lists = json.loads(text)["module_fqns_per_model_part"]
    assert lists == [["tokens", "blocks.0", "blocks.1"], ["blocks.2"], ["blocks.3", "blocks.4", "norm", "head"]]
    path = tmp_path / "titan.json"
    path.write_text(text, encoding="utf-8")
    again = read_layer_lists(path, instance)
    assert [stage.span for stage in again.stages] == [stage.span for stage in plan.stages]


def test_megatron_gets_a_layout() -> None:
    instance = instance_of()
    assert layout(exported_plan(instance, plan_of(0, 6, 8), "megatron", SOURCE)) == ["Ett", "t", "ttL"]
    assert layout(exported_plan(instance, plan_of(0), "megatron", SOURCE)) == ["EtttttL"]
    assert layout(exported_plan(instance, plan_of(0, 2, 12), "megatron", SOURCE)) == ["E", "ttttt", "L"]


@pytest.mark.parametrize(
    ("target", "plan", "words"),
    [
        ("torchtitan", plan_of(0, 5), "stage 1 starts inside block blocks.1, at layer blocks.1.mlp"),
        (
            "megatron",
            plan_of(0, 5),
            "stage 1 starts inside block blocks.1, at layer blocks.1.mlp: Megatron-LM cuts",
        ),
        ("torchtitan", plan_of(0, 1, 2), "stage 1 holds no module"),
        ("megatron", plan_of(0, 13), "stage 0 holds norm: in Megatron-LM the first stage"),
        ("torchtitan", plan_of(0, 6, devices=(2, 1)), "stage 1 has 1 devices in 1 replicas, stage 0 2 in 2"),
    ],
)
def test_what_a_target_cannot_run_is_refused(target: str, plan: Plan, words: str) -> None:
    with pytest.raises(TargetError, match=re.escape(words)):
        exported_plan(instance_of(), plan, target, SOURCE)


def test_megatron_takes_one_list_of_blocks() -> None:
    names = ("encoder.0.mlp", "decoder.0.mlp")
    with pytest.raises(TargetError, match="the model's lists are: decoder, encoder"):
        exported_plan(instance_of(names), plan_of(0, 1, layers=2), "megatron", SOURCE)


def test_the_program_is_one_and_names_what_it_reads() -> None:
    text = exported_plan(
        instance_of(), plan_of(0, 5, devices=(2, 1)), "script", Source('a"b.json', "net.yaml", "m:f")
    )
    called = {ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)}
    assert "pipecut.read_plan('a\"b.json', problem)" in called and "--nproc-per-node 3" in text
    with pytest.raises(TargetError, match="needs a model that a function builds"):
        exported_plan(instance_of(), plan_of(0), "script", Source("p", "s", None))


def test_the_command_line_knows_every_target() -> None:
    assert sorted(OFFERED) == sorted(TARGETS)
