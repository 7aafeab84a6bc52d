"""Where torchtitan and Megatron-LM can start a stage; and that whatever is planned so can be written for them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipecut.formulation.problem.modes import Mode
from pipecut.ingest.errors import ModelError
from pipecut.ingest.graphs.cut_places import cut_for
from pipecut.ingest.graphs.graph_file import write_graph
from tests.command_line import Command
from tests.exchange.test_exports import NAMES, SOURCE, exported_plan, held, instance_of, layout, plan_of

SCENARIO = """
name: titan
model: {graph: net.json, runtime: torchtitan}
cluster:
  devices: {card: {memory: 1 GiB, peak: 1 TFLOP/s}}
  servers: [{name: one, count: 4, device: card, devices: 1}]
  between_servers: {bandwidth: 1 GB/s}
training: {global_batch: 8, micro_batches: 4}
objective: bottleneck
search: paper
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


@pytest.mark.parametrize("runtime", ["torchtitan", "deepspeed"])
def test_operations_outside_modules_are_refused(runtime: str) -> None:
    for name, what in (("add", "an operation"), ("norm:1", "a second call of norm")):
        loose = instance_of(("tokens", "norm", name, *NAMES[2:12])).layer_graph
        with pytest.raises(ModelError, match=rf"{name} is {what} outside all modules.*export --to script cut"):
            cut_for(loose, runtime)
    inside = instance_of(("tokens", "blocks.0.add", "blocks.0.norm:1", "blocks.1.mlp")).layer_graph
    assert cut_for(inside, runtime).graph["cuts"] == ("blocks.0.add", "blocks.1.mlp")


@pytest.mark.parametrize("runtime", ["torchtitan", "megatron", "deepspeed"])
def test_cuts_that_two_tensors_cross_are_closed(runtime: str) -> None:
    """A skip from the first block to the third: blocks 1 and 2 start where it crosses; a note says so."""
    names = tuple(f"blocks.{at}.mlp" for at in range(5))
    skipping = instance_of(names).layer_graph
    skipping.add_edge("blocks.0.mlp", "blocks.3.mlp", bytes=4)
    found = cut_for(skipping, runtime).graph
    assert found["cuts"] == ("blocks.1.mlp", "blocks.4.mlp")
    (note,) = found["notes"]
    assert "2 of 4 places" in note and "blocks.1.mlp (for blocks.2.mlp), blocks.0.mlp (for blocks.3.mlp)" in note
    skipping.add_edge("blocks.0.mlp", "blocks.2.mlp", bytes=4)
    skipping.add_edge("blocks.0.mlp", "blocks.4.mlp", bytes=4)
    assert cut_for(skipping, runtime).graph["cuts"] == ("blocks.1.mlp",)
    skipping.remove_edge("blocks.0.mlp", "blocks.1.mlp")
    with pytest.raises(
        ModelError, match=r"can cut this model nowhere: .*blocks.1.mlp, behind the cut .* reads inputs"
    ):
        cut_for(skipping, runtime)


@pytest.mark.parametrize(("runtime", "open_"), [("torchtitan", 0), ("deepspeed", 0), ("megatron", 3)])
def test_weights_that_both_ends_share(runtime: str, open_: int) -> None:
    """Megatron-LM has the embedding in the first stage and in the last; others have no weights twice."""
    tied = instance_of(("embed", "blocks.0.mlp", "blocks.1.mlp", "head")).layer_graph
    tied.graph["ties"] = ((("embed", "head"), 4, 4),)
    if open_:
        assert len(cut_for(tied, runtime).graph["cuts"]) == open_
        tied.graph["ties"] = ((("blocks.0.mlp", "blocks.1.mlp"), 4, 4),)
        assert cut_for(tied, runtime).graph["cuts"] == ("blocks.0.mlp", "head")
    else:
        with pytest.raises(ModelError, match=r"head shares weights with embed across the cut before blocks.0.mlp"):
            cut_for(tied, runtime)


