"""Plans written for other programs: read back, parsed by the target's rules, refused with the layer."""

from __future__ import annotations

import ast
import itertools
import json
import re
import sys
import types
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from pipecut.commands.parser.arguments import TARGETS as OFFERED
from pipecut.exchange.exports import TARGETS, Source
from pipecut.exchange.exports import exported_plan as exported
from pipecut.exchange.whole_blocks import TargetError
from pipecut.formulation.problem.cluster import Cluster, DeviceClass, Server
from pipecut.formulation.problem.constraints import Constraints, Goal, Recompute, Sharded
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Layer, LayerGraph, Split, Tie
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link

NAMES = (
    "embed.tokens",
    "embed.add",
    *(f"blocks.{block}.{part}" for block in range(5) for part in ("norm", "mlp")),
    "norm",
    "head",
)
SOURCE = Source("plan.json", "net.yaml", "package.net:build")


SHARDED, ON_HOST = Mode(2, sharded=Sharded.WEIGHTS), Mode(optimizer_on_host=True)
STATE, ALONE = Mode(2, sharded=Sharded.OPTIMIZER), Mode(1, sharded=Sharded.WEIGHTS)


def instance_of(names: tuple[str, ...] = NAMES) -> Instance:
    layers = [Layer(one, "add" if one == "add" else "Linear", Split.MATRIX, 4, 4, 4, 4, 4) for one in names]
    card = DeviceClass("card", 2**30, 10**12)
    cluster = Cluster.mesh("eight", [Server(f"node{at}", card, 1) for at in range(8)], Link(10**9))
    training = Training(global_batch=8, micro_batches=2)
    anything = Constraints(
        tensor_parallel_degrees=(1, 2, 4, 8),
        recompute=Recompute.ALLOWED,
        sharded=tuple(Sharded),
    )
    return Instance(
        model=LayerGraph.chain("net", layers),
        cluster=cluster,
        training=training,
        cost=CostModel(),
        constraints=anything,
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


def held(plan: Plan, mode: Mode) -> Plan:
    """Return the plan with all stages in a mode."""
    return Plan(tuple(replace(stage, group=replace(stage.group, mode=mode)) for stage in plan.stages))


def exported_plan(instance: Instance, plan: Plan, target: str, source: Source) -> str:
    """Return what is written."""
    return exported(instance, plan, target, source).text


def layout(text: str) -> list[str]:
    """Expand Megatron's layout by its rules: stages of letters, without repetitions."""
    (whole,) = re.findall(r'--pipeline-model-parallel-layout "(.+)"', text)
    assert whole[0] == "E" and whole[-1] == "L"
    stages = [re.sub(r"(\w)\*(\d+)", lambda one: one[1] * int(one[2]), stage) for stage in whole.split("|")]
    assert all(stages) and f"--pipeline-model-parallel-size {len(stages)}\n" in text
    assert f"--num-layers {sum(stage.count('t') for stage in stages)}\n" in text
    return stages


def test_torchtitan_gets_modules() -> None:
    text = exported_plan(instance_of(), plan_of(0, 6, 8), "torchtitan", SOURCE)
    lists = json.loads(text)["parallelism"]["module_fqns_per_model_part"]
    assert lists == [["embed", "blocks.0", "blocks.1"], ["blocks.2"], ["blocks.3", "blocks.4", "norm", "head"]]


@pytest.mark.parametrize(("kind", "word"), [(Sharded.WEIGHTS, "always"), (Sharded.GRADIENTS, "never")])
def test_what_replicas_divide_is_said(kind: Sharded, word: str) -> None:
    plan = held(plan_of(0, 6, devices=(2, 2)), Mode(2, sharded=kind))
    found = exported(instance_of(), plan, "torchtitan", SOURCE)
    said = json.loads(found.text)["parallelism"]
    assert (said["data_parallel_replicate_degree"], said["data_parallel_shard_degree"]) == (1, 2)
    assert said["fsdp_reshard_after_forward"] == word
    assert found.runs == plan


def test_megatron_divides_the_state_of_the_optimiser() -> None:
    plan = held(plan_of(0, 6, devices=(2, 2)), STATE)
    assert "\n--use-distributed-optimizer\n" in exported_plan(instance_of(), plan, "megatron", SOURCE)


def test_megatron_gets_a_layout() -> None:
    instance = instance_of()
    assert layout(exported_plan(instance, plan_of(0, 6, 8), "megatron", SOURCE)) == ["Ett", "t", "ttL"]
    assert layout(exported_plan(instance, plan_of(0), "megatron", SOURCE)) == ["EtttttL"]
    assert layout(exported_plan(instance, plan_of(0, 2, 12), "megatron", SOURCE)) == ["E", "ttttt", "L"]


def divided(plan: Plan) -> Plan:
    """Return the plan with every layer summed over the devices of a replica."""
    return Plan(tuple(replace(stage, forms=(1,) * len(stage.span)) for stage in plan.stages))


@pytest.mark.parametrize(
    ("target", "plan", "words"),
    [
        ("torchtitan", plan_of(0, 5), "stage 1 starts inside block blocks.1, at layer blocks.1.mlp"),
        (
            "megatron",
            plan_of(0, 5),
            "stage 1 starts inside block blocks.1, at layer blocks.1.mlp: Megatron-LM cuts",
        ),
        ("torchtitan", plan_of(0, 1), "stage 1 starts inside block embed, at layer embed.add: torchtitan cuts"),
        ("megatron", plan_of(0, 13), "stage 1 starts behind the blocks, at head: in Megatron-LM the first stage"),
        (
            "torchtitan",
            held(plan_of(0, 6, devices=(2, 2)), STATE),
            "stage 0 has sharded 'optimizer', which torchtitan does not run in a pipeline: plan with "
            "constraints.sharded: [none, weights, gradients]",
        ),
        (
            "torchtitan",
            divided(held(plan_of(0, 6, devices=(2, 2)), ALONE)),
            "stage 0 has sharded 'weights' in one replica",
        ),
        (
            "torchtitan",
            held(plan_of(0, 6), ON_HOST),
            "stage 0 keeps the optimiser on its host, and what is",
        ),
        (
            "megatron",
            held(plan_of(0, 6, devices=(2, 2)), SHARDED),
            "stage 0 has sharded 'weights', which Megatron-LM does not run in a pipeline",
        ),
        (
            "megatron",
            Plan((held(plan_of(0, 6, devices=(2, 2)), STATE).stages[0], plan_of(0, 6, devices=(2, 2)).stages[1])),
            "stage 1 has sharded 'none', stage 0 'optimizer': Megatron-LM divides the same in all",
        ),
        ("torchtitan", plan_of(0, 6, devices=(2, 1)), "stage 1 has 1 device in 1 replica, stage 0 2 in 2"),
    ],
)
def test_what_a_target_cannot_run_is_refused(target: str, plan: Plan, words: str) -> None:
    with pytest.raises(TargetError, match=re.escape(words)):
        exported_plan(instance_of(), plan, target, SOURCE)


CHAIN = ("tokens", *(one for one in NAMES if one.startswith("blocks")), "norm", "head")


def modules(names: tuple[str, ...] = CHAIN) -> nn.Module:
    """Return a model that has a module of every name, each of which adds its place."""
    model = nn.Module()
    for at, name in enumerate(names):
        *path, last = name.split(".")
        owner = model
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, nn.Sequential())
            owner = owner.get_submodule(part)
        owner.add_module(last, Adds(at))
    return model


