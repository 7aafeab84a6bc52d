from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipecut.commands.sweep import sweep
from tests.command_line import Command
from tests.commands.fakes import ROOT

SWEEP = """\
scenario: tiny.yaml
grid:
  training.global_batch: [8, 16]
  cluster.between_servers.bandwidth: [1 Gbit/s, 10 Gbit/s]
points:
  - {cluster.devices.card: {memory: 1 GiB, peak: 1 TFLOP/s, price_per_hour: 1}}
  - {cluster.devices.card: {memory: 1 GiB, peak: 2 TFLOP/s, price_per_hour: 2.5}}
"""


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Threads in place of processes; the number of plans that are made."""
    made = [0]

    @contextmanager
    def here(_: int | None) -> Iterator[Any]:
        yield (lambda: ThreadPoolExecutor(1)), 2

    solved = sweep.solved

    def counted(work: Any) -> dict[str, Any]:
        made[0] += 1
        return solved(work)

    monkeypatch.setattr(sweep, "processes", here)
    monkeypatch.setattr(sweep, "solved", counted)
    return made


def written(text: str = SWEEP) -> Path:
    path = Path("grid.sweep.yaml")
    path.write_text(text, encoding="utf-8")
    return path


def lines(path: str = "grid.sweep.results.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_every_point_has_the_plan_of_its_scenario(pipecut: Command, scenario: Path, threads: list[int]) -> None:
    ran = pipecut("sweep", written(), "--json", "--csv", "all.csv", "--svg", "front.svg")
    points = ran.json["points"]
    assert ran.code == 0 and len(points) == 8 == threads[0] == len({line["key"] for line in lines()})
    for point in points:
        settings = point["settings"]
        card = settings["cluster.devices.card"]
        words = [
            f"training.global_batch={settings['training.global_batch']}",
            f"cluster.between_servers.bandwidth={settings['cluster.between_servers.bandwidth']}",
            f"cluster.devices.card.peak={card['peak']}",
        ]
        found = pipecut("plan", scenario, "--json", *(word for one in words for word in ("--set", one))).json
        assert point["found"]["objective"] == found["objective"] and point["found"]["proof"] == "optimal"
        batch = settings["training.global_batch"]
        assert point["found"]["throughput"] == pytest.approx(batch * 1e9 / found["objective"])
        assert point["found"]["price_per_hour"] == 4 * card["price_per_hour"] * 10**6
    front = [point for point in points if point["on_front"]]
    for point in points:
        rank = (point["found"]["price_per_hour"], -point["found"]["throughput"])
        beaten = any(
            one["found"]["price_per_hour"] <= rank[0] and -one["found"]["throughput"] <= rank[1] for one in front
        )
        assert beaten
    with Path("all.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and rows[0]["price_per_hour"] == "4.0" and rows[0]["proof"] == "optimal"
    picture = Path("front.svg").read_text(encoding="utf-8")
    assert picture.count("<circle") == 8 and picture.count('class="on-front"') == len(front)


@pytest.mark.slow
def test_a_sweep_goes_on_where_it_was(pipecut: Command, scenario: Path, threads: list[int]) -> None:
    sweep = written()
    whole = pipecut("sweep", sweep, "--json").json["points"]
    kept = Path("grid.sweep.results.jsonl").read_bytes()
    for torn in (b"", b'{"key": "half'):
        Path("grid.sweep.results.jsonl").write_bytes(b"".join(kept.splitlines(keepends=True)[:5]) + torn)
        threads[0] = 0
        ran = pipecut("sweep", sweep, "--json")
        assert (
            threads[0] == 3 and (ran.json["kept"], ran.json["searched"]) == (5, 3) and "5 of 8 points" in ran.err
        )
        again = [point["found"] for point in ran.json["points"]]
        values = ("key", "objective", "throughput", "price_per_hour")
        assert [[one[key] for key in values] for one in again] == [
            [one["found"][key] for key in values] for one in whole
        ]
    ran = pipecut("sweep", sweep)
    assert "8 known before, 0 planned now" in ran.out and len(lines()) == 8


def test_two_points_of_one_content_are_planned_once(pipecut: Command, scenario: Path, threads: list[int]) -> None:
    text = "scenario: tiny.yaml\ngrid:\n  name: [one, two]\n  solver.time_limit: [9 s]\n"
    ran = pipecut("sweep", written(text), "--json")
    assert threads[0] == 1 and len(ran.json["points"]) == 2 and len(lines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grid: {training.global_batch: [8]}\n", ":1: scenario: missing"),
        ("scenario: tiny.yaml\n", ":1: nothing is varied"),
        ("scenario: none.yaml\ngrid: {training.global_batch: [8]}\n", ":1: scenario: there is no file"),
        ("scenario: tiny.yaml\ngrid:\n  training.global_batch: 8\n", ":3: "),
        ("scenario: tiny.yaml\ngrid:\n  training.global_batch: []\n", ":3: "),
        (
            "scenario: tiny.yaml\ngrid:\n  training.global_batch:\n    - 8\n    - many\n",
            ":5: training.global_batch",
        ),
        (
            "scenario: tiny.yaml\ngrid:\n  training.schedul: [8]\n",
            ":3: training.schedul: unknown key; did you mean",
        ),
        ("scenario: tiny.yaml\npoints:\n  - {training.global_batch: 8}\n  - {cluster..x: 8}\n", ":4: cluster..x"),
        ("scenario: tiny.yaml\ngrid: {training.micro_batches: [2, 3]}\n", ":2: training.micro_batches"),
        ("scenario: tiny.yaml\ngrd: {}\n", ":2: grd: unknown key; did you mean 'grid'?"),
        ("scenario: tiny.yaml\ngrid: {solver.name: [nobody]}\n", "solver.name=nobody: "),
    ],
)
def test_a_bad_sweep_file_is_refused_with_its_line(
    text: str, message: str, pipecut: Command, scenario: Path, threads: list[int]
) -> None:
    ran = pipecut("sweep", written(text))
    assert ran.code == 2 and message in ran.err and ran.err.startswith("grid.sweep.yaml"), ran.err
    assert threads[0] == 0 and not Path("grid.sweep.results.jsonl").exists()


def test_no_plan_and_no_proof_are_told_apart(pipecut: Command, scenario: Path, threads: list[int]) -> None:
    text = "scenario: tiny.yaml\ngrid:\n  solver.name: [picky, empty_handed, wrong_price]\n"
    text += "points: [{constraints.stages.at_least: 9}, {training.global_batch: 8}]\n"
    ran = pipecut("sweep", written(text))
    assert ran.code in (3, 4) and "failed" in ran.out


def children(process: int) -> list[int]:
    lists = Path(f"/proc/{process}/task").glob("*/children")
    found = [one for path in lists for one in path.read_text(encoding="utf-8").split()]
    return [int(one) for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


def begun(folder: Path) -> subprocess.Popen[str]:
    words = [
        sys.executable,
        "-c",
        "from pipecut.commands.entry import main; main()",
        "sweep",
        "grid.sweep.yaml",
        "--json",
    ]
    return subprocess.Popen(
        [*words, "--processes", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def until(true: Any) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def alive(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the children of a process are read from /proc")
def test_nothing_is_lost_or_done_twice_when_processes_are_killed(scenario: Path) -> None:
    """A worker is killed, then the whole sweep, then it goes on; no process of it outlives it."""
    batches = ", ".join(str(number) for number in range(1, 25))
    written(f"scenario: tiny.yaml\ngrid:\n  training.global_batch: [{batches}]\n")
    results = Path("grid.sweep.results.jsonl")
    first = begun(scenario.parent)
    until(lambda: results.exists() and results.read_bytes().count(b"\n") >= 2)
    os.kill(children(first.pid)[0], signal.SIGKILL)
    many = results.read_bytes().count(b"\n")
    until(lambda: results.read_bytes().count(b"\n") >= min(many + 4, 18))
    workers = children(first.pid)
    first.kill()
    first.communicate()
    until(lambda: not any(alive(one) for one in workers))
    assert all(line["proof"] == "optimal" for line in lines()[:-1])
    second = begun(scenario.parent)
    out, _ = second.communicate(timeout=120)
    assert second.returncode == 0 and json.loads(out)["kept"] >= 6
    keys = [line["key"] for line in lines()]
    assert len(keys) == len(set(keys)) == 24


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_planned(scenario: Path) -> None:
    batches = ", ".join(str(number) for number in range(1, 201))
    written(f"scenario: tiny.yaml\ngrid:\n  training.global_batch: [{batches}]\n")
    results = Path("grid.sweep.results.jsonl")
    process = begun(scenario.parent)
    until(lambda: results.exists() and results.read_bytes().count(b"\n") >= 3)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    found = json.loads(out)
    assert process.returncode != 130 and 3 <= found["searched"] < 200
    assert found["searched"] == len(lines())
