"""A schedule is one file and its name: one is added to a copy of the package, and planned with, priced and run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
NAMED = '    GPIPE = "gpipe", "GPipe"\n'
NAME = '    LAST_FIRST = "last_first", "GPipe from the last micro-batch"\n'
ORDER = '''"""F-then-B whose backward passes begin with the last micro-batch, as in Fig. 2c of GPipe."""

import numpy as np

from pipecut.formulation.schedules.table import Kind, PipelineSchedule, in_slots, one_rank_each, run


def last_first(stages: int, micro_batches: int) -> PipelineSchedule:
    every = np.arange(micro_batches)
    rows = [
        (run(Kind.FORWARD, stage, every, every), run(Kind.BACKWARD, stage, every, 2 * micro_batches - every))
        for stage in range(stages)
    ]
    return in_slots("last_first", rows, micro_batches=micro_batches, stage_ranks=one_rank_each(stages))
'''
TRAINING = ("training.global_batch=8", "training.micro_batches=4")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, whose room of the formulation is a copy with one schedule more."""
    folder = tmp_path_factory.mktemp("added")
    inside = folder / "pipecut"
    inside.mkdir()
    rooms = ("solvers", "ingest", "exchange", "report", "execution", "commands", "scenarios")
    for one in (*rooms, "face/__init__.py", "face/__main__.py"):
        (inside / Path(one).name).symlink_to(ROOT / one)
    shutil.copytree(ROOT / "formulation", inside / "formulation", ignore=shutil.ignore_patterns("__pycache__"))
    (inside / "formulation/schedules/last_first.py").write_text(ORDER)
    names = inside / "formulation/problem/training.py"
    assert NAMED in names.read_text()
    names.write_text(names.read_text().replace(NAMED, NAMED + NAME))
    return folder


def said(package: Path, command: str, *words: str, schedule: str, goal: str = "step_time") -> dict[str, Any]:
    """What a command of that package writes of the scenario ``line`` under a schedule."""
    settings = (f"training.schedule={schedule}", f"objective={goal}", *TRAINING)
    asked = [command, *words, "--json", *(word for one in settings for word in ("--set", one))]
    found = subprocess.run(
        [sys.executable, "-P", "-m", "pipecut", *asked],
        env=os.environ | {"PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("goal", ["step_time", "iteration_time"])
def test_it_is_planned_with_priced_and_run(package: Path, goal: str):
    """Equally long passes take as long from the last micro-batch as from the first, and as much is kept."""
    saved = str(package / f"{goal}.json")
    planned = said(package, "plan", "line", "--out", saved, schedule="last_first", goal=goal)
    assert planned["proof"] == "optimal"
    prices = [said(package, "evaluate", saved, "line", schedule=one, goal=goal) for one in ("last_first", "gpipe")]
    assert prices[0]["objective"] == prices[1]["objective"] == planned["objective"]
    kept = [[stage["memory_bytes"] for stage in one["stages"]] for one in prices]
    assert kept[0] == kept[1]
    assert prices[0]["optimum"]["objective"] == prices[1]["optimum"]["objective"]
    simulated = said(package, "simulate", "line", "--plan", saved, schedule="last_first", goal=goal)
    executed = said(package, "evaluate", saved, "line", schedule="last_first")["objective"]
    assert simulated["makespan_ns"] == executed
