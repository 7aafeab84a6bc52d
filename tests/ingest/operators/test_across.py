"""What tracing finds out about rows and columns: heads, keys and values, experts, losses."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipecut.formulation.problem.layers import Across, Axis, Layer, Split, layers_of
from pipecut.ingest.graphs.graph_file import read_graph, write_graph
from pipecut.ingest.torch.trace import trace
from tests.ingest.torch.test_kept import LANGUAGE, SEQUENCE, WIDTH, Wrapped, words
from tests.ingest.torch.tiny_models import by_name, linear8, traced

HEADS, FLOAT = 4, 4


def attention(name: str, how: str) -> Layer:
    """The first layer of a model that multiplies activations."""
    graph = trace(Wrapped(LANGUAGE[name], how), (words(),), name)
    return next(one for one in layers_of(graph) if one.across is not None)


def test_attention_has_heads_and_sends_keys_and_values() -> None:
    found = attention("gpt2", "sdpa")
    assert found.across == Across(Axis.CONTEXT, HEADS, 2 * SEQUENCE * WIDTH * FLOAT)
    assert (found.split, found.allowed_forms) == (Split.JOIN, (0, 1, 2))


def test_of_attention_in_two_products_each_sends_its_second_factor() -> None:
    assert attention("gpt2", "eager").across == Across(Axis.CONTEXT, HEADS, SEQUENCE * WIDTH * FLOAT)


@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_grouped_queries_have_the_heads_of_keys_and_values_which_are_sent_once(how: str) -> None:
    """Two heads of keys for four of queries: half of the width, for keys and, in one operator, for values."""
    tensors = 2 if how == "sdpa" else 1
    found = attention("llama with grouped queries", how)
    assert found.across == Across(Axis.CONTEXT, 2, tensors * SEQUENCE * WIDTH // 2 * FLOAT)


def test_what_works_on_tokens_of_experts_is_marked_and_the_router_is_not() -> None:
    graph = trace(Wrapped(LANGUAGE["mixtral"], "sdpa"), (words(),), "mixtral")
    marked = {one.name for one in layers_of(graph) if one.across is not None and one.across.axis is Axis.EXPERTS}
    prefix = "inner.model.layers.0.mlp.experts."
    own = sorted(name.removeprefix(prefix) for name in marked if name.startswith(prefix))
    assert len(own) == 3 and own[-1] == "mul"
    assert {one.across.pieces for one in layers_of(graph) if one.name in marked and one.across} == {4}


def test_a_loss_adds_up_a_number_for_each_token_in_32_bits() -> None:
    graph = traced(
        lambda m, x: functional.cross_entropy(m.fc(x).flatten(0, 1), m.y), (2, 6, 8), fc=linear8, y=labels
    )
    assert by_name(graph)["cross_entropy_loss"].across == Across(Axis.VOCABULARY, sent_bytes=6 * 4)
    assert by_name(graph)["fc"].across is None


def labels() -> nn.Parameter:
    return nn.Parameter(torch.zeros(12, dtype=torch.long), requires_grad=False)


def test_a_layer_graph_keeps_it_in_its_file(tmp_path) -> None:
    graph = trace(Wrapped(LANGUAGE["mixtral"], "sdpa"), (words(),), "mixtral")
    write_graph(graph, tmp_path / "graph.json")
    assert [one.across for one in layers_of(read_graph(tmp_path / "graph.json"))] == [
        one.across for one in layers_of(graph)
    ]
