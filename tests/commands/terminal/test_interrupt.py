"""Ctrl-C and progress, with real signals and a real terminal, in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import pipecut
from pipecut.commands.parts.answered import checked_in_time
from pipecut.commands.terminal.interrupt import ECHO_S, run_stoppable
from pipecut.commands.terminal.progress import progress_text
from pipecut.formulation.limits import NEVER
from pipecut.formulation.outcome import Limits, Progress
from pipecut.solvers import catalogue
from pipecut.solvers.choices.standing import LEFT
from pipecut.solvers.choices.trainings import Decision
from pipecut.solvers.crosscheck import LATE, STOPPED
from tests.commands.fakes import GRACE, ROOT, SEARCHING, entries, some_plan

posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals and terminals")
PATIENCE_S = 120


@contextlib.contextmanager
def started(
    *arguments: str | Path, stderr: int = subprocess.PIPE, grace_s: float = 0.5
) -> Iterator[subprocess.Popen[bytes]]:
    """Start pipecut with the fakes, which may take so long to stop before they are left."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.commands.fakes", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", GRACE: str(grace_s)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """Read until ``wanted`` has come."""
    seen, deadline = b"", time.monotonic() + PATIENCE_S
    while wanted not in seen:
        ready, _, _ = select.select([descriptor], [], [], max(0, deadline - time.monotonic()))
        part = os.read(descriptor, 4096) if ready else b""
        assert part, f"{wanted!r} did not come: {seen!r}"
        seen += part
    return seen


def stderr_of(process: subprocess.Popen[bytes]) -> int:
    assert process.stderr is not None
    return process.stderr.fileno()


@posix
def test_the_first_interrupt_shows_the_best_plan(scenario: Path) -> None:
    with started("plan", scenario, "--solver", "slow", "--json", "--out", "plan.json") as process:
        read_until(stderr_of(process), SEARCHING.encode())
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    found = json.loads(out)
    assert found["proof"] == "feasible" and found["bound"] == 1 and 0.9 < found["gap"] < 1
    stopping, written = err.splitlines()
    assert stopping == b"stopping with the best plan so far (Ctrl-C again to abort)"
    assert written.endswith(b"plan.json: the plan, for pipecut evaluate and simulate --plan")
    assert json.loads(Path("plan.json").read_text(encoding="utf-8"))["objective"] == found["objective"]


@posix
@pytest.mark.parametrize(("later_s", "aborts"), [(0.002, False), (2 * ECHO_S, True)])
def test_a_signal_that_comes_twice_at_once_is_one_interrupt(later_s: float, aborts: bool) -> None:
    """As ``timeout -s INT`` sends it, to the process and to its group."""
    stop = threading.Event()

    def interrupting() -> int:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(later_s)
        return 5

    with pytest.raises(KeyboardInterrupt) if aborts else contextlib.nullcontext():
        assert run_stoppable(interrupting, stop) == 5
    assert stop.is_set()


@pytest.mark.slow
@posix
def test_the_second_interrupt_aborts_at_once(scenario: Path) -> None:
    words = ("plan", scenario, "--solver", "stuck", "--json", "--out", "plan.json")
    with started(*words, grace_s=60) as process:
        read_until(stderr_of(process), SEARCHING.encode())
        process.send_signal(signal.SIGINT)
        read_until(stderr_of(process), b"again to abort)\n")
        time.sleep(ECHO_S)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - began < 5
    error = {"code": 130, "kind": "aborted", "messages": [{"message": "aborted"}]}
    assert (process.returncode, json.loads(out), err) == (130, {"error": error}, b"aborted\n")
    assert not Path("plan.json").exists()


@pytest.mark.slow
@posix
@pytest.mark.parametrize("solver", ["stuck", "spinning", "buried"])
def test_one_interrupt_is_enough_whatever_the_search_does(scenario: Path, solver: str) -> None:
    with started("plan", scenario, "--solver", solver, "--json") as process:
        read_until(stderr_of(process), SEARCHING.encode())
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    found = json.loads(out)
    assert found["proof"] == "feasible" and found["stages"] and found["bound"] == 612_000
    assert LEFT in found["notes"]


@pytest.mark.slow
@pytest.mark.clock
@pytest.mark.parametrize("solver", ["stuck", "spinning", "buried"])
def test_the_limit_ends_a_search_whatever_it_does(scenario: Path, solver: str) -> None:
    with started("plan", scenario, "--solver", solver, "--time-limit", "4 s", "--out", "plan.json") as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3 and b"not proved: a better plan may exist" in out
    assert b"s the model took" in out and b"plan.json: the plan" in err


@pytest.mark.slow
def test_in_python_too(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "SOLVERS", entries())
    problem = pipecut.load(scenario)
    found = pipecut.plan(problem, solver="spinning", limits=pipecut.Limits(time_limit_s=0.2))
    assert found.proof is pipecut.Proof.FEASIBLE and LEFT in found.notes
    rows = pipecut.compare(problem, ["buried"], limits=pipecut.Limits(time_limit_s=0.2)).rows
    # What one solver has told is all that stands in its row.
    assert [row.outcome and row.outcome.plan for row in rows] == [some_plan(problem, "buried").plan]


def test_a_search_that_was_left_ends_once_it_is_back_in_python() -> None:
    ended = threading.Event()

    def work() -> None:
        try:
            while True:
                pass
        finally:
            ended.set()

    assert run_stoppable(work, threading.Event(), deadline=NEVER.within(0), instead=lambda: None) is None
    assert ended.wait(PATIENCE_S)


@pytest.mark.slow
def test_what_ends_a_check_leaves_the_proof(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, and the end of its time, whatever it does: what was said until then stands."""

    def checks(self: Decision, limits: Limits) -> Iterator[str]:
        yield "a second method agrees"
        while True:
            pass

    monkeypatch.setattr(Decision, "checks", checks)
    problem = pipecut.load(scenario)
    found = Decision(problem, some_plan(problem, "anybody"))
    stopped, late = threading.Event(), threading.Event()
    stopped.set()
    for stop, limits, why in ((stopped, Limits(), STOPPED), (late, Limits(time_limit_s=0.1), LATE)):
        outcome = checked_in_time(found, limits, stop)
        assert outcome.plan == found.outcome.plan
        assert outcome.checks[-1] == f"not cross-checked: {why}" and len(outcome.checks) <= 2


