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


@pytest.mark.slow
def test_the_commands_run(pipecut: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in re.findall(r"```\w+ file=(\S+)\n(.+?)```", TEXT, re.DOTALL):
        Path(name).write_text(content, encoding="utf-8")
    (commands,) = re.findall(r"```console\n(.+?)```", TEXT, re.DOTALL)
    lines = [shlex.split(line) for line in commands.splitlines()]
    assert [words[:2] for words in lines] == [["pipecut", command] for command in ("plan", "validate", "run")]
    *_, ran = [pipecut(*words[1:]) for words in lines]
    assert ran.code == 0, ran.err
    assert "5 steps on 3 devices: loss" in ran.out and ran.err.count("predicted for the scenario's devices") == 5
    same = pipecut("validate", "plan.json", "tiny.yaml", "--schedule", "zero_bubble_h1", "--json").json
    assert same["equal"] and same["gradients"] == 10
    assert {one["stage"] for one in same["stages"]} == {0, 1}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "train.py"]
    done = subprocess.run(torchrun, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and len({line for line in done.stdout.splitlines() if "loss" in line}) == 5
    ran = pipecut("run", "plan.json", "tiny.yaml", "--steps", "2", "--json", "--trace", "run.json", "--seed", "1")
    assert [one["step"] for one in ran.json["steps"]] == [1, 2] and ran.json["processes"] == 3
    events = json.loads(Path("run.json").read_text(encoding="utf-8"))["traceEvents"]
    names = [one["name"] for one in events if one["ph"] == "X"]
    assert len(names) == 3 * 2 * 4 and set(names) == {
        f"{s}{kind}{m}" for s in "01" for kind in "FB" for m in range(4)
    }
