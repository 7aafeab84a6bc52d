"""Operators beyond the plain ones: without a formula, of a user's own, recurrent, of experts, and losses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch import nn
from torch.nn import functional

from pipecut.formulation.problem.layers import Layer, Split
from pipecut.ingest.errors import ModelError, told_of_unpriced
from pipecut.ingest.graphs.graph_file import graph_document, graph_from_document
from pipecut.ingest.operators.columns import element_wise
from pipecut.ingest.operators.costs import OPERATORS, Operator
from pipecut.ingest.operators.stash import nothing
from pipecut.ingest.torch.trace import trace
from tests.ingest.torch.tiny_models import Calls, by_name, linear8, only, traced


@pytest.fixture(autouse=True)
def library() -> Iterator[None]:
    with torch.library._scoped_library("pipecut_test", "FRAGMENT") as found:
        for name in ("spread", "gather_up"):
            found.define(f"{name}(Tensor x) -> Tensor")
            found.impl(name, lambda x: torch.empty_like(x), "Meta")
        yield


def block() -> nn.Module:
    return Calls(
        lambda m, x: torch.ops.pipecut_test.gather_up(torch.ops.pipecut_test.spread(m.fc(x))), fc=linear8()
    )


def unknown(operators: Any = None) -> nx.DiGraph:
    with torch.device("meta"):
        module = Calls(lambda m, x: m.two(m.one(x)), one=block(), two=block())
        return trace(module, (torch.empty(2, 8),), "model", operators)


def test_what_has_no_formula_counts_as_its_bytes_and_all_of_it_is_told_at_once() -> None:
    graph = unknown()
    layer = by_name(graph)["one.spread"]
    assert (layer.split, layer.allowed_forms) == (Split.JOIN, (0,))
    assert (layer.input_bytes, layer.output_bytes, layer.macs) == (32, 32, 0)
    assert layer.stash_bytes == 32 + 32, "its operand and its result"
    (note,) = told_of_unpriced(graph).graph["notes"]
    here = re.escape(str(Path(__file__).parents[1] / "torch" / "tiny_models.py"))
    place = rf"in one\.{{}} \({here}:\d+\)"
    spread, gather = place.format("spread"), place.format("gather_up")
    words = "2 operators without a formula counted as the bytes that they read and write"
    assert re.fullmatch(f"{words}: pipecut_test::spread {spread}, pipecut_test::gather_up {gather}", note), note
    with pytest.raises(ModelError, match="2 operators without a formula: pipecut_test::spread in one"):
        told_of_unpriced(graph, strict=True)


def test_the_list_survives_a_file() -> None:
    graph = unknown()
    again = graph_from_document(graph_document(graph), "file")
    assert again.graph["unpriced"] == graph.graph["unpriced"]
    assert told_of_unpriced(again).graph["notes"] == told_of_unpriced(graph).graph["notes"]


def test_a_user_says_what_counts_the_same_or_gives_rules() -> None:
    both = dict.fromkeys(("pipecut_test::spread", "pipecut_test::gather_up"), "relu")
    graph = unknown(both)
    assert "unpriced" not in graph.graph and told_of_unpriced(graph, strict=True) is graph
    layer = by_name(graph)["one.fc"]
    assert layer.split is Split.MATRIX and layer.stash_bytes == 32, "element by element behind a product"
    rules = Operator(nothing, element_wise, lambda operation: 5 * operation.output.elements)
    counted = by_name(unknown(both | {"pipecut_test::spread": rules}))["one.spread"]
    assert (counted.macs, counted.stash_bytes) == (5 * 8, 32)
    with pytest.raises(
        ValueError, match=r"model\.operators\.x: no operator 'gelo' is known; did you mean 'gelu'?"
    ):
        unknown({"x": "gelo"})


def test_recurrent_layers_multiply_their_matrices_at_every_position() -> None:
    def run(m: Calls, x: torch.Tensor) -> torch.Tensor:
        return m.lstm(x)[0]

    layer = only(traced(run, (2, 5, 16), lstm=lambda: nn.LSTM(16, 32, 2, batch_first=True)))
    assert layer.macs == 5 * (4 * 32 * (16 + 32) + 4 * 32 * (32 + 32))
    assert layer.parameter_bytes == 4 * (4 * 32 * (16 + 32) + 4 * 32 * (32 + 32) + 2 * 2 * 4 * 32)
    assert layer.stash_bytes == 4 * 5 * (16 + 32 + 2 * 6 * 32), "input, output, four gates and two states a layer"
    assert (layer.split, layer.allowed_forms) == (Split.JOIN, (0,))
    both = only(traced(run, (2, 5, 16), lstm=lambda: nn.GRU(16, 8, batch_first=True, bidirectional=True)))
    assert both.macs == 5 * 2 * 3 * 8 * (16 + 8)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_model_may_return_its_loss(reduction: str) -> None:
    def loss(m: Calls, x: torch.Tensor) -> torch.Tensor:
        scores = m.fc(x)
        return functional.cross_entropy(scores, scores.argmax(1), reduction=reduction)

    layers: dict[str, Layer] = by_name(traced(loss, (2, 8), fc=linear8))
    assert layers["cross_entropy_loss"].stash_bytes == 8 * 4 + 8, "probabilities, and one class"
    assert layers["cross_entropy_loss"].output_bytes == (4 if reduction == "none" else 2)


def test_what_a_loss_is_made_of_is_shared_by_all_samples() -> None:
    graph = traced(lambda m, x: (m.fc(x) ** 2).mean() * 3 + 1, (2, 8), fc=linear8)
    assert [layer.macs for layer in by_name(graph).values()] == [64, 0]


def test_the_page_counts_the_operators() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/models.md").read_text(encoding="utf-8")
    (number,) = re.findall(r"a formula for (\d+) operators", page)
    assert int(number) == len(OPERATORS)
