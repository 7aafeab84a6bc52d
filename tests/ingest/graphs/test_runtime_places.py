"""Where torchtitan and Megatron-LM can start a stage; and that whatever is planned so can be written for them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from exchange.exports import exported_plan
from formulation.problem.modes import Mode
from ingest.errors import ModelError
from ingest.graphs.graph_file import write_graph
from ingest.graphs.runtime_places import block_of, cut_for, is_numbered
from tests.command_line import Command
from tests.exchange.test_exports import NAMES, SOURCE, held, instance_of, layout, plan_of

SCENARIO = """
name: titan
model: {graph: net.json, runtime: torchtitan}
cluster:
  devices: {card: {memory: 1 GiB, peak: 1 TFLOP/s}}
  servers: [{name: one, count: 4, device: card, devices: 1}]
  between_servers: {bandwidth: 1 GB/s}
training: {global_batch: 8, micro_batches: 4}
objective: bottleneck
"""


@pytest.mark.parametrize(
    ("runtime", "starts"),
    [
        ("torchtitan", [*(f"blocks.{at}.norm" for at in range(5)), "norm", "head"]),
        ("megatron", [*(f"blocks.{at}.norm" for at in range(5)), "norm"]),
    ],
)
def test_stages_start_at_whole_blocks(runtime: str, starts: list[str]) -> None:
    assert list(cut_for(instance_of().layer_graph, runtime).graph["cuts"]) == starts


def test_a_model_that_megatron_does_not_run_is_refused() -> None:
    two = instance_of(("encoder.0.mlp", "decoder.0.mlp")).layer_graph
    with pytest.raises(ModelError, match="one list of equal blocks; the model's lists are: decoder, encoder"):
        cut_for(two, "megatron")
    between = instance_of(("blocks.0.mlp", "pool", "blocks.1.mlp")).layer_graph
    with pytest.raises(ModelError, match="nothing stands between two blocks, as pool does"):
        cut_for(between, "megatron")


@pytest.mark.parametrize("runtime", ["torchtitan", "megatron"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_what_is_planned_for_a_program_can_be_written_for_it(
    pipecut: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, stages: int
) -> None:
    monkeypatch.chdir(tmp_path)
    write_graph(instance_of(NAMES).layer_graph, Path("net.json"))
    Path("titan.yaml").write_text(SCENARIO, encoding="utf-8")
    options = ("--set", f"model.runtime={runtime}", "--set", f"constraints.stages.at_least={stages}")
    ran = pipecut("plan", "titan.yaml", *options, "--out", "plan.json", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["proof"] == "optimal" and "equal_stages" in ran.json["scope"]["demands"]
    text = pipecut("export", "plan.json", "titan.yaml", *options, "--to", runtime, "--json").json["text"]
    found = json.loads(text)["module_fqns_per_model_part"] if runtime == "torchtitan" else layout(text)
    assert len(found) >= stages


PARTS = st.lists(st.sampled_from(["norm", "mlp", "attention.out", "add"]), min_size=1, max_size=3, unique=True)


@st.composite
def block_names(draw: st.DrawFn) -> tuple[str, ...]:
    """Draw layers of a model with one list of blocks: modules and operations before it, and behind it."""
    before = draw(st.lists(st.sampled_from(["tokens", "positions", "add"]), max_size=3, unique=True))
    blocks = [f"blocks.{at}.{part}" for at in range(draw(st.integers(1, 5))) for part in draw(PARTS)]
    behind = draw(st.lists(st.sampled_from(["norm", "mul", "head", "loss"]), max_size=3, unique=True))
    return (*before, *blocks, *behind)


@example(names=("add", "tokens", "blocks.0.mlp"), runtime="torchtitan", data=None)
@example(names=("add", "blocks.0.mlp", "blocks.1.mlp"), runtime="megatron", data=None)
@given(names=block_names(), runtime=st.sampled_from(["torchtitan", "megatron"]), data=st.data())
def test_every_plan_in_its_places_can_be_written(
    names: tuple[str, ...], runtime: str, data: st.DataObject | None
) -> None:
    instance = instance_of(names)
    cuts = cut_for(instance.layer_graph, runtime).graph["cuts"]
    chosen, replicas, degree, again = list(cuts), 1, 1, False
    if data is not None:
        chosen = data.draw(st.lists(st.sampled_from(cuts), unique=True, max_size=7)) if cuts else []
        replicas, degree = data.draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]))
        again = data.draw(st.booleans())
    starts, mode = sorted(names.index(one) for one in chosen), Mode(replicas, recompute=again)
    plan = held(plan_of(0, *starts, devices=(replicas * degree,) * (len(starts) + 1), layers=len(names)), mode)
    text = exported_plan(instance, plan, runtime, SOURCE)
    if runtime == "torchtitan":
        lists = json.loads(text)["module_fqns_per_model_part"]
        assert [block_of(names[start]) for start in (0, *starts)][1:] == [one[0] for one in lists[1:]]
    else:
        assert [one.count("t") for one in layout(text)] == [
            len({block_of(one) for one in names[a:b] if is_numbered(one)})
            for a, b in itertools.pairwise((0, *starts, len(names)))
        ]


@pytest.mark.parametrize(
    ("key", "value"), [("recompute", "allowed"), ("recompute", "[blocks.*]"), ("optimizer_on_host", "allowed")]
)
def test_what_all_stages_must_do_alike_is_told(
    pipecut: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_graph(instance_of(NAMES).layer_graph, Path("net.json"))
    Path("titan.yaml").write_text(SCENARIO + f"constraints: {{{key}: {value}}}\n", encoding="utf-8")
    ran = pipecut("plan", "titan.yaml")
    assert ran.code == 2 and f"constraints.{key}: model.runtime" in ran.err


def test_what_contradicts_it_is_told(pipecut: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_graph(instance_of(NAMES).layer_graph, Path("net.json"))
    text = SCENARIO.replace("torchtitan}", "torchtitan, cuts: blocks, order: any}")
    Path("titan.yaml").write_text(text + "constraints: {sharded: [weights]}\n", encoding="utf-8")
    ran = pipecut("plan", "titan.yaml")
    assert ran.code == 2
    for key in ("model.cuts: model.runtime", "model.order: model.runtime", "constraints.sharded: model.runtime"):
        assert key in ran.err
