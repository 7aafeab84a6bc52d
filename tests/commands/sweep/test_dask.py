"""A sweep on a real scheduler of dask: two worker processes of this machine, one of which is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Command

distributed = pytest.importorskip("distributed", reason="dask is not installed: pip install 'pipecut[dask]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SWEEP = """\
scenario: tiny.yaml
grid:
  training.global_batch: [8, 16, 24, 32, 40, 48]
  cluster.between_servers.bandwidth: [1 Gbit/s, 2 Gbit/s, 5 Gbit/s, 10 Gbit/s, 20 Gbit/s, 40 Gbit/s]
"""


@pytest.fixture
def cluster() -> Iterator[Any]:
    made = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    with made:
        yield made


def kill_one(cluster: Any, results: Path, killed: list[int]) -> None:
    """Kill the process of a worker once some results are there."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if results.exists() and results.read_bytes().count(b"\n") >= 3:
            pid = next(iter(cluster.workers.values())).pid
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            return
        time.sleep(0.01)


def test_a_worker_of_dask_that_is_killed_loses_nothing_and_nothing_is_done_twice(
    pipecut: Command, scenario: Path, cluster: Any
) -> None:
    Path("grid.sweep.yaml").write_text(SWEEP, encoding="utf-8")
    results, killed = Path("grid.sweep.results.jsonl"), list[int]()
    killer = threading.Thread(target=kill_one, args=(cluster, results, killed))
    killer.start()
    ran = pipecut("sweep", "grid.sweep.yaml", "--scheduler", cluster.scheduler_address, "--json")
    killer.join()
    assert ran.code == 0 and len(killed) == 1, ran.err
    points = ran.json["points"]
    assert len(points) == 36 and all(point["found"]["proof"] == "optimal" for point in points)
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == len({row["key"] for row in rows}) == 36
    again = pipecut("sweep", "grid.sweep.yaml", "--scheduler", cluster.scheduler_address, "--json").json
    assert (again["kept"], again["searched"]) == (36, 0)
    here = pipecut("sweep", "grid.sweep.yaml", "--processes", "1", "--results", "here.jsonl", "--json").json
    values = [[point["found"]["objective"] for point in one["points"]] for one in (ran.json, here)]
    assert values[0] == values[1]


def test_no_scheduler_at_an_address_is_said(pipecut: Command, scenario: Path) -> None:
    Path("grid.sweep.yaml").write_text(SWEEP, encoding="utf-8")
    ran = pipecut("sweep", "grid.sweep.yaml", "--scheduler", "tcp://127.0.0.1:1")
    assert ran.code == 2 and "tcp://127.0.0.1:1" in ran.err
    assert not Path("grid.results.jsonl").exists() and not list(Path().glob("*.jsonl"))
