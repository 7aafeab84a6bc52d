"""Plans run by processes over gloo; and processes that fail."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from execution.errors import RunFailedError
from execution.running.local import in_processes
from tests.execution import processes
from tests.execution.cases import CASES

pytestmark = pytest.mark.slow


def test_gradients_are_those_of_the_unsplit_model() -> None:
    heard: list[tuple[int, str]] = []
    found = in_processes(4, processes.cases, (), lambda process, told: heard.append((process, told)))
    assert sorted(heard) == sorted((process, name) for process in range(4) for name in CASES)
    assert all(error < 1e-12 for one in found for error in one.values()), found


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", "process 1: ValueError: no more"),
        ("kill", "process 1: killed by SIGKILL"),
        ("exit", "process 1: ended with exit code 3 and without a word"),
    ],
)
def test_one_that_dies_ends_all_and_leaves_nothing(how: str, reason: str) -> None:
    alive: set[int] = set()
    before = set(Path(tempfile.gettempdir()).glob("pipecut-run-*"))
    with pytest.raises(RunFailedError) as raised:
        in_processes(3, processes.one_dies, (how,), lambda _, told: alive.add(told))
    assert str(raised.value) == reason
    assert len(alive) == 3 and not any(_runs(one) for one in alive)
    assert set(Path(tempfile.gettempdir()).glob("pipecut-run-*")) <= before


def test_one_that_waits_in_vain_says_for_what() -> None:
    began = time.monotonic()
    with pytest.raises(
        RunFailedError, match=r"process 0: stage 0: gradient of micro-batch 2 from process 1: not come"
    ):
        in_processes(2, processes.one_is_late)
    assert time.monotonic() - began < 60  # each of them would sleep on


def test_without_its_starter_no_process_goes_on(tmp_path: Path) -> None:
    code = (
        "from tests.execution import processes; from execution.running.local import in_processes\n"
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


def _runs(process: Any) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