@pytest.mark.few(1)
@pytest.mark.parametrize("runtime", ["torchtitan", "megatron", "deepspeed"])
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
    exported = pipecut("export", "plan.json", "titan.yaml", *options, "--to", runtime, "--json").json
    assert exported["objective"] == exported["runs"] == ran.json["objective"]
    assert exported["divided_otherwise"] == 0 and "as planned" in exported["notes"][0]
    assert len(ran.json["stages"]) >= stages
    if runtime == "megatron":
        assert len(layout(exported["text"])) == len(ran.json["stages"])


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
    if runtime == "torchtitan" and "add" in names:
        with pytest.raises(ModelError, match="is an operation outside all modules"):
            cut_for(instance.layer_graph, runtime)
        return
    cuts = cut_for(instance.layer_graph, runtime).graph["cuts"]
    chosen, replicas, degree, again = list(cuts), 1, 1, False
    if data is not None:
        chosen = data.draw(st.lists(st.sampled_from(cuts), unique=True, max_size=7)) if cuts else []
        replicas, degree = data.draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]))
        again = data.draw(st.booleans())
    width = replicas * degree
    starts = sorted(names.index(one) for one in chosen)[: 8 // width - 1]
    plan = plan_of(0, *starts, devices=(width,) * (len(starts) + 1), layers=len(names))
    plan = held(plan, Mode(replicas, recompute=again))
    text = exported_plan(instance, plan, runtime, SOURCE)
    if runtime == "torchtitan" and starts:
        lists = json.loads(text)["parallelism"]["module_fqns_per_model_part"]
        assert [_block(names[start]) for start in starts] == [one[0] for one in lists[1:]]
    elif runtime == "megatron":
        assert [one.count("t") for one in layout(text)] == [
            len({_block(one) for one in names[a:b] if one.startswith("blocks")})
            for a, b in itertools.pairwise((0, *starts, len(names)))
        ]


def _block(name: str) -> str:
    return ".".join(name.split(".")[:2])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("recompute", "allowed"),
        ("recompute", "always"),
        ("recompute", "[blocks.*]"),
        ("optimizer_on_host", "allowed"),
    ],
)
def test_what_all_stages_must_do_alike_is_told(
    pipecut: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_graph(instance_of(NAMES).layer_graph, Path("net.json"))
    Path("titan.yaml").write_text(SCENARIO + f"constraints: {{{key}: {value}}}\n", encoding="utf-8")
    ran = pipecut("plan", "titan.yaml")
    assert ran.code == 2 and f"constraints.{key}: model.runtime" in ran.err


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("training.schedule=gpipe", "the plan is for gpipe, and Megatron-LM runs 1F1B: plan with"),
        (
            "training.bytes_per_element=1",
            "take 1/1/1 bytes, and what is written for Megatron-LM says 4/4/4, 2/4/2",
        ),
        ("cost.sharing=proportional", "Megatron-LM gives all devices equal shares"),
    ],
)
def test_what_a_program_does_not_run_is_told_before_a_search(
    pipecut: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_graph(instance_of(NAMES).layer_graph, Path("net.json"))
    Path("titan.yaml").write_text(SCENARIO.replace("torchtitan", "megatron"), encoding="utf-8")
    ran = pipecut("plan", "titan.yaml", "--set", setting)
    assert ran.code == 2 and "model.runtime: " in ran.err and words in ran.err


def test_what_contradicts_it_is_told(pipecut: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_graph(instance_of(NAMES).layer_graph, Path("net.json"))
    text = SCENARIO.replace("torchtitan}", "torchtitan, cuts: blocks, order: any}")
    Path("titan.yaml").write_text(text + "constraints: {sharded: [optimizer]}\n", encoding="utf-8")
    ran = pipecut("plan", "titan.yaml")
    assert ran.code == 2
    for key in ("model.cuts: model.runtime", "model.order: model.runtime", "constraints.sharded: model.runtime"):
        assert key in ran.err
