"""Plans run by processes over gloo; and processes that fail."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from pipecut.execution.errors import RunFailedError
from pipecut.execution.processes.local import in_processes
from tests.execution import processes
from tests.execution.cases import CASES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RUNNING = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")


def test_gradients_are_those_of_the_unsplit_model() -> None:
    heard: list[tuple[int, str]] = []
    found = in_processes(4, processes.cases, (), lambda process, told: heard.append((process, told)))
    assert sorted(heard) == sorted((process, name) for process in range(4) for name in CASES)
    assert all(error < 1e-12 for one in found for error in one.values()), found


def test_torchs_own_runtime_gives_the_same_gradients() -> None:
    found = in_processes(4, processes.by_torch)
    assert all(error < 1e-12 for one in found for error in one.values()), found


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", "process 1: ValueError: no more"),
        ("kill", "process 1: killed by SIGKILL"),
        ("exit", "process 1: ended with exit code 3 and without a word"),
    ],
)
def test_one_that_dies_ends_all_and_leaves_nothing(
    how: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: set[int] = set()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # others may run at the same time
    with pytest.raises(RunFailedError) as raised:
        in_processes(3, processes.one_dies, (how,), lambda _, told: alive.add(told))
    assert str(raised.value).partition(" (")[0] == reason
    assert how != "raise" or "processes.py:" in str(raised.value)  # the line that raised it
    assert len(alive) == 3 and not any(_runs(one) for one in alive)
    assert not list(tmp_path.glob("pipecut-run-*"))


def test_one_that_waits_in_vain_says_for_what() -> None:
    began = time.monotonic()
    with pytest.raises(
        RunFailedError, match=r"process 0: stage 0: gradient of micro-batch 2 from process 1: not come"
    ):
        in_processes(2, processes.one_is_late)
    assert time.monotonic() - began < 60  # each of them would sleep on


def test_a_hang_names_what_is_waited_for_and_who_stopped_where() -> None:
    began: list[float] = []
    with pytest.raises(RunFailedError) as raised:
        in_processes(3, processes.one_hangs, (), lambda _, told: began.append(time.monotonic()))
    assert len(began) == 1 and time.monotonic() - began[0] < 30  # it would sleep for ten minutes
    told = str(raised.value)
    assert "process 0: stage 0: gradient of micro-batch 2 from process 1: not come within 3 s" in told
    assert "process 1 was at: stage 1: backward pass of micro-batch 2" in told
    assert "process 2" in told


def test_without_its_starter_no_process_goes_on(tmp_path: Path) -> None:
    code = (
        "from tests.execution import processes; from pipecut.execution.processes.local import in_processes\n"
        "if __name__ == '__main__':\n"
        "    in_processes(3, processes.one_dies, ('never',), lambda _, told: print(told, flush=True))\n"
    )
    program = tmp_path / "starter.py"
    program.write_text(code, encoding="utf-8")
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    starter = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True, env=environment)
    alive: set[int] = set()
    while len(alive) < 3 and starter.stdout is not None:
        alive.add(int(starter.stdout.readline()))
    assert list(tmp_path.glob("pipecut-run-*"))
    starter.kill()
    starter.communicate()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (any(map(_runs, alive)) or list(tmp_path.glob("pipecut-run-*"))):
        time.sleep(0.1)
    assert not any(map(_runs, alive)) and list(tmp_path.glob("pipecut-run-*")) == []


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of docs/running.md and a plan of them."""
    folder = tmp_path_factory.mktemp("planned")
    for name, text in re.findall(r"```\w+ file=(\S+)\n(.+?)```", RUNNING, re.DOTALL):
        (folder / name).write_text(text, encoding="utf-8")
    plan = [sys.executable, "-m", "pipecut.commands.entry", "plan", "tiny.yaml", "--out", "plan.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(plan, cwd=folder, env=environment, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("kill", r"process 0: (stage 0: .* from process 1: lost|ended by torchrun)"),
        ("raise", r"process 1: ValueError: no more \(.*processes\.py:\d+\)"),
        ("torchrun", r"process \d: torchrun is gone, at: .+|process \d: .+: lost \("),
        ("interrupt", r"process \d: interrupted, at: .+|aborted"),
    ],
    ids=["kill", "raise", "torchrun", "interrupt"],
)
def test_under_torchrun_each_process_says_why_it_ends(how: str, reason: str, planned: Path) -> None:
    began = "step 2 of 1000000"
    start = _under_torchrun(planned, how)
    lines = []
    while not lines or began not in lines[-1]:
        lines.append("" if start.stdout is None else start.stdout.readline())
        assert lines[-1], "".join(lines)
    stopped = time.monotonic()
    if how == "torchrun":
        start.kill()
    if how == "interrupt":
        os.killpg(start.pid, signal.SIGINT)
    rest, _ = start.communicate(timeout=60)
    assert time.monotonic() - stopped < 30 and start.returncode != 0
    told = [line for line in rest.splitlines() if line.startswith("plan.json: process") or line == "aborted"]
    assert any(re.search(reason, line) for line in told), "".join(lines) + rest
    numbers = {line.split(":")[1] for line in told if line != "aborted"}
    silent = {"kill": 1}.get(how, 0)  # the one that is killed says nothing; torchrun does
    assert len(numbers) + told.count("aborted") >= 3 - silent, rest


def _under_torchrun(folder: Path, how: str) -> subprocess.Popen[str]:
    """Start a run of three processes by torchrun, in a session of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOW": how}
    run = "-m commands.entry run plan.json tiny.yaml --steps 1000000 --loss tests.execution.processes:ending"
    return subprocess.Popen(
        [sys.executable, *["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"], *run.split()],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=_interruptible,
    )


def _interruptible() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _runs(process: Any) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
