"""A model that is followed and the same model exported come to the same graph, and following leaves no trace."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.utils import _python_dispatch

from pipecut.ingest.errors import ModelError
from pipecut.ingest.graphs.graph_file import graph_document
from pipecut.ingest.torch import record as recording
from pipecut.ingest.torch.follow import NotFollowedError, follow
from pipecut.ingest.torch.record import Followed, canonical_names
from pipecut.ingest.torch.source import load_model_graph
from pipecut.ingest.torch.trace import trace
from tests.ingest.torch.asking_model import asking
from tests.ingest.torch.fooling_models import EXPORTED, FOLLOWED, Builder, Made
from tests.ingest.torch.zoo_models import ZOO

DEVICES = ("meta", "cpu")
WRONG = "the other way of reading was taken"


def built(build: Callable[[], Made], device: str) -> Made:
    torch.manual_seed(0)
    with torch.device(device):
        return build()


def refused(*_: object, **__: object) -> Any:
    pytest.fail(WRONG)


def outcome(made: Made, *, follow: bool) -> object:
    """Return all that a graph says, or the message of a refusal."""
    try:
        graph = trace(*made, "model", follow=follow)
    except ModelError as error:
        return str(error)
    return said(graph)


def said(graph: nx.DiGraph) -> object:
    edges = sorted((source, target, str(sorted(data.items()))) for source, target, data in graph.edges(data=True))
    return list(graph.nodes(data="layer")), edges, dict(graph.graph), graph_document(graph)


def exported(build: Callable[[], Made], device: str) -> object:
    """Return what an export comes to; a follower that is asked fails the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "following", refused)
        return outcome(built(build, device), follow=False)