@pytest.mark.slow
@posix
def test_an_interrupted_comparison_shows_what_it_has(scenario: Path) -> None:
    with started("compare", scenario, "--solvers", "line_dp,slow,one_stage", "--json") as process:
        read_until(stderr_of(process), SEARCHING.encode())
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    proofs = [(row["solver"], row["proof"], row["reason"]) for row in json.loads(out)["solvers"]]
    assert proofs == [
        ("line_dp", "optimal", ""),
        ("slow", "feasible", ""),
        ("one_stage", None, "not run: stopped"),
    ]


@pytest.mark.slow
@posix
def test_a_terminal_shows_a_live_line_and_stdout_stays_pure(scenario: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    with started("plan", scenario, "--solver", "slow", "--json", stderr=theirs) as process:
        read_until(ours, b"best 1.024 ms, bound 612.0 us, gap 40.2 %")
        process.send_signal(signal.SIGINT)
        read_until(ours, b"stopping (Ctrl-C again to abort)")
        out, _ = process.communicate(timeout=PATIENCE_S)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 3 and json.loads(out)["proof"] == "feasible"


@posix
@pytest.mark.slow
def test_cp_sat_itself_can_be_stopped() -> None:
    """It sits in C++, and would catch Ctrl-C for itself if it were not told to leave it."""
    import pty

    pytest.importorskip("torch")
    hard = ROOT / "scenarios" / "hetpipe" / "resnet152.yaml"
    ours, theirs = pty.openpty()
    with started("plan", hard, "--solver", "cpsat", "--json", stderr=theirs) as process:
        read_until(ours, b"best ")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 3 and json.loads(out)["proof"] == "feasible"


@pytest.mark.slow
@posix
def test_quiet_shows_no_line_on_a_terminal_either(scenario: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    with started("plan", scenario, "--quiet", stderr=theirs) as process:
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and not select.select([ours], [], [], 0)[0]
    os.close(ours)
    os.close(theirs)


def test_results_and_errors_come_back_from_the_thread() -> None:
    assert run_stoppable(lambda: 5, threading.Event()) == 5
    with pytest.raises(TimeoutError, match="mine"):
        run_stoppable(lambda: (_ for _ in ()).throw(TimeoutError("mine")), threading.Event())


def test_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    run_stoppable(lambda: None, threading.Event())
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_no_signal_is_touched() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(run_stoppable(lambda: 7, threading.Event())))
    thread.start()
    thread.join()
    assert found == [7]


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (None, "x: 4 s"),
        (Progress(None, 900), "x: bound 900 ns, 4 s"),
        (Progress(2_000_000, None), "x: best 2.000 ms, 4 s"),
        (Progress(2_000_000, 1_990_000), "x: best 2.000 ms, bound 1.990 ms, gap 0.50 %, 4 s"),
    ],
)
def test_the_text_of_the_line(progress: Progress | None, text: str) -> None:
    assert progress_text("x", progress, 4.2) == text
