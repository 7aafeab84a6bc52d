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
search: {search}
constraints: {constraints}
"""


def asked(
    folder: Path, search: str = "standard", servers: int = 4, constraints: str = "{}", more: str = ""
) -> Constraints:
    path = folder / "scenario.yaml"
    text = SCENARIO.format(search=search, servers=servers, constraints=constraints, more=more)
    path.write_text(text, encoding="utf-8")
    return load_scenario(path).constraints


def test_it_opens_what_people_use(tmp_path: Path) -> None:
    found = asked(tmp_path)
    assert found.tensor_parallel_degrees == (1, 2, 4, 8)
    assert found.devices_per_stage == (1, 2, 4, 8, 16, 24, 32)
    assert found.sharded == tuple(Sharded) and found.recompute is Recompute.BLOCKS
    assert found.splits == (Axis.SEQUENCE, Axis.EXPERTS, Axis.VOCABULARY)


def test_of_many_servers_a_stage_has_so_many_that_none_is_left_over(tmp_path: Path) -> None:
    assert asked(tmp_path, servers=20).devices_per_stage == (1, 2, 4, 8, 16, 32, 40, 80, 160)


def test_a_key_that_is_written_counts(tmp_path: Path) -> None:
    found = asked(tmp_path, constraints="{recompute: never, devices_per_stage: [8], splits: []}")
    assert (found.recompute, found.devices_per_stage, found.splits) == (Recompute.NEVER, (8,), ())
    assert found.sharded == tuple(Sharded)


def test_the_search_of_a_paper_opens_nothing(tmp_path: Path) -> None:
    found = asked(tmp_path, "paper")
    assert (found.splits, found.recompute, found.sharded) == ((), Recompute.NEVER, (Sharded.NONE,))


def test_for_a_program_splits_and_blocks_stay_as_they_are_written(tmp_path: Path) -> None:
    found = asked(tmp_path, more=", runtime: torchtitan")
    assert (found.splits, found.recompute) == ((), Recompute.NEVER) and found.sharded == tuple(Sharded)


def test_another_word_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="'paper' or 'standard'"):
        asked(tmp_path, "modern")
