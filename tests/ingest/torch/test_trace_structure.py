"""Tracing: which layers there are, what they are called, who owns the weights, and what flows between them."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from torch import nn
from torch.nn import functional

from pipecut.formulation.problem.layers import Layer, Split, layers_of
from pipecut.ingest.torch.trace import trace
from tests.ingest.torch.tiny_models import Calls, by_name, linear8, only, traced

# --- forms ---


def test_a_product_across_tokens_cannot_split_its_sum() -> None:
    graph = traced(lambda m, x: m.mix(m.fc(x).transpose(1, 2)), (2, 6, 8), fc=linear8, mix=lambda: nn.Linear(6, 6))
    assert by_name(graph)["mix"].allowed_forms == (0, 2)


def test_softmax_over_features_is_restricted_but_not_over_positions() -> None:
    over_features = traced(lambda m, x: m.fc(x).softmax(-1), (2, 6, 8), fc=linear8)
    over_positions = traced(lambda m, x: m.fc(x).softmax(1), (2, 6, 8), fc=linear8)
    assert by_name(over_features)["softmax"].allowed_forms == (0, 1)
    assert by_name(over_features)["softmax"].split is Split.JOIN
    assert by_name(over_positions)["softmax"].split is Split.FOLLOW


def test_a_product_with_weights_stands_apart_from_a_gate() -> None:
    graph = traced(
        lambda m, x: functional.linear(torch.tanh(x), m.w) * x, (2, 4), w=lambda: nn.Parameter(torch.ones(4, 4))
    )
    assert [(name, layer.split) for name, layer in by_name(graph).items()] == [
        ("linear", Split.MATRIX),
        ("mul", Split.FOLLOW),
    ]


# --- names ---


def test_repeated_calls_are_numbered_and_torchstat_counts_the_last() -> None:
    graph = traced(
        lambda m, x: m.relu(m.b(m.relu(m.a(x)))),
        (2, 4),
        a=lambda: nn.Linear(4, 4),
        b=lambda: nn.Linear(4, 4),
        relu=nn.ReLU,
    )
    assert list(graph) == ["a", "relu", "b", "relu:1"]
    assert [layer.torchstat_flops for layer in layers_of(graph)] == [16, 0, 16, 4]


def test_consecutive_calls_of_one_module_are_layers_of_their_own() -> None:
    assert list(traced(lambda m, x: m.fc(m.fc(x)), (2, 4), fc=lambda: nn.Linear(4, 4))) == ["fc", "fc:1"]


def test_modules_choose_their_names_first() -> None:
    graph = traced(lambda m, x: m.add(x + m.fc(x)), (2, 4), fc=lambda: nn.Linear(4, 4), add=nn.Tanh)
    assert list(graph) == ["fc", "add:1", "add"]
    assert by_name(graph)["add"].operator == "Tanh"


def test_operators_are_named_after_their_module() -> None:
    def block() -> nn.Module:
        return Calls(lambda m, x: functional.relu(m.fc(x)) + x, fc=nn.Linear(4, 4))

    graph = traced(lambda m, x: m.two(m.one(x)), (2, 4), one=block, two=block)
    assert list(graph) == ["one.fc", "one.relu", "two.fc", "two.relu"]
    assert by_name(graph)["two.relu"].operator == "relu"


# --- parameters ---


def test_tied_weights_count_at_their_first_user() -> None:
    with torch.device("meta"):
        module = Calls(lambda m, x: m.b(m.a(x)), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
        module.b.weight = module.a.weight  # pyright: ignore
        graph = trace(module, (torch.empty(2, 4),), "model")
    layers = by_name(graph)
    assert (layers["a"].parameter_bytes, layers["b"].parameter_bytes) == (4 * 20, 4 * 4)
    assert graph.graph["ties"] == ((("a", "b"), 64, 64),)


def test_parameters_that_are_computed_with_belong_to_the_product() -> None:
    def normed() -> nn.Module:
        return nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))

    layer = only(traced(lambda m, x: m.fc(x), (2, 4), fc=normed))
    assert (layer.name, layer.parameter_bytes, layer.macs) == ("fc", 4 * (12 + 3 + 3), 12)


def test_constants_are_recomputed_by_every_user_and_make_no_edge() -> None:
    def masked(m: Calls, x: torch.Tensor) -> torch.Tensor:
        mask = torch.full((6, 6), float("-inf")).triu(1)
        angles = torch.arange(6)[:, None] * torch.ones(8)
        return (m.a(x) * angles.cos()) @ m.b(x).transpose(1, 2) + mask

    graph = traced(masked, (2, 6, 8), a=linear8, b=linear8)
    assert list(graph) == ["a", "mul", "b", "matmul"]
    assert set(graph.edges) == {("a", "mul"), ("mul", "matmul"), ("b", "matmul")}


# --- data flow ---


def test_changes_in_place_reach_later_readers() -> None:
    def overwrite(m: Calls, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x).clone()
        y[:, 0] = m.b(x)[:, 0]
        return m.c(y)

    graph = traced(
        overwrite, (2, 4), a=lambda: nn.Linear(4, 4), b=lambda: nn.Linear(4, 4), c=lambda: nn.Linear(4, 4)
    )
    assert nx.has_path(graph, "b", "c")
    assert nx.has_path(graph, "a", "c")


def test_what_reaches_no_output_is_left_out() -> None:
    def wasteful(m: Calls, x: torch.Tensor) -> torch.Tensor:
        m.unused(x)
        return m.used(x)

    assert list(traced(wasteful, (2, 4), used=lambda: nn.Linear(4, 4), unused=lambda: nn.Linear(4, 4))) == ["used"]


def test_pieces_of_one_tensor_are_summed_into_one_edge() -> None:
    def halves(m: Calls, x: torch.Tensor) -> torch.Tensor:
        first, second = m.a(x).chunk(2, -1)
        return m.b(first) * second

    graph = traced(halves, (2, 8), a=linear8, b=lambda: nn.Linear(4, 4))
    assert list(graph.edges(data="bytes")) == [
        ("a", "chunk", 32),
        ("chunk", "b", 16),
        ("chunk", "mul", 16),
        ("b", "mul", 16),
    ]


def test_regions_without_gradient_are_followed_and_keep_nothing() -> None:
    def frozen(m: Calls, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = torch.tanh(m.a(x))
        return m.b(y)

    graph = traced(frozen, (2, 4), a=lambda: nn.Linear(4, 4), b=lambda: nn.Linear(4, 4))
    assert [layer.stash_bytes for layer in layers_of(graph)] == [0, 0, 16]


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_layers_do_not_depend_on_the_example_batch(batch: int) -> None:
    def layers(size: int) -> list[Layer]:
        graph = traced(
            lambda m, x: m.fc(m.drop(m.pool(m.bn(m.conv(x)))).flatten(1)),
            (size, 3, 8, 8),
            conv=lambda: nn.Conv2d(3, 4, 3),
            bn=lambda: nn.BatchNorm2d(4),
            pool=lambda: nn.MaxPool2d(2),
            drop=nn.Dropout,
            fc=lambda: nn.Linear(36, 5),
        )
        return list(layers_of(graph))

    assert layers(batch) == layers(2)


def test_half_precision_counts_two_bytes() -> None:
    with torch.device("meta"):
        graph = trace(nn.Linear(4, 4, dtype=torch.bfloat16), (torch.empty(2, 4, dtype=torch.bfloat16),), "model")
    layer = only(graph)
    assert graph.graph["element_bytes"] == 2
    assert (layer.parameter_bytes, layer.input_bytes, layer.stash_bytes) == (40, 8, 8)


def test_inputs_may_be_given_by_keyword() -> None:
    with torch.device("meta"):
        module = nn.Bilinear(2, 2, 2)
        plain = nn.Linear(3, 3)
        graph = trace(plain, {"input": torch.empty(2, 3)}, "model")
    assert only(graph).macs == 9
    with torch.device("meta"):
        both = trace(module, {"input1": torch.empty(2, 2), "input2": torch.empty(2, 2)}, "model")
    assert both.graph["unpriced"][0].startswith("bilinear in ")


def test_the_module_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    module[1].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    layers = layers_of(trace(module, (torch.ones(2, 4),), "model"))
    assert layers[1].stash_bytes == 4  # traced in training mode
    assert (module.training, module[1].training) == (True, False)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
