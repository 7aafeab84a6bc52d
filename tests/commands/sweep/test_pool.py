from __future__ import annotations

import itertools
import threading
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipecut.commands.sweep.sweep import ResultsFile, bar_text, key_of
from pipecut.commands.sweep.work import DIED, WorkPool
from pipecut.commands.terminal.failures import InputError
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.scenario.load import load_scenario
from tests.commands.fakes import SCENARIO, write_scenario


class Fragile(Executor):
    """Does work a moment later; where some of it is deadly it breaks, with all that waits."""

    def __init__(self, deadly: set[str]) -> None:
        self.deadly, self.waiting, self.broken = deadly, dict[Future, Any](), False
        self.lock = threading.Lock()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()
        with self.lock:
            if self.broken:
                raise BrokenExecutor
            self.waiting[future] = fn, args
        threading.Timer(0.02, self.work, (future,)).start()
        return future

    def work(self, future: Future) -> None:
        with self.lock:
            fn, args = self.waiting.pop(future, (None, ()))
            if fn is None or not future.set_running_or_notify_cancel():
                return
            if args[0] not in self.deadly:
                future.set_result(fn(*args))
                return
            self.broken = True
            for one in self.waiting:
                if one.set_running_or_notify_cancel():
                    one.set_exception(BrokenExecutor())
            self.waiting.clear()
            future.set_exception(BrokenExecutor())


@pytest.mark.parametrize("deadly", [set(), {"c"}, {"a", "f"}])
def test_one_that_kills_its_process_is_told_and_the_others_are_not_lost(deadly: set[str]) -> None:
    done: list[str] = []
    made: list[Fragile] = []

    def work(name: Any) -> dict[str, Any]:
        done.append(name)
        return {"name": name, "reason": ""}

    def make() -> Executor:
        made.append(Fragile(deadly))
        return made[-1]

    names = ["a", "b", "c", "d", "e", "f"]
    pool = WorkPool(make, work, 3, lambda: False)
    told = list(pool.results((name, name) for name in names))  # type: ignore[misc]
    found = dict(told)
    assert sorted(name for name, _ in told) == names
    assert {name for name, one in found.items() if one["reason"] == DIED} == deadly
    assert sorted(done) == sorted(set(names) - deadly)
    assert len(made) == 1 + 2 * len(deadly) or (deadly and len(made) <= 1 + 2 * len(deadly))


class BreaksAtOnce(Executor):
    """Does work at once, and breaks as deadly work is given to it or with the next that is."""

    def __init__(self, deadly: set[str], late: bool) -> None:
        self.deadly, self.late, self.broken = deadly, late, False

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future:
        if self.broken:
            raise BrokenExecutor
        future: Future = Future()
        if args[0] in self.deadly:
            self.broken = True
            if not self.late:
                raise BrokenExecutor
            future.set_exception(BrokenExecutor())
        else:
            future.set_result(fn(*args))
        return future


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("deadly", [{"a"}, {"b"}, {"c", "d"}, set("abcdef")])
def test_an_executor_may_break_while_it_is_given_work(deadly: set[str], late: bool) -> None:
    done: list[str] = []

    def work(name: Any) -> dict[str, Any]:
        done.append(name)
        return {"name": name, "reason": ""}

    names = ["a", "b", "c", "d", "e", "f"]
    pool = WorkPool(lambda: BreaksAtOnce(deadly, late), work, 3, lambda: False)
    told = list(pool.results((name, name) for name in names))  # type: ignore[misc]
    assert sorted(name for name, _ in told) == names
    assert {name for name, one in told if one["reason"] == DIED} == deadly
    assert sorted(done) == sorted(set(names) - deadly)


def test_nothing_is_begun_once_somebody_asks_to_stop() -> None:
    pool = WorkPool(lambda: Fragile(set()), lambda _: {}, 3, lambda: True)
    assert list(pool.results(iter([]))) == []


