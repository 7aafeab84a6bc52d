"""docs/models.md: every example in it is run where its library is installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from pipecut.formulation.problem.layers import layers_of
from pipecut.ingest.graphs.cut_places import cut_at
from pipecut.ingest.torch.source import load_model_graph
from pipecut.ingest.torch.trace import trace

PAGE = (Path(__file__).resolve().parents[3] / "docs/models.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"<!-- needs: (\w+) -->\n```python\n(.*?)```", PAGE, re.S))


@pytest.mark.parametrize("library", [*EXAMPLES])
def test_an_example_of_the_page_runs(library: str, tmp_path: Path) -> None:
    try:
        __import__(library)
    except ImportError as error:
        pytest.skip(f"{library} cannot be imported here: {error}")
    names: dict[str, object] = {}
    exec(compile(EXAMPLES[library], f"docs/models.md, {library}", "exec"), names)  # noqa: S102
    if library == "torch":
        path = tmp_path / "model.pt2"
        names["save"](str(path))  # type: ignore[operator]
        assert [layer.operator for layer in layers_of(load_model_graph(str(path)))] == ["Linear", "ReLU", "Linear"]
        return
    (function,) = re.findall(r"^def (\w+)", EXAMPLES[library], re.M)
    with torch.device("meta"):
        module, inputs = names[function]()  # type: ignore[operator]
    graph = cut_at(trace(module, inputs, library), None)
    assert len(graph.graph["cuts"]) > 3, graph.graph["notes"]


def test_every_library_has_its_example() -> None:
    assert set(EXAMPLES) == {"transformers", "timm", "diffusers", "torch"}
