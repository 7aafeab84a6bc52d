"""Files of ``torch.export.save``: read to the same layers as the module itself, with nothing in them executed."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipecut.formulation.problem.layers import layers_of
from pipecut.ingest.errors import ModelError
from pipecut.ingest.torch import exported_file as archive
from pipecut.ingest.torch.exported_file import EVALUATION, Strided, viewable
from pipecut.ingest.torch.source import load_model_graph
from pipecut.ingest.torch.trace import trace
from tests.ingest.torch.tiny_models import Calls, attend, linear8

ROOT = Path(__file__).resolve().parents[3]


def in_place(m: Calls, x: torch.Tensor) -> torch.Tensor:
    y = functional.relu_(m.norm(m.conv(x)))
    with torch.no_grad():
        gate = y.mean((2, 3), keepdim=True).sigmoid()
    one, two = (y * gate).chunk(2, 1)
    return torch.cat([two, one], 1).flatten(1).contiguous()


def masked(m: Calls, x: torch.Tensor) -> torch.Tensor:
    y = m.drop(m.one(x)).transpose(1, 2)
    return m.two(y.reshape(y.shape[0], -1)).masked_fill(torch.ones(4, dtype=torch.bool), 0.0).max(1)[0]


def tied(m: Calls, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(torch.tanh(m.embed(x)), m.embed.weight)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "attention": (lambda: Calls(attend, q=linear8(), k=linear8(), v=linear8(), o=linear8()), (2, 6, 8)),
    "in place": (lambda: Calls(in_place, conv=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(4)), (2, 3, 8, 8)),
    "masked": (lambda: Calls(masked, one=linear8(), drop=nn.Dropout(0.1), two=nn.Linear(48, 4)), (2, 6, 8)),
    "tied": (lambda: Calls(tied, embed=linear8()), (2, 8)),
    "no dropout": (lambda: Calls(masked, one=linear8(), drop=nn.Dropout(0.0), two=nn.Linear(48, 4)), (2, 6, 8)),
    "blocks": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), (2, 6, 8)),
}


def saved(folder: Path, name: str, *, training: bool = True, **options: Any) -> Path:
    build, shape = CASES[name]
    with torch.device("meta"):
        module, inputs = build().train(training), (torch.empty(shape),)
        program = torch.export.export(module, inputs, strict=False, **options)
    path = folder / "model.pt2"
    torch.export.save(program, path)
    return path


def content(graph: Any) -> tuple[Any, ...]:
    named = {key: value for key, value in graph.graph.items() if key != "name"}
    return named, list(layers_of(graph)), sorted(graph.edges(data="bytes"))


@pytest.mark.parametrize("name", CASES)
def test_a_file_has_the_layers_of_its_module(tmp_path: Path, name: str) -> None:
    build, shape = CASES[name]
    with torch.device("meta"):
        expected = trace(build(), (torch.empty(shape),), name)
    assert content(load_model_graph(str(saved(tmp_path, name)))) == content(expected)


def test_a_batch_that_may_vary_counts_as_in_the_example(tmp_path: Path) -> None:
    batch = {0: torch.export.Dim("batch", min=2, max=64)}
    fixed = load_model_graph(str(saved(tmp_path, "attention")))
    free = load_model_graph(str(saved(tmp_path, "attention", dynamic_shapes=({0: batch[0]},) and ((batch,),))))
    assert [layer.macs for layer in layers_of(free)] == [layer.macs for layer in layers_of(fixed)]


def test_weights_of_one_name_are_tied_and_of_two_names_too(tmp_path: Path) -> None:
    module = Calls(lambda m, x: m.b(m.a(x)), a=nn.Linear(4, 4, bias=False), b=nn.Linear(4, 4, bias=False))
    module.b.weight = module.a.weight
    path = tmp_path / "tied.pt2"
    torch.export.save(torch.export.export(module.train(), (torch.ones(2, 4),), strict=False), path)
    graph = load_model_graph(str(path))
    assert [layer.parameter_bytes for layer in layers_of(graph)] == [64, 0]
    assert graph.graph["ties"] == ((("a", "b"), 64, 64),)


def test_a_model_exported_for_evaluation_says_so(tmp_path: Path) -> None:
    assert load_model_graph(str(saved(tmp_path, "masked", training=False))).graph["notes"] == (EVALUATION,)
    assert "notes" not in load_model_graph(str(saved(tmp_path, "masked"))).graph


def test_nothing_is_executed_and_torch_is_not_needed(tmp_path: Path) -> None:
    path = saved(tmp_path, "attention")
    trap = tmp_path / "sprung"

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (trap,)

    hostile = tmp_path / "hostile.pt2"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(hostile, "w") as new:
        for entry in old.infolist():
            pickled = entry.filename.endswith(".pt")
            new.writestr(entry.filename, pickle.dumps(Trap()) if pickled else old.read(entry))
    code = (
        "import sys; from pipecut.ingest.torch.source import load_model_graph; "
        "print(len(load_model_graph(sys.argv[1])), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, hostile], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "7 False\n" and not trap.exists()


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """Change the JSON of an archive and return what is said about it."""
    other = path.with_name("changed.pt2")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for entry in old.infolist():
            raw = old.read(entry)
            if entry.filename.endswith("models/model.json"):
                document = json.loads(raw)
                change(document)
                raw = json.dumps(document).encode()
            new.writestr(entry.filename, raw)
    with pytest.raises(ModelError) as caught:
        load_model_graph(str(other))
    return str(caught.value)


def test_other_versions_and_layouts_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, "tied")
    message = changed(path, lambda d: d.update(schema_version={"major": 9, "minor": 1}, torch_version="3.0"))
    assert "the schema of the exported model is version 9.1 (torch 3.0), this pipecut reads 8;" in message
    assert "version unknown" in changed(path, lambda d: d.pop("schema_version"))
    assert "not laid out as an exported model: KeyError" in changed(path, lambda d: d.pop("graph_module"))
    graph: Callable[[dict[str, Any]], Any] = lambda d: d["graph_module"]["graph"]  # noqa: E731
    assert "not laid out" in changed(path, lambda d: graph(d)["nodes"][0]["inputs"][0].update(arg={}))
    assert "not laid out" in changed(path, lambda d: graph(d).update(nodes=7))


def test_what_is_no_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(raw: bytes) -> str:
        path = tmp_path / "bad.pt2"
        path.write_bytes(raw)
        with pytest.raises(ModelError) as caught:
            load_model_graph(str(path))
        return str(caught.value)

    assert "no exported model can be read: BadZipFile" in refusal(b"no zip")
    empty = io.BytesIO()
    with zipfile.ZipFile(empty, "w") as new:
        new.writestr("other.txt", "x")
    assert "holds no models/model.json" in refusal(empty.getvalue())
    with zipfile.ZipFile(empty, "a") as new:
        new.writestr("m/models/model.json", '{"a": 1, "a": 2}')
    assert "appears twice" in refusal(empty.getvalue())
    monkeypatch.setattr(archive, "LARGEST_DOCUMENT", 10)
    assert "models/model.json has 16 bytes, expected at most 10" in refusal(empty.getvalue())
    with pytest.raises(ModelError, match="FileNotFoundError"):
        load_model_graph("none.pt2", tmp_path)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (0, 2, 1)])
@pytest.mark.parametrize("shape", [(24,), (2, 12), (6, 4), (2, 3, 2, 2), (1, 24), (4, 6)])
def test_reshapes_share_memory_where_torch_says_so(order: tuple[int, ...], shape: tuple[int, ...]) -> None:
    tensor = torch.empty(2, 3, 4).permute(order)
    layout = Strided(7, tuple(tensor.shape), tensor.stride())
    shared = tensor.reshape(shape).untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    assert viewable(layout, shape) is shared and layout.contiguous is tensor.is_contiguous()