def row(key: str, proof: str | None = "optimal", seconds: float = 1.0) -> dict[str, Any]:
    return {"key": key, "proof": proof, "search": {"time_limit_s": seconds}, "reason": ""}


def test_results_are_kept_and_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with ResultsFile(path) as file:
        for key in "abc":
            file.add(row(key))
    whole = path.read_bytes()
    for cut in range(1, len(whole) // 3):
        path.write_bytes(whole[:-cut])
        with ResultsFile(path) as file:
            assert list(file.known) == ["a", "b"]
            file.add(row("c"))
        assert path.read_bytes() == whole


def test_what_is_not_proved_is_known_for_a_search_like_it_only(tmp_path: Path) -> None:
    with ResultsFile(tmp_path / "results.jsonl") as file:
        file.add(row("a"))
        file.add(row("b", "feasible"))
        file.add(row("c", None))
        one, other = {"time_limit_s": 1.0}, {"time_limit_s": 2.0}
        settled = [bool(file.settled(key, search)) for key, search in itertools.product("abc", (one, other))]
        assert settled == [True, True, True, False, False, False]


def test_a_file_that_holds_something_else_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"key": "a", "proof": null, "search": {}}\nhello\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"results.jsonl:2: no result"):
        ResultsFile(path)
    assert path.read_text(encoding="utf-8").endswith("hello\n")


def test_two_sweeps_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with ResultsFile(path), pytest.raises(InputError, match="another sweep"):
        ResultsFile(path)
    ResultsFile(path).__exit__(None, None, None)


def instance_of(path: Path, *overrides: str) -> Instance:
    return load_scenario(path, overrides).load()


def test_a_key_is_of_the_content_and_not_of_the_name(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    key = key_of(instance_of(path))
    other = tmp_path / "other.yaml"
    other.write_text(SCENARIO.replace("name: tiny", "name: other"), encoding="utf-8")
    assert key_of(instance_of(other)) == key
    for override in (
        "training.global_batch=16",
        "training.micro_batches=2",
        "cluster.between_servers.bandwidth=20 Gbit/s",
        "cluster.devices.card.memory=2 GiB",
        "cluster.devices.card.price_per_hour=1.5",
        "cost.flops_per_mac=1",
        "objective=memory",
        "constraints.memory=false",
        "constraints.max_servers=1",
        "training.schedule=gpipe",
    ):
        assert key_of(instance_of(path, override)) != key, override
    assert key_of(instance_of(path, "solver.time_limit=3 s")) == key


def test_the_bar_says_how_long_the_rest_takes() -> None:
    assert bar_text("x", 0, 4, 0, 0.0).endswith("] 0 of 4")
    assert bar_text("x", 2, 4, 2, 600.0).endswith("[############------------] 2 of 4, about 10 min left")
    assert bar_text("x", 3, 4, 1, 5.0).endswith("about 5 s left")
    assert bar_text("x", 4, 4, 1, 5.0).endswith("[########################] 4 of 4")


def test_without_dask_a_scheduler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from pipecut.commands.sweep.work import scheduler

    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"needs dask.*pip install 'pipecut\[dask\]'"), scheduler("tcp://host:1"):
        pass


def test_a_scheduler_is_asked_through_its_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from concurrent.futures import ThreadPoolExecutor

    from pipecut.commands.sweep.work import scheduler

    said: list[Any] = []

    class Client:
        def __init__(self, address: str, *, timeout: int) -> None:
            said.append(address)

        def get_executor(self, *, pure: bool) -> Executor:
            said.append(pure)
            return ThreadPoolExecutor(1)

        def close(self) -> None:
            said.append("closed")

    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=Client))
    with scheduler("tcp://host:1") as (make, at_once):
        pool = WorkPool(make, lambda _: {"reason": ""}, at_once, lambda: False)
        found = dict(pool.results((str(at), None) for at in range(20)))  # type: ignore[misc]
    assert len(found) == 20 and said == ["tcp://host:1", False, "closed"]
