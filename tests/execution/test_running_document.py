"""docs/running.md: its files are written, its commands and its program are run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.command_line import Command

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "running.md").read_text(encoding="utf-8")


def test_the_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = re.findall(r"```python\n(.+?)```", TEXT, re.DOTALL)
    exec("\n".join(code), {})  # noqa: S102 (our own document)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[-1] == "True"


def written_and_commands() -> list[list[list[str]]]:
    """Write the document's files into this folder; return its commands, block by block."""
    for name, content in re.findall(r"```\w+ file=(\S+)\n(.+?)```", TEXT, re.DOTALL):
        Path(name).write_text(content, encoding="utf-8")
    blocks = re.findall(r"```console\n(.+?)```", TEXT, re.DOTALL)
    return [[shlex.split(line) for line in block.splitlines()] for block in blocks]


@pytest.mark.slow
def test_a_run_is_written_down_and_gone_on_with(
    pipecut: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (plan, *_), lines = written_and_commands()
    ran = [pipecut(*words[1:]) for words in (plan, *lines)]
    assert [one.code for one in ran] == [0, 0, 0], [one.err for one in ran]
    assert "step 4 of 4: " in ran[1].err and "step-00000004" in ran[1].err and "step 6 of 6: " in ran[2].err


@pytest.mark.slow
def test_the_commands_run(pipecut: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    lines, _ = written_and_commands()
    assert [words[:2] for words in lines] == [["pipecut", command] for command in ("plan", "validate", "run")]
    _, validated, ran = [pipecut(*words[1:]) for words in lines]
    assert validated.code == 0 and "the schedule is off by" in validated.out, validated.err
    assert validated.out.count("forward predicted") == 2 and validated.out.count("memory predicted") == 3
    assert ran.code == 0, ran.err
    assert "5 steps on 3 devices: loss" in ran.out and ran.err.count("predicted for the scenario's devices") == 5


@pytest.mark.slow
@pytest.mark.alone
def test_a_profile_of_processes_at_once_is_planned_with(
    pipecut: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    written_and_commands()
    few = ("--rounds", "4", "--most-spread", "0.9", "--quiet", "--json")
    measured = pipecut("profile", "tiny.yaml", "--out", "profile.json", "--at-once", "2", *few)
    assert measured.code == 0, measured.err
    assert (measured.json["at_once"], measured.json["threads"]) == (2, 1)
    assert json.loads(Path("profile.json").read_text(encoding="utf-8"))["at_once"] == 2
    planned = pipecut("plan", "tiny.yaml", "--set", "model.profile=profile.json", "--json")
    assert planned.code == 0 and planned.json["stages"], planned.err


@pytest.mark.slow
def test_the_training_program_runs(pipecut: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (plan, *_), _ = written_and_commands()
    assert pipecut(*plan[1:]).code == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "train.py"]
    done = subprocess.run(torchrun, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and len({line for line in done.stdout.splitlines() if "loss" in line}) == 5


@pytest.mark.slow
def test_a_trace_is_measured(pipecut: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (plan, *_), _ = written_and_commands()
    assert pipecut(*plan[1:]).code == 0
    ran = pipecut("run", "plan.json", "tiny.yaml", "--steps", "2", "--json", "--trace", "run.json", "--seed", "1")
    assert [one["step"] for one in ran.json["steps"]] == [1, 2] and ran.json["processes"] == 3
    events = json.loads(Path("run.json").read_text(encoding="utf-8"))["traceEvents"]
    names = [one["name"] for one in events if one["ph"] == "X"]
    assert len(names) == 3 * 2 * 4 and set(names) == {
        f"{s}{kind}{m}" for s in "01" for kind in "FB" for m in range(4)
    }