class Adds(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, found: list[int]) -> list[int]:
        return [*found, self.number]


class PipelineModule:
    """DeepSpeed's, as far as its rule ``uniform`` goes: entries dealt to stages, as evenly as can be, in order."""

    def __init__(self, *, layers: list[nn.Module], num_stages: int, partition_method: str, **more: Any) -> None:
        assert partition_method == "uniform"
        parts = [len(layers) // num_stages * at for at in range(num_stages)] + [len(layers)]
        self.stages = [layers[a:b] for a, b in itertools.pairwise(parts)]
        self.more = more


def in_deepspeed(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the module that was written beside something like DeepSpeed; return its names."""
    fake = types.ModuleType("deepspeed.pipe")
    fake.PipelineModule = PipelineModule  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed", types.ModuleType("deepspeed"))
    monkeypatch.setitem(sys.modules, "deepspeed.pipe", fake)
    found: dict[str, Any] = {}
    exec(text, found)  # noqa: S102 (what the export wrote)
    return found


def test_deepspeed_gets_one_entry_for_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = instance_of(CHAIN)
    plan = held(plan_of(0, 5, 7, devices=(2, 2, 2), layers=len(CHAIN)), replace(STATE, recompute=True))
    found = in_deepspeed(exported_plan(instance, plan, "deepspeed", SOURCE), monkeypatch)
    made = found["pipeline"](modules(), loss="mean")
    assert [sum(1 for _ in stage) for stage in made.stages] == [1, 1, 1]
    given: list[int] = []
    for stage, part in zip(plan.stages, made.stages, strict=True):
        given = part[0](given)
        assert given == list(range(stage.span.stop))
    assert made.more == {"activation_checkpoint_interval": 1, "loss_fn": "mean"}
    assert found["CONFIG"] == {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 1},
    }


@pytest.mark.parametrize(
    ("target", "name"), [("torchtitan", "torchtitan"), ("megatron", "Megatron-LM"), ("deepspeed", "DeepSpeed")]
)
def test_only_the_warm_up_that_targets_have_is_written(target: str, name: str) -> None:
    instance, plan = instance_of(CHAIN), plan_of(0, 5, layers=len(CHAIN))
    longer = Plan(tuple(replace(stage, warm_up=many) for stage, many in zip(plan.stages, (4, 1), strict=True)))
    training = replace(instance.training, global_batch=8, micro_batches=8, warm_up="choose")
    chosen = replace(instance, training=training)
    with pytest.raises(
        TargetError, match=f"stage 0 runs 4 forward passes before its first backward, and {name} 2, of the stages"
    ):
        exported_plan(chosen, longer, target, SOURCE)
    eager = replace(chosen, training=replace(training, warm_up="eager"))
    with pytest.raises(TargetError, match="stage 0 runs 3 forward passes"):
        exported_plan(eager, plan, target, SOURCE)
    classic = replace(instance, training=replace(training, warm_up="classic"))
    assert exported_plan(chosen, plan, target, SOURCE) == exported_plan(classic, plan, target, SOURCE)
    halves = replace(instance, training=replace(instance.training, schedule=Schedule.ZERO_BUBBLE_H1))
    with pytest.raises(
        TargetError, match=f"the plan is for zero_bubble_h1, and {name} runs whole backward passes"
    ):
        exported_plan(halves, plan, target, SOURCE)


def test_torchtitan_is_told_the_schedule_of_several_stages_a_group() -> None:
    plan = plan_of(0, 3, 5, 7, layers=len(CHAIN))
    for schedule, name, on in (
        (Schedule.ZERO_BUBBLE_V, "ZBVZeroBubble", (0, 1, 1, 0)),
        (Schedule.ONE_F_ONE_B, "Interleaved1F1B", (0, 1, 0, 1)),
    ):
        training = Training(8, 2, schedule=schedule, chunks=2)
        instance = replace(instance_of(CHAIN), training=training)
        held = [plan.stages[at].group for at in on]
        laid = Plan(tuple(replace(stage, group=one) for stage, one in zip(plan.stages, held, strict=True)))
        found = json.loads(exported_plan(instance, laid, "torchtitan", SOURCE))["parallelism"]
        assert (found["pipeline_parallel_schedule"], found["pipeline_parallel_degree"]) == (name, 2)
        assert len(found["module_fqns_per_model_part"]) == 4
        if schedule.in_a_v:
            for target, program in (("megatron", "Megatron-LM"), ("deepspeed", "DeepSpeed")):
                with pytest.raises(
                    TargetError, match=f"for zero_bubble_v of 2 stages a group, and {program} runs whole"
                ):
                    exported_plan(instance, laid, target, SOURCE)


def test_what_deepspeed_cannot_run_is_refused() -> None:
    loose = instance_of(("tokens", "add", *CHAIN[1:]))
    for target in ("deepspeed", "torchtitan"):
        with pytest.raises(TargetError, match="stage 0: add is an operation outside all modules"):
            exported_plan(loose, plan_of(0, 6, layers=len(CHAIN) + 1), target, SOURCE)
    exported_plan(loose, plan_of(0, 6, layers=len(CHAIN) + 1), "megatron", SOURCE)  # it has embeddings of its own
    chain = instance_of(CHAIN)
    alone = held(plan_of(0, 5, devices=(2, 2), layers=len(CHAIN)), Mode(1))
    with pytest.raises(
        TargetError, match="stage 0 divides its layers over 2 devices, first tokens by input features"
    ):
        exported_plan(chain, divided(alone), "deepspeed", SOURCE)
    skipping = LayerGraph("net", chain.model.layers, (*chain.model.edges, (0, len(CHAIN) - 1, 4)), element_bytes=4)
    with pytest.raises(
        TargetError,
        match=r"stage 1: 2 tensors cross the cut before blocks.2.norm: .*, tokens .for head.; DeepSpeed",
    ):
        exported_plan(replace(chain, model=skipping), plan_of(0, 5, layers=len(CHAIN)), "deepspeed", SOURCE)
    tied = replace(chain, model=replace(chain.model, ties=(Tie((0, len(CHAIN) - 1), 4, 4),)))
    with pytest.raises(TargetError, match="stage 1: head shares weights with tokens across the cut before"):
        exported_plan(tied, plan_of(0, 5, layers=len(CHAIN)), "deepspeed", SOURCE)


@pytest.mark.parametrize("target", ["torchtitan", "megatron", "deepspeed"])
def test_recomputation_is_written_for_all_stages_or_refused(target: str) -> None:
    plan, instance = plan_of(0, 5, layers=len(CHAIN)), instance_of(CHAIN)
    again = exported_plan(instance, held(plan, Mode(recompute=True)), target, SOURCE)
    assert again != exported_plan(instance, plan, target, SOURCE)
    one = Plan((plan.stages[0], held(plan, Mode(recompute=True)).stages[1]))
    with pytest.raises(TargetError, match="stage 1 computes its activations again, stage 0 does not"):
        exported_plan(instance, one, target, SOURCE)
    with pytest.raises(TargetError, match="stage 0 computes named layers again"):
        exported_plan(instance, held(plan, Mode(recompute="layers")), target, SOURCE)


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
