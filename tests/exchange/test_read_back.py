"""Exports read back by a reader of the test's own: what was written is what is priced as the program's run."""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecut.exchange.exports import Export, Source, exported_plan
from pipecut.exchange.whole_blocks import TargetError
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome
from pipecut.formulation.problem.cluster import Cluster, DeviceClass, Server
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute, Sharded
from pipecut.formulation.problem.demands import with_memory
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Axis, Layer, LayerGraph, Split
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.precision import Precision
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.ingest.graphs.cut_places import cut_for, divided_by
from pipecut.ingest.graphs.runtimes import RUNTIMES
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.auto.solve import plan as best
from pipecut.solvers.catalogue import AUTO
from tests.laws import so_many

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Source("plan.json", "net.yaml", "package.net:build")
TARGETS = ("torchtitan", "megatron", "deepspeed")
BLOCK = ("norm", "up", "act", "down", "add")
"""Of a residual block: what a pair of matrices stands between."""


def transformer(blocks: int) -> LayerGraph:
    """Return an embedding, residual blocks with a pair of matrices each, a norm and a head."""
    rows = [Layer("embed", "Embedding", Split.MATRIX, 4000, 40, 40, 40, 400)]
    edges, stream = [], 0
    for block in range(blocks):
        first = len(rows)
        for name in BLOCK:
            label, wide = f"layers.{block}.{name}", 4 if name in ("act",) else 1
            if name in ("up", "down"):
                rows.append(Layer(label, "Linear", Split.MATRIX, 1600, 40 * wide, 160, 40, 90_000))
            elif name == "act":
                rows.append(Layer(label, "GELU", Split.FOLLOW, 0, 160, 160, 160, 0))
            else:
                rows.append(Layer(label, name, Split.JOIN, 8, 40, 40, 40, 0, allowed_forms=(0, 1)))
        edges += [(stream, first, 40), *((one, one + 1, 40) for one in range(first, len(rows) - 1))]
        edges.append((stream, len(rows) - 1, 40))
        stream = len(rows) - 1
    rows += [
        Layer("norm", "LayerNorm", Split.JOIN, 8, 40, 40, 40, 0, allowed_forms=(0, 1)),
        Layer("head", "Linear", Split.MATRIX, 4000, 40, 400, 40, 30_000),
    ]
    edges += [(stream, stream + 1, 40), (stream + 1, stream + 2, 40)]
    return LayerGraph("net", tuple(rows), tuple(edges), element_bytes=4)


PRECISIONS = (None, None, None, *Precision.presets().values())


@st.composite
def instances(draw: st.DrawFn, *, open_forms: bool = True) -> Instance:
    cards = [DeviceClass("fast", 2**20, 10**12), DeviceClass("slow", 2**19, 10**11)]
    several = draw(st.booleans())
    servers = [
        Server(f"node{at}", draw(st.sampled_from(cards)), 2 if several else 1, Link(10**10) if several else None)
        for at in range(4)
    ]
    order = draw(st.sampled_from([Schedule.ONE_F_ONE_B] * 12 + [*Schedule]))
    chunks = draw(st.sampled_from([1, 1, 1, 2])) if order is Schedule.ONE_F_ONE_B else 1
    training = Training(
        8 * draw(st.sampled_from([1, 3])),
        draw(st.sampled_from([1, 2, 4])),
        schedule=order,
        chunks=chunks,
        precision=draw(st.sampled_from(PRECISIONS)),
    )
    return Instance(
        model=transformer(draw(st.integers(1, 6))),
        cluster=Cluster.mesh("net", servers, Link(draw(st.sampled_from([10**7, 10**9])))),
        training=training,
        cost=CostModel(),
        constraints=Constraints(
            tensor_parallel_degrees=(1, 2, 4, 8) if open_forms else (),
            recompute=Recompute.BLOCKS if open_forms else Recompute.NEVER,
            sharded=tuple(Sharded) if open_forms else (Sharded.NONE,),
            splits=(Axis.SEQUENCE,) if open_forms else (),
            placement=Placement.FREE,
            max_servers=4,
            memory=False,
        ),
        goals=(Goal.STEP_TIME if order.flushes else Goal.PERIOD,),
    )


