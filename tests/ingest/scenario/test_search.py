"""What `search: standard` opens, and that a key which is written counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipecut.formulation.problem.constraints import Constraints, Recompute, Sharded
from pipecut.formulation.problem.layers import Axis
from pipecut.ingest.mistakes import ScenarioError
from pipecut.ingest.scenario.load import load_scenario

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


def test_of_many_servers_a_stage_has_so_many_that_none_is_left_over(tmp_path: Path) -> None:
    assert asked(tmp_path, servers=20).devices_per_stage == (1, 2, 4, 8, 16, 32, 40, 80, 160)


def test_a_key_that_is_written_counts(tmp_path: Path) -> None:
    found = asked(tmp_path, constraints="{recompute: never, devices_per_stage: [8], splits: []}")
    assert (found.recompute, found.devices_per_stage, found.splits) == (Recompute.NEVER, (8,), ())
    assert found.sharded == tuple(Sharded)


def test_the_search_of_a_paper_opens_nothing(tmp_path: Path) -> None:
    assert asked(tmp_path, "paper") == Constraints(memory=True)


@pytest.mark.parametrize("program", ["torchtitan", "megatron", "deepspeed"])
def test_for_a_program_nothing_is_opened(tmp_path: Path, program: str) -> None:
    found = asked(tmp_path, more=f", runtime: {program}")
    assert found == Constraints(memory=True, equal_stages=True, equal_samples=True)


def test_another_word_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="'paper' or 'standard'"):
        asked(tmp_path, "modern")
