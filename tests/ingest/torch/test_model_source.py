"""From ``module:function`` or a file to a layer graph, and what is said when that does not work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipecut.ingest.errors import ModelError
from pipecut.ingest.graphs.graph_file import write_graph
from pipecut.ingest.torch.source import load_model_graph

HEADER = "import torch\nfrom torch import nn\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPECUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def failure(project: Path, spec: str, source: str = "") -> str:
    (project / "net.py").write_text(HEADER + source)
    before = list(sys.path)
    with pytest.raises(ModelError) as caught:
        load_model_graph(spec, project)
    assert sys.path == before
    assert "net" not in sys.modules
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_function_under_the_meta_device(project: Path) -> None:
    (project / "net.py").write_text(
        HEADER + "def build():\n    net = nn.Linear(10**6, 10**6)\n    assert net.weight.is_meta\n"
        "    return net, (torch.empty(2, 10**6),)\n"
    )
    graph = load_model_graph("net:build", project)
    assert (graph.graph["name"], graph.nodes["linear"]["layer"].macs) == ("build", 10**12)


def test_packages_and_the_current_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = project / "nets"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "small.py").write_text(HEADER + "def build():\n    return nn.Linear(2, 3), [torch.empty(2, 2)]\n")
    monkeypatch.chdir(project)
    assert load_model_graph("nets.small:build").graph["name"] == "build"
    assert "nets.small" not in sys.modules


def test_inputs_by_keyword(project: Path) -> None:
    (project / "net.py").write_text(
        HEADER + "def build():\n    return nn.Linear(2, 3), {'input': torch.empty(2, 2)}\n"
    )
    assert len(load_model_graph("net:build", project)) == 1


def test_the_path_of_a_traced_graph(project: Path) -> None:
    (project / "net.py").write_text(HEADER + "def build():\n    return nn.Linear(2, 3), (torch.empty(2, 2),)\n")
    graph = load_model_graph("net:build", project)
    write_graph(graph, project / "net.json")
    again = load_model_graph("net.json", project)
    assert list(again.nodes(data=True)) == list(graph.nodes(data=True))
    assert load_model_graph(str(project / "net.json")).graph == graph.graph
    with pytest.raises(ModelError, match=r"none\.json: cannot be read"):
        load_model_graph("none.json", project)


@pytest.mark.parametrize(
    "spec", ["", "net", "net:", ":build", "net:build:more", "net.py:build()", "1net:build", "a b:c"]
)
def test_what_is_neither_a_function_nor_a_file(project: Path, spec: str) -> None:
    assert (
        failure(project, spec) == f"model {spec!r}: expected 'module:function' or the path of a .json or .pt2 file"
    )


def test_no_such_module(project: Path) -> None:
    message = failure(project, "none.such:build")
    assert message.startswith("model none.such:build: no module 'none.such' in ")
    assert str(project) in message


def test_a_module_of_the_same_name_that_is_loaded_already(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    monkeypatch.setitem(sys.modules, "net", json)
    (project / "net.py").write_text(HEADER + "def build():\n    return nn.Linear(2, 3), (torch.empty(2, 2),)\n")
    with pytest.raises(ModelError, match=r"another module 'net' is loaded already, from .*json"):
        load_model_graph("net:build", project)


def test_no_such_function(project: Path) -> None:
    message = failure(project, "net:build", "def other():\n    pass\n\n\ndef another():\n    pass\n")
    assert message == "model net:build: net has no function 'build'; it has another, other"


def test_not_a_function(project: Path) -> None:
    assert failure(project, "net:build", "build = 3\n") == "model net:build: build is a int, expected a function"


def test_a_module_that_cannot_be_imported(project: Path) -> None:
    message = failure(project, "net:build", "\nraise OSError('no disk')\n")
    assert message == f"model net:build: importing net failed: OSError: no disk (at {project / 'net.py'}:4)"
    assert "No module named 'flux_capacitor'" in failure(project, "net:build", "import flux_capacitor\n")
    assert f"{project / 'net.py'}:3" in failure(project, "net:build", "def build(:\n")
    assert "SystemExit" in failure(project, "net:build", "raise SystemExit(3)\n")


def test_a_function_that_raises(project: Path) -> None:
    message = failure(project, "net:build", "def build():\n    raise KeyError('layers\\nmore')\n")
    assert message == (
        f"model net:build: the function raised KeyError: 'layers\\nmore' (at {project / 'net.py'}:4)"
    )
    assert "missing 1 required positional argument" in failure(project, "net:build", "def build(x):\n    pass\n")


@pytest.mark.parametrize(
    ("result", "got"),
    [
        ("None", "NoneType"),
        ("nn.Linear(2, 2)", "Linear"),
        ("(torch.empty(2, 2), nn.Linear(2, 2))", "(Tensor, Linear)"),
        ("(nn.Linear(2, 2), torch.empty(2, 2))", "(Linear, Tensor)"),
        ("(nn.Linear(2, 2),)", "tuple"),
    ],
)
def test_a_function_that_returns_something_else(project: Path, result: str, got: str) -> None:
    message = failure(project, "net:build", f"def build():\n    return {result}\n")
    assert message == (
        f"model net:build: the function returned {got}, expected a torch.nn.Module "
        "and a tuple (or mapping) of example inputs"
    )


def test_a_model_that_cannot_be_traced(project: Path) -> None:
    source = (
        "class Net(nn.Module):\n    def forward(self, x):\n        return x if x.sum() > 0 else -x\n\n\n"
        "def build():\n    return Net(), (torch.empty(2, 2),)\n"
    )
    message = failure(project, "net:build", source)
    assert f"{project / 'net.py'}:5" in message
    assert "torch.where" in message


def test_without_torch(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    message = failure(project, "net:build", "def build():\n    pass\n")
    assert (
        message == "model net:build: tracing needs PyTorch, which is not installed; pip install 'pipecut[torch]'"
    )
