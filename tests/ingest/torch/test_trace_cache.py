"""The cache of traces: what it spares, what it notices, and that it never gets in the way."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import networkx as nx
import pytest

from pipecut.formulation.problem.layers import layers_of
from pipecut.ingest.torch import cache as trace_cache
from pipecut.ingest.torch.source import load_model_graph

ROOT = Path(__file__).parents[3]
MODEL = """
import pathlib
import torch
from torch import nn
from sizes import WIDTH

def build():
    with open(pathlib.Path(__file__).parent / "calls", "a") as calls:
        calls.write("x")
    return nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU()), (torch.empty(2, 4),)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model that is spread over two files and counts its calls, and an empty cache."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "net.py").write_text(MODEL)
    (folder / "sizes.py").write_text("WIDTH = 3\n")
    monkeypatch.setenv("PIPECUT_CACHE", str(tmp_path / "cache"))
    # What other tests wrote and loaded is newer than this process, so nothing would be stored beside it.
    for name, path in list(trace_cache.user_modules()):
        if path.is_relative_to(tmp_path.parent):
            monkeypatch.delitem(sys.modules, name)
    return folder


def load(project: Path, use_cache: bool = True) -> nx.DiGraph:
    return load_model_graph("net:build", project, use_cache)


def calls(project: Path) -> int:
    path = project / "calls"
    return len(path.read_text()) if path.exists() else 0


def width(graph: nx.DiGraph) -> int:
    return layers_of(graph)[0].output_bytes // 4


def entries(project: Path) -> list[Path]:
    return list((project.parent / "cache").rglob("*.json"))


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)
    # Bytecode is matched by size and time in seconds: step the clock so that Python, too, sees the change.
    later = time.time() + 5
    os.utime(path, (later, later))


def same(one: nx.DiGraph, other: nx.DiGraph) -> bool:
    def content(graph: nx.DiGraph) -> list[object]:
        ends = [(name, list(graph.predecessors(name)), list(graph.successors(name))) for name in graph]
        return [graph.graph, list(graph.nodes(data=True)), list(graph.edges(data=True)), ends]

    return content(one) == content(other)


def test_the_second_load_does_not_run_the_model(project: Path) -> None:
    first = load(project)
    second = load(project)
    assert calls(project) == 1
    assert same(first, second)
    assert len(entries(project)) == 1


def test_without_the_cache_the_model_runs_every_time(project: Path) -> None:
    load(project)
    load(project, use_cache=False)
    assert calls(project) == 2


@pytest.mark.slow
def test_a_second_process_imports_neither_torch_nor_the_model(project: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom pipecut.ingest.torch.source import load_model_graph\n"
        "start = time.perf_counter()\n"
        f"graph = load_model_graph('net:build', Path({str(project)!r}))\n"
        "seconds = time.perf_counter() - start\n"
        "print(len(graph), 'torch' in sys.modules, 'net' in sys.modules, 'sizes' in sys.modules, seconds)\n"
    )

    def run() -> list[str]:
        command = [sys.executable, "-c", program]
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()

    assert run()[:4] == ["2", "True", "False", "False"]
    assert run()[:4] == ["2", "False", "False", "False"]
    assert calls(project) == 1


def test_importing_the_readers_imports_no_torch() -> None:
    program = "import sys, ingest.torch.source, ingest.torch.cache; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("file", ["net.py", "sizes.py"])
def test_a_changed_source_file_is_noticed_in_the_same_process(project: Path, file: str) -> None:
    assert width(load(project)) == 3
    if file == "sizes.py":
        rewrite(project / "sizes.py", "WIDTH = 7\n")
    else:
        rewrite(project / "net.py", MODEL.replace("nn.Linear(4, WIDTH)", "nn.Linear(4, 7)"))
    assert width(load(project)) == 7
    assert width(load(project)) == 7
    assert calls(project) == 2


def test_a_vanished_source_file_is_noticed(project: Path) -> None:
    load(project)
    (project / "sizes.py").unlink()
    rewrite(project / "net.py", MODEL.replace("from sizes import WIDTH", "WIDTH = 5"))
    assert width(load(project)) == 5