def places(instance: Instance, *, anywhere: bool) -> list[int]:
    """Return where stages may start: at any layer, or between blocks and around them."""
    rows = range(1, len(instance.layers))
    return [
        at
        for at in rows
        if anywhere
        or not instance.layers[at].name.startswith("layers")
        or instance.layers[at].name.endswith("norm")
    ]


@st.composite
def plans(draw: st.DrawFn, instance: Instance) -> Plan:
    """Draw a plan, most often one of equal stages that start at blocks, on any servers."""
    chunks, each = instance.training.chunks, instance.servers[0].devices
    width = draw(st.sampled_from([1, 2, 4]))
    groups = draw(st.integers(1, max(1, 4 * each // width)))
    cuts = places(instance, anywhere=draw(st.integers(0, 9)) == 0)
    many = min(groups * chunks - 1, len(cuts))
    starts = [0, *sorted(draw(st.permutations(cuts))[:many])]
    replicas = draw(st.sampled_from([one for one in (1, 1, 2, 4) if width % one == 0]))
    mode = Mode(
        replicas,
        draw(st.sampled_from([False, False, True])),
        draw(st.sampled_from([Sharded.NONE] * 5 + [*Sharded])),
    )
    free = [at for at in draw(st.permutations(range(4))) for _ in range(each)]
    kind = draw(st.sampled_from(["rows", "pairs", "sequence", "any"]))
    stages = []
    for at, (first, stop) in enumerate(itertools.pairwise((*starts, len(instance.layers)))):
        rank = instance.training.rank_of(at, len(starts)) if len(starts) % chunks == 0 else at
        held = Counter(free[rank * width : (rank + 1) * width])
        group = Group(tuple(sorted(held.items())), mode)
        forms = [_form(instance, one, kind, draw) if width > replicas else 0 for one in range(first, stop)]
        stages.append(Stage(Span(first, stop), group, tuple(forms)))
    return Plan(tuple(stages))


FORMS = {
    "pairs": {"embed": 1, "norm": 1, "up": 2, "down": 1, "add": 1, "head": 2},
    "sequence": {"embed": 3, "norm": 0, "up": 4, "down": 3, "add": 0, "head": 4},
}
"""How Megatron-LM divides this model, without sequence parallelism and with."""


def _form(instance: Instance, layer: int, kind: str, draw: st.DrawFn) -> int:
    row = instance.layers[layer]
    if kind == "rows" or row.split is Split.FOLLOW:
        return 0
    if kind == "any":
        return draw(st.sampled_from(row.allowed_forms))
    return FORMS[kind][row.name.rpartition(".")[2]]


class Told(NamedTuple):
    """What a text says, as far as every target says it."""

    starts: list[int]
    groups: int
    degree: int
    replicas: int
    ranks: list[Any]
    global_batch: int
    samples: int
    steps: int
    sequence: bool


def told(instance: Instance, target: str, text: str) -> Told:
    """Read what was written, by the target's own rules."""
    names = [layer.name for layer in instance.layers]
    blocks = {f"layers.{at}" for at in range(6)}
    first = {
        name: next(at for at, one in enumerate(names) if one == name or one.startswith(name + "."))
        for name in (*blocks, "embed", "norm", "head")
        if any(one == name or one.startswith(name + ".") for one in names)
    }
    if target == "megatron":
        found = dict(re.findall(r"--(\S+) ?(\S*)", text))
        whole = re.sub(
            r"t\*(\d+)", lambda one: "t" * int(one[1]), found["pipeline-model-parallel-layout"].strip('"')
        )
        starts, block = [], 0
        for stage in whole.split("|"):
            starts.append(0 if "E" in stage else first[f"layers.{block}"] if "t" in stage else first["norm"])
            block += stage.count("t")
        assert block == int(found["num-layers"]) and "untie-embeddings-and-output-weights" in found
        groups, degree = int(found["pipeline-model-parallel-size"]), int(found["tensor-model-parallel-size"])
        ranks = json.loads(text.partition("\n")[0].partition(":")[2])
        replicas = sum(count for _, count in ranks) // groups // degree
        batch, samples = int(found["global-batch-size"]), int(found["micro-batch-size"])
        steps = batch // samples // replicas
        return Told(starts, groups, degree, replicas, ranks, batch, samples, steps, "sequence-parallel" in found)
    if target == "torchtitan":
        whole_file = json.loads(text)
        found, training = whole_file["parallelism"], whole_file["training"]
        modules = found.get("module_fqns_per_model_part", [["embed"]])
        replicas = found["data_parallel_replicate_degree"] * found["data_parallel_shard_degree"]
        samples = found.get("pipeline_parallel_microbatch_size", training["local_batch_size"])
        batch = training["global_batch_size"]
        accumulated = batch // (training["local_batch_size"] * replicas)
        steps = accumulated * (training["local_batch_size"] // samples)
        starts = [first[stage[0]] for stage in modules]
        return Told(
            starts,
            found["pipeline_parallel_degree"],
            found["tensor_parallel_degree"],
            replicas,
            whole_file["ranks"],
            batch,
            samples,
            steps,
            found["enable_sequence_parallel"],
        )
    rows = {
        ast.unparse(one.targets[0]): ast.literal_eval(one.value)
        for one in ast.parse(text).body
        if isinstance(one, ast.Assign)
    }
    config, modules = rows["CONFIG"], rows["STAGES"]
    replicas = sum(count for _, count in rows["RANKS"]) // len(modules)
    samples, batch = config["train_micro_batch_size_per_gpu"], config["train_batch_size"]
    return Told(
        [first[stage[0]] for stage in modules],
        len(modules),
        1,
        replicas,
        [list(one) for one in rows["RANKS"]],
        batch,
        samples,
        config["gradient_accumulation_steps"],
        False,
    )


def check(instance: Instance, plan: Plan, target: str, found: Export) -> None:
    """Hold what was written against the plan, and what is priced against what was written."""
    said, training = told(instance, target, found.text), instance.training
    assert (
        said.starts == [stage.span.first for stage in plan.stages] == [one.span.first for one in found.runs.stages]
    )
    assert said.groups == training.ranks(len(plan))
    group = plan.stages[0].group
    assert said.degree * said.replicas == group.devices
    assert said.global_batch == training.global_batch and said.steps == training.micro_batches
    assert said.samples * said.replicas == training.micro_batch
    laid = [server for name, count in said.ranks for server in [int(name.removeprefix("node"))] * count]
    for at, stage in enumerate(plan.stages):
        rank = training.rank_of(at, len(plan))
        mine = Counter(laid[rank * group.devices : (rank + 1) * group.devices])
        assert tuple(sorted(mine.items())) == stage.group.counts == found.runs.stages[at].group.counts
        runs = found.runs.stages[at].group
        assert (runs.tensor_parallel_degree, runs.replicas) == (said.degree, said.replicas)
    kind = "sequence" if said.sequence else "pairs"
    divided = [
        0 if row.split is Split.FOLLOW or said.degree == 1 else FORMS[kind][row.name.rpartition(".")[2]]
        for row in instance.layers
    ]
    assert [form for stage in found.runs.stages for form in stage.forms] == divided
    assert found.priced == evaluate(found.instance, found.runs)
    other = sum(a != b for a, b in zip(divided, (form for one in plan.stages for form in one.forms), strict=True))
    assert found.otherwise == other
    again = any(stage.group.mode.recompute or stage.again for stage in plan.stages)
    if (
        not other
        and (not again or target == "deepspeed")
        and (len(plan) > 1 or training.schedule.name == "ONE_F_ONE_B")
    ):
        assert found.priced.objective == found.planned.objective
        assert [one.memory_bytes for one in found.priced.stages] == [
            one.memory_bytes for one in found.planned.stages
        ]


@given(data=st.data())
def test_every_export_is_read_back_and_priced(data: st.DataObject) -> None:
    instance = data.draw(instances())
    plan, target = data.draw(plans(instance)), data.draw(st.sampled_from(TARGETS))
    try:
        found = exported_plan(instance, plan, target, SOURCE)
    except TargetError as error:
        assert str(error)
    else:
        check(instance, plan, target, found)


@pytest.mark.slow
@settings(max_examples=so_many(12))
@given(data=st.data())
def test_what_is_planned_for_a_program_is_what_it_runs(data: st.DataObject) -> None:
    drawn, runtime = data.draw(instances(open_forms=False)), data.draw(st.sampled_from(TARGETS))
    limits = replace(drawn.constraints, equal_stages=True, one_mode=True, memory=data.draw(st.booleans()))
    if data.draw(st.booleans()):
        told: Any = RUNTIMES[runtime].narrowed({"sharded": (), "recompute": (), "splits": ()})
        divided, splits = tuple(told["sharded"]), tuple(told["splits"])
        limits = replace(limits, recompute=told["recompute"], sharded=divided, splits=splits)
    model = LayerGraph.of(cut_for(drawn.layer_graph, runtime))
    try:
        instance = divided_by(replace(drawn, model=model, constraints=limits), runtime)
    except ValueError as error:
        assert "model.runtime: the plan is for" in str(error) or "says" in str(error)
        return
    outcome = best(instance, Limits(time_limit_s=5.0), AUTO)
    if outcome.plan is None:
        return
    _runs_as_planned(instance, outcome, runtime)
    # With less memory than that takes, blocks are computed again, or states divided.
    most = max(one.memory_bytes for one in evaluate(instance, outcome.plan).stages)
    tight = with_memory(instance.cluster.servers, [most * data.draw(st.integers(40, 80)) // 100 or 1] * 4)
    limits = replace(instance.constraints, memory=True)
    instance = replace(instance, cluster=replace(instance.cluster, servers=tight), constraints=limits)
    outcome = best(instance, Limits(time_limit_s=2.0), AUTO)
    if outcome.plan is not None:
        _runs_as_planned(instance, outcome, runtime)


def _runs_as_planned(instance: Instance, outcome: Outcome, runtime: str) -> None:
    """Hold what is written of a plan for a program against the plan."""
    assert outcome.plan is not None
    found = exported_plan(instance, outcome.plan, runtime, SOURCE)
    assert found.otherwise == 0 and found.priced.objective == found.planned.objective == outcome.objective
    assert not found.priced.violations
    check(instance, outcome.plan, runtime, found)


SCENARIOS = sorted((ROOT / "scenarios").glob("*/*.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("path", [one for one in SCENARIOS if "sweep" not in one.name], ids=lambda one: one.stem)
def test_plans_of_shipped_scenarios_run_as_planned_or_are_refused(path: Path) -> None:
    """Two stages of copies on as many devices each: the first plan of the README, for Llama-7B."""
    instance = load_scenario(path).load()
    names = [layer.name for layer in instance.layers]
    half = names.index("layers.16.input_layernorm") if path.stem == "llama7b" else len(names) // 2
    width = next(one for one in (4, 1) if instance.training.micro_batch % one == 0 and instance.devices >= 2 * one)
    stages = [
        Stage(span, Group.on_line(instance, at * width, width), (0,) * len(span))
        for at, span in enumerate((Span(0, half), Span(half, len(names))))
    ]
    plan, taken = Plan(tuple(stages)), 0
    for target in TARGETS:
        try:
            found = exported_plan(instance, plan, target, SOURCE)
        except TargetError as error:
            assert re.search(r"stage \d|the plan is for|Megatron-LM takes one list|bytes", str(error))
        else:
            taken += 1
            assert found.priced.objective == found.planned.objective == evaluate(instance, plan).objective
    if path.stem == "llama7b":
        assert taken == 3 and evaluate(instance, plan).objective == 2_472_619_086
