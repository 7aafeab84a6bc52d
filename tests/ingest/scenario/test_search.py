"""What `search: standard` opens, and that a key which is written counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import networkx as nx
import pytest

from pipecut.formulation.problem.constraints import Constraints, Placement, Recompute, Sharded
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Axis, layer_graph
from pipecut.formulation.searched import not_searched
from pipecut.ingest.mistakes import ScenarioError
from pipecut.ingest.scenario.load import load_scenario
from tests.examples import chain, matrix

SCENARIO = """
name: searched
model: {{build: "ingest.models.vgg:vgg16"{more}}}
cluster: {{machines: {{dgx-h100: {servers}}}}}
training: {{global_batch: 64}}
{search}
constraints: {constraints}
"""


def asked(
    folder: Path, search: str = "", servers: int = 4, constraints: str = "{}", more: str = ""
) -> Constraints:
    path = folder / "scenario.yaml"
    text = SCENARIO.format(
        search=f"search: {search}" * bool(search), servers=servers, constraints=constraints, more=more
    )
    path.write_text(text, encoding="utf-8")
    return load_scenario(path).constraints


def test_it_opens_what_people_use(tmp_path: Path) -> None:
    found = asked(tmp_path)
    assert found.tensor_parallel_degrees == (1, 2, 4, 8)
    assert found.devices_per_stage == (1, 2, 4, 8, 16, 24, 32)
    assert found.sharded == tuple(Sharded) and found.recompute is Recompute.BLOCKS
    assert found.splits == (Axis.SEQUENCE, Axis.EXPERTS, Axis.VOCABULARY)


def test_a_scenario_that_says_nothing_searches_it(tmp_path: Path) -> None:
    assert asked(tmp_path) == asked(tmp_path, "standard") != asked(tmp_path, "paper")


def test_everything_opens_more_and_closes_no_order(tmp_path: Path) -> None:
    found, standard = asked(tmp_path, "everything"), asked(tmp_path, "standard")
    assert found.placement is Placement.FREE and {*found.splits} == {*standard.splits, Axis.CONTEXT}
    assert replace(found, placement=standard.placement, splits=standard.splits) == standard
    written = asked(tmp_path, "everything", constraints="{placement: line, splits: []}")
    assert (written.placement, written.splits) == (Placement.LINE, ())


def test_of_many_servers_a_stage_has_so_many_that_none_is_left_over(tmp_path: Path) -> None:
    assert asked(tmp_path, servers=20).devices_per_stage == (1, 2, 4, 8, 16, 32, 40, 80, 160)


def test_a_key_that_is_written_counts(tmp_path: Path) -> None:
    found = asked(tmp_path, constraints="{recompute: never, devices_per_stage: [8], splits: []}")
    assert (found.recompute, found.devices_per_stage, found.splits) == (Recompute.NEVER, (8,), ())
    assert found.sharded == tuple(Sharded)


def test_the_search_of_a_paper_opens_nothing(tmp_path: Path) -> None:
    assert asked(tmp_path, "paper") == Constraints(memory=True)


@pytest.mark.parametrize(
    ("program", "divided", "again"),
    [
        ("torchtitan", (Sharded.NONE, Sharded.GRADIENTS, Sharded.WEIGHTS), Recompute.BLOCKS),
        ("megatron", (Sharded.NONE, Sharded.OPTIMIZER), Recompute.BLOCKS),
        ("deepspeed", (Sharded.NONE, Sharded.OPTIMIZER), Recompute.ALLOWED),
    ],
)
def test_for_a_program_what_it_can_be_told_is_opened(
    tmp_path: Path, program: str, divided: tuple[Sharded, ...], again: Recompute
) -> None:
    found = asked(tmp_path, more=f", runtime: {program}")
    assert found.equal_stages and found.one_mode
    assert ({*found.sharded}, found.recompute) == ({*divided}, again)
    splits = program != "deepspeed"
    assert found.splits == (Axis.SEQUENCE,) * splits
    assert found.tensor_parallel_degrees == ((1, 2, 4, 8) if splits else (1,))
    paper = asked(tmp_path, "paper", more=f", runtime: {program}")
    assert paper == Constraints(memory=True, equal_stages=True, one_mode=True)


def test_another_word_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="'paper', 'standard' or 'everything'"):
        asked(tmp_path, "modern")


def test_replicas_have_parts_of_some_server_and_stages_parts_of_all(tmp_path: Path) -> None:
    found = opened(tmp_path, [3, 2])
    assert (found.tensor_parallel_degrees, found.devices_per_stage) == ((1, 2, 3), (1, 2, 3, 5))
    found = opened(tmp_path, [1])
    assert (found.tensor_parallel_degrees, found.devices_per_stage) == ((1,), (1,))
    assert found.sharded == (Sharded.NONE,)


GRAPH_SCENARIO = """
name: used
model: {{graph: g.json}}
cluster:
  devices: {{card: {{memory: {memory}, peak: 1 TFLOP/s}}}}
  servers: [{servers}]
  between_servers: {{bandwidth: 10 Gbit/s}}