def test_models_of_the_same_name_do_not_mix(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "net.py").write_text(MODEL)
    (other / "sizes.py").write_text("WIDTH = 9\n")
    assert [width(load(folder)) for folder in (project, other, project, other)] == [3, 9, 3, 9]
    assert (calls(project), calls(other)) == (1, 1)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\xff not json"),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text("{}"),
        lambda path: path.write_text(path.read_text()[:-40]),
        lambda path: path.write_text(path.read_text().replace('"macs": 12', '"macs": -12')),
        lambda path: path.write_text(
            path.read_text().replace('"sources": {', '"sources": {"/no/such/file.py": "0", ')
        ),
        lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | {"made_from": []})),
        lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 99})),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_a_spoilt_entry_is_traced_again(project: Path, spoil: Callable[[Path], object]) -> None:
    first = load(project)
    (entry,) = entries(project)
    spoil(entry)
    assert same(load(project), first)
    assert calls(project) == 2


def numbers(value: object, where: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the way to every number of a document."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(inner, (*where, key))
    elif isinstance(value, int):
        yield where


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.slow
def test_an_entry_with_any_other_number_is_traced_again(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = load(project)
    (entry,) = entries(project)
    text = entry.read_text()
    found = list(numbers(json.loads(text)))
    kinds = {next(step for step in reversed(where) if isinstance(step, str)) for where in found}
    assert {
        "version",
        "element_bytes",
        "macs",
        "parameter_bytes",
        "stash_bytes",
        "bytes",
        "allowed_forms",
    } <= kinds
    for at, where in enumerate(found):
        document = json.loads(text)
        inner = document
        for step in where[:-1]:
            inner = inner[step]
        inner[where[-1]] += 1
        entry.write_text(json.dumps(document))
        caplog.clear()
        assert same(load(project), first) and calls(project) == at + 2, where
        assert warnings(caplog) == [f"{entry}: this trace of net:build is damaged, so the model is traced again"]


def test_an_entry_of_a_version_without_a_checksum_is_replaced_in_silence(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(project)
    (entry,) = entries(project)
    document = json.loads(entry.read_text()) | {"version": 1}
    del document["sha256"]
    entry.write_text(json.dumps(document))
    load(project)
    load(project)
    assert calls(project) == 2 and not warnings(caplog)


def test_an_entry_laid_out_anew_is_still_whole(project: Path) -> None:
    load(project)
    (entry,) = entries(project)
    entry.write_text(json.dumps(json.loads(entry.read_text()), indent=3))
    load(project)
    assert calls(project) == 1


@pytest.mark.parametrize("version", ["torch", "pipecut"])
def test_another_version_is_noticed(project: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    load(project)
    now = trace_cache._versions()
    monkeypatch.setattr(trace_cache, "_versions", lambda: now | {version: "another"})
    load(project)
    load(project)
    assert calls(project) == 2


def test_another_tracer_is_noticed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(project)
    monkeypatch.setattr(trace_cache, "_own_digest", lambda: "another")
    load(project)
    assert calls(project) == 2


def test_another_installed_package_is_noticed(project: Path) -> None:
    packages = project.parent / "site-packages"
    packages.mkdir()
    (packages / "zoo_of_models.py").write_text("WIDTH = 3\n")
    rewrite(
        project / "sizes.py", f"import sys\nsys.path.append({str(packages)!r})\nfrom zoo_of_models import WIDTH\n"
    )
    try:
        assert width(load(project)) == 3
        sys.modules.pop("zoo_of_models")
        rewrite(packages / "zoo_of_models.py", "WIDTH = 11\n")
        assert width(load(project)) == 11
    finally:
        sys.path.remove(str(packages))
        sys.modules.pop("zoo_of_models", None)


@pytest.mark.parametrize("where", ["file", "file/below", "\0"])
def test_a_cache_that_cannot_be_written_is_no_error(
    project: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (project.parent / "file").write_text("in the way")
    if where == "\0":
        monkeypatch.setattr(trace_cache, "cache_folder", lambda: Path("\0"))
    else:
        monkeypatch.setenv("PIPECUT_CACHE", str(project.parent / where))
    assert width(load(project)) == 3
    assert width(load(project)) == 3
    assert calls(project) == 2


def test_a_module_that_was_loaded_before_it_changed_is_not_stored(project: Path) -> None:
    sys.path.insert(0, str(project))
    try:
        import sizes  # pyright: ignore[reportMissingImports]

        rewrite(project / "sizes.py", "WIDTH = 7\n")
        assert width(load(project)) == sizes.WIDTH == 3
        assert entries(project) == []
    finally:
        sys.path.remove(str(project))
        sys.modules.pop("sizes", None)
    assert width(load(project)) == 7
