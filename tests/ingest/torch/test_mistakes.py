"""Mistakes that users make with their models: one sentence, what helps, and nothing of torch's own log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipecut.ingest.errors import ModelError, with_causes
from pipecut.ingest.torch.source import load_model_graph

ROOT = Path(__file__).resolve().parents[3]
MODELS = """
import torch
from torch import nn

class Taking(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 4)
    def forward(self, batch):
        return self.l(batch["x"])

class Moving(Taking):
    def forward(self, x):
        return self.l(x.to("cpu"))

class Result:
    pass

class Returning(Taking):
    def forward(self, x):
        return Result()

X = torch.zeros(2, 8)

def shape():
    return nn.Sequential(nn.Linear(8, 4), nn.Linear(5, 4)), (X,)
def item():
    return nn.Dropout(torch.linspace(0, 0.1, 4)[1].item()), (X,)
def cpu():
    return nn.Linear(8, 4).to("cpu"), (X,)
def cuda():
    raise AssertionError("Torch not compiled with CUDA enabled")
def numpy():
    return nn.Linear(int(torch.zeros(3).numpy()[0]), 4), (X,)
def dictionary():
    return Taking(), {"x": X}
def wrapped():
    return Taking(), ({"x": X},)
def several():
    return nn.Linear(8, 4), (X, X)
def moving():
    return Moving(), (X,)
def returning():
    return Returning(), (X,)
"""
META = "models are built on torch's meta device, where tensors have shapes and no values: "


def failure(folder: Path, spec: str) -> str:
    with pytest.raises(ModelError) as caught:
        load_model_graph(spec, folder, use_cache=False)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "mistaken.py").write_text(MODELS, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("shape", ["forward failed in 1 (Linear): ", "check that the model runs on the example inputs"]),
        ("item", ["mistaken.py:28)", META + "read no values"]),
        ("cpu", ["Cannot copy out of meta tensor", META + "read no values, move nothing"]),
        ("cuda", ["not compiled with CUDA", META + "create and leave all tensors there"]),
        ("numpy", [META + "read no values"]),
        ("dictionary", ["a dictionary that forward takes as a whole goes into a tuple: ({...},)"]),
        ("several", ["the example inputs are a tuple of forward's arguments"]),
        ("moving", ["mistaken.py:14)", "two devices", META + "create and leave"]),
        ("returning", ["let forward return tensors"]),
    ],
)
def test_a_mistake_gets_an_answer(models: Path, function: str, expected: list[str]) -> None:
    message = failure(models, f"mistaken:{function}")
    assert all(part in message for part in expected), message


def test_a_dictionary_in_a_tuple_is_one_argument(models: Path) -> None:
    assert list(load_model_graph("mistaken:wrapped", models, use_cache=False)) == ["l"]


@pytest.mark.slow
def test_nothing_of_torchs_log_is_shown(models: Path) -> None:
    code = "import pipecut.commands.entry, sys; sys.argv[0] = 'pipecut'; sys.exit(pipecut.commands.entry.main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "trace", "mistaken:shape", "--out", "x.json"],
        cwd=models,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(
    ("spec", "name"), [("mistaken.py:shape", "mistaken:shape"), ("nets/small.py:net", "nets.small:net")]
)
def test_a_file_for_a_module_is_corrected(models: Path, spec: str, name: str) -> None:
    assert failure(models, spec) == f"model {spec}: name the module, not its file: {name}"


def test_a_broken_import_inside_a_library_keeps_its_cause(tmp_path: Path) -> None:
    (tmp_path / "broken_library.py").write_text(
        "try:\n    import nonexistent_thing\nexcept ImportError:\n    raise ImportError('needs its extension')\n"
    )
    (tmp_path / "user.py").write_text("import broken_library\n")
    assert failure(tmp_path, "user:net") == (
        "model user:net: importing user failed: ImportError: needs its extension, because of ModuleNotFoundError: "
        f"No module named 'nonexistent_thing' (at {tmp_path / 'broken_library.py'}:4)"
    )


def test_a_cause_may_stand_in_the_second_line() -> None:
    error = RuntimeError("Failed to import x because of the following error:\n No module named 'y'\nmore")
    assert with_causes(error) == (
        "RuntimeError: Failed to import x because of the following error: No module named 'y'"
    )