def followed(build: Callable[[], Made], device: str) -> object:
    """Return what the follower comes to; an export fails the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Followed, "of", refused)
        return outcome(built(build, device), follow=True)


def following(made: Made) -> None:
    module, inputs = made
    follow(module, inputs, canonical_names(module))


@pytest.mark.few(20)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FOLLOWED)
def test_models_made_to_fool_it_are_followed_to_the_graph_of_their_export(name: str, device: str) -> None:
    assert followed(FOLLOWED[name], device) == exported(FOLLOWED[name], device)


@pytest.mark.few(8)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", EXPORTED)
def test_what_cannot_be_followed_is_exported_with_the_same_graph_or_message(name: str, device: str) -> None:
    with pytest.raises(NotFollowedError):
        following(built(EXPORTED[name], device))
    assert outcome(built(EXPORTED[name], device), follow=True) == exported(EXPORTED[name], device)


def test_code_that_asks_for_fake_tensors_is_given_them() -> None:
    """On the CPU they are there; on the meta device the file that asks is named."""
    with pytest.raises(NotFollowedError, match=r"asking_model\.py names fake tensors"):
        following(built(asking, "meta"))
    assert followed(asking, "cpu") == exported(asking, "cpu")


def state(module: nn.Module) -> list[object]:
    """Return all that the modules of a model hold, containers by what is in them, tensors with their values."""
    return [(name, held(vars(part))) for name, part in module.named_modules(remove_duplicate=False)]


def held(value: object) -> object:
    if isinstance(value, torch.Tensor) and not isinstance(value, UninitializedParameter):
        kind = (value.shape, value.stride(), value.requires_grad, value.is_leaf, sorted(vars(value)))
        return id(value), kind, None if value.is_meta else value.detach().numpy().tobytes()
    if isinstance(value, dict):
        return id(value), [(key, held(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple, set)):
        return id(value), [held(one) for one in value]
    return id(value)


@pytest.mark.few(20)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [*FOLLOWED, *EXPORTED])
def test_a_module_is_left_as_it_was(name: str, device: str) -> None:
    module, inputs = built((FOLLOWED | EXPORTED)[name], device)
    before, call = state(module), nn.Module.__call__
    try:
        follow(module, inputs, canonical_names(module))
    except NotFollowedError:
        assert name in EXPORTED
    assert state(module) == before
    assert nn.Module.__call__ is call and gc.isenabled() and not torch.compiler.is_compiling()
    assert torch._ops._len_torch_dispatch_stack_pre_dispatch() == 0
    assert _python_dispatch._get_current_dispatch_mode() is None
    assert torch.ones(2).add(1).sum().item() == 4  # nothing looks on any more


@pytest.mark.parametrize("build", [FOLLOWED["buffers written"], FOLLOWED["weight written in forward"]])
def test_the_second_look_is_the_first(build: Builder) -> None:
    module, inputs = built(build, "cpu")
    first = said(trace(module, inputs, "model"))
    assert said(trace(module, inputs, "model")) == first


def test_gradients_that_are_off_around_a_trace_leave_it_to_the_export() -> None:
    build = FOLLOWED["module called twice"]
    with torch.no_grad():
        with pytest.raises(NotFollowedError, match="switched off"):
            following(built(build, "meta"))
        assert outcome(built(build, "meta"), follow=True) == exported(build, "meta")


@pytest.mark.parametrize("device", DEVICES)
def test_lines_of_operators_without_a_formula_are_those_of_the_export(device: str) -> None:
    build = FOLLOWED["operators without a formula"]
    graph = trace(*built(build, device), "model")
    assert len(graph.graph["unpriced"]) == 2
    assert all(f"{Path(__file__).parent / 'fooling_models.py'}:" in each for each in graph.graph["unpriced"])


def of_the_zoo(name: str) -> Builder:
    library = pytest.importorskip("transformers", reason="needs transformers: pip install 'pipecut[hf]'")
    kind, configuration, content, shapes = ZOO[name]

    def build() -> Made:
        config = getattr(library, configuration)(**content)
        whole = {key: torch.zeros(shape, dtype=torch.long) for key, shape in shapes.items() if key.endswith("ids")}
        inputs: Any = {key: torch.zeros(shape) for key, shape in shapes.items()} | whole
        return getattr(library, kind)(config), inputs

    return build


@pytest.mark.parametrize("name", ZOO)
def test_families_of_transformers_are_followed_to_the_graph_of_their_export(name: str) -> None:
    build = of_the_zoo(name)
    assert followed(build, "meta") == exported(build, "meta")


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_families_of_transformers_with_weights_are_followed_too(name: str) -> None:
    build = of_the_zoo(name)
    assert followed(build, "cpu") == exported(build, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["70B", "405B", "DeepSeek-V3"])
def test_large_models_are_followed_to_the_graph_of_their_export(name: str) -> None:
    library = pytest.importorskip("transformers", reason="needs transformers: pip install 'pipecut[hf]'")
    content = importlib.import_module("benchmarks.size.reading").CONFIGURATIONS[name]
    config = library.AutoConfig.for_model(**content)

    def build() -> Made:
        inputs: Any = {"input_ids": torch.zeros((2, 512), dtype=torch.long)}
        return getattr(library, content["architectures"][0])(config), inputs

    assert followed(build, "meta") == exported(build, "meta")


def test_garbage_is_left_while_a_model_is_read_and_looked_for_again_afterwards(
    tmp_path: Path,
) -> None:
    text = "import gc\nfrom torch import nn\nimport torch\ncollecting = gc.isenabled()\n\n\ndef {}:\n    {}\n"
    good = "build()", "return nn.Linear(8, 8 + collecting), (torch.zeros(2, 8),)"
    (tmp_path / "reading_good.py").write_text(text.format(*good), encoding="utf-8")
    (tmp_path / "reading_bad.py").write_text(text.format("build()", "raise KeyError"), encoding="utf-8")
    graph = load_model_graph("reading_good:build", tmp_path, use_cache=False)
    (layer,) = graph.nodes
    assert graph.nodes[layer]["layer"].output_bytes == 4 * 8 and gc.isenabled()
    with pytest.raises(ModelError):
        load_model_graph("reading_bad:build", tmp_path, use_cache=False)
    assert gc.isenabled()