training: {{global_batch: 64, micro_batches: 8{training}}}
{more}
"""


def opened(
    folder: Path,
    devices: Sequence[int] = (2, 2),
    memory: str = "500 kB",
    training: str = "",
    more: str = "",
    blocks: bool = True,
) -> Constraints:
    """Return what is open for four layers of ten kilobytes, in two blocks."""
    graph = chain([matrix(name, 10**6, 10_000) for name in "abcd"], [100, 100, 100])
    graph.graph["cuts"] = ("c",) if blocks else None
    return of_graph(folder, graph, devices, memory, training, more).constraints


def of_graph(
    folder: Path,
    graph: nx.DiGraph,
    devices: Sequence[int],
    memory: str = "500 kB",
    training: str = "",
    more: str = "",
) -> Instance:
    """Return the instance of a graph on servers of so many devices."""
    link = "link: {bandwidth: 100 Gbit/s}"
    servers = ", ".join(f"{{name: s{at}, device: card, devices: {n}, {link}}}" for at, n in enumerate(devices))
    text = GRAPH_SCENARIO.format(memory=memory, servers=servers, training=training, more=more)
    path = folder / "used.yaml"
    path.write_text(text, encoding="utf-8")
    return load_scenario(path).instance(graph)


BOTTLENECK = "objective: bottleneck"


@pytest.mark.parametrize(
    ("asked", "recompute"),
    [
        ({"memory": "1 GB"}, Recompute.NEVER),
        ({"more": "constraints: {memory: false}"}, Recompute.NEVER),
        ({"memory": "1 GB", "more": "objective: [step_time, memory]"}, Recompute.ALLOWED),
        ({}, Recompute.ALLOWED),
        ({"memory": "100 kB"}, Recompute.BLOCKS),
        ({"more": BOTTLENECK}, Recompute.BLOCKS),
        ({"more": BOTTLENECK, "blocks": False}, Recompute.ALLOWED),
        ({"more": f"{BOTTLENECK}\ncost: {{stage_time: overlap}}"}, Recompute.ALLOWED),
        ({"more": BOTTLENECK, "training": ", schedule: async_one_f_one_b"}, Recompute.ALLOWED),
        ({"memory": "100 kB", "training": ", schedule: [one_f_one_b, zero_bubble_h1]"}, Recompute.ALLOWED),
    ],
)
def test_what_is_computed_again_is_what_methods_know_and_memory_needs(
    tmp_path: Path, asked: dict[str, Any], recompute: Recompute
) -> None:
    assert opened(tmp_path, **asked).recompute is recompute


def test_nothing_is_opened_that_the_model_or_the_order_of_passes_has_no_use_for(tmp_path: Path) -> None:
    assert opened(tmp_path).splits == () and opened(tmp_path).sharded == tuple(Sharded)
    assert opened(tmp_path, training=", schedule: double_buffered").sharded == (Sharded.NONE,)
    assert opened(tmp_path, training=", chunks: 2").tensor_parallel_degrees == (1,)
    assert opened(tmp_path, training=", chunks: [1, 2]").tensor_parallel_degrees == (1, 2)


def test_of_large_models_all_grids_are_open_where_groups_hold_several_stages(tmp_path: Path) -> None:
    found = opened(tmp_path, [2] * 500, training=", chunks: 2")
    assert (found.tensor_parallel_degrees, found.recompute) == ((1, 2), Recompute.BLOCKS)
    in_a_v = opened(tmp_path, [2] * 500, training=", schedule: zero_bubble_v")
    assert (in_a_v.tensor_parallel_degrees, in_a_v.recompute) == ((1, 2), Recompute.ALLOWED)


def branched(cuts: Sequence[str] | None = ("b", "c", "d", "e")) -> nx.DiGraph:
    """Four layers one after the other, and one that the last of them reads, too."""
    layers = [matrix(name, 10**6, 10_000, made=100) for name in "abcde"]
    edges = [*zip("bcd", "cde", strict=True), ("a", "e")]
    return layer_graph("branched", layers, [(*pair, 100) for pair in edges], cuts=cuts)


@pytest.mark.parametrize(
    ("servers", "asked", "free"),
    [
        (2, {}, True),
        (500, {}, False),
        (500, {"cuts": None}, True),
        (500, {"more": BOTTLENECK}, True),
        (500, {"more": "search: paper"}, True),
    ],
)
def test_layers_run_in_any_order_where_all_are_searched(
    tmp_path: Path, servers: int, asked: dict[str, Any], free: bool
) -> None:
    graph = branched(asked["cuts"]) if "cuts" in asked else branched()
    found = of_graph(tmp_path, graph, [2] * servers, more=asked.get("more", ""))
    assert found.model.free_order is free and ("other orders" in not_searched(found)) is not free
    written = GRAPH_SCENARIO.replace("graph: g.json", "graph: g.json, order: any")
    with mock.patch(f"{__name__}.GRAPH_SCENARIO", written):
        assert of_graph(tmp_path, graph, [2] * servers, more=asked.get("more", "")).model.free_order


def test_blocks_that_read_from_far_are_not_computed_again_alone_where_times_are_executed(tmp_path: Path) -> None:
    """The reduction does not see plans in which they are; the programme over states does."""
    chained = chain([matrix(name, 10**6, 10_000) for name in "abcde"], [100] * 4)
    chained.graph["cuts"] = ("b", "c", "d", "e")
    for graph, recompute in ((chained, Recompute.BLOCKS), (branched(), Recompute.ALLOWED)):
        assert of_graph(tmp_path, graph, [2] * 500).constraints.recompute is recompute
        assert of_graph(tmp_path, graph, [2] * 500, more=BOTTLENECK).constraints.recompute is Recompute.BLOCKS


def test_a_key_that_is_written_stays_without_a_use(tmp_path: Path) -> None:
    written = "constraints: {recompute: blocks, sharded: [none, weights], splits: [vocabulary]}"
    found = opened(tmp_path, memory="1 GB", more=written)
    assert (found.recompute, found.sharded) == (Recompute.BLOCKS, (Sharded.NONE, Sharded.WEIGHTS))
    assert found.splits == (Axis.VOCABULARY,)
