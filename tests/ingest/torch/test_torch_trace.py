"""Tracing: tiny models whose every number can be worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pipecut.formulation.predictor.roofline import Product, Work
from pipecut.formulation.problem.layers import Layer, Split, layers_of
from pipecut.ingest.torch.trace import trace
from tests.ingest.torch.tiny_models import (
    ANY,
    Calls,
    Function,
    Part,
    attend,
    by_name,
    explicit_attention,
    linear8,
    only,
    traced,
)


def moved(read_bytes: int, written_bytes: int) -> Work:
    """Return the work of one kernel that computes no product."""
    return Work((), 1, read_bytes, written_bytes)


def test_linear() -> None:
    graph = traced(lambda m, x: m.fc(x), (2, 5), fc=lambda: nn.Linear(5, 3))
    assert only(graph) == Layer(
        name="fc",
        operator="Linear",
        split=Split.MATRIX,
        parameter_bytes=4 * (15 + 3),
        input_bytes=4 * 5,
        output_bytes=4 * 3,
        stash_bytes=4 * 5,
        macs=15,
        torchstat_flops=15,
        allowed_forms=ANY,
        work=Work((Product(1, 5, 3, 1, weighted=True, read_bytes=4 * 5, written_bytes=4 * 3),), 0, 0, 0),
    )


def test_linear_over_tokens_counts_every_token() -> None:
    layer = only(traced(lambda m, x: m.fc(x), (3, 7, 5), fc=lambda: nn.Linear(5, 3, bias=False)))
    assert (layer.macs, layer.parameter_bytes, layer.output_bytes) == (7 * 15, 60, 4 * 7 * 3)


def test_convolution() -> None:
    graph = traced(lambda m, x: m.conv(x), (2, 3, 8, 6), conv=lambda: nn.Conv2d(3, 4, (3, 2), stride=(1, 2)))
    # Output: 4 channels of 6 x 3.
    assert only(graph) == Layer(
        name="conv",
        operator="Conv2d",
        split=Split.MATRIX,
        parameter_bytes=4 * (4 * 3 * 3 * 2 + 4),
        input_bytes=4 * 3 * 8 * 6,
        output_bytes=4 * 4 * 6 * 3,
        stash_bytes=4 * 3 * 8 * 6,
        macs=4 * 6 * 3 * (3 * 3 * 2),
        torchstat_flops=4 * 6 * 3 * (3 * 3 * 2) + 4 * 6 * 3,
        allowed_forms=ANY,
        # At each of 6 x 3 places a window of 3 x 3 x 2 numbers is multiplied with four columns of weights.
        work=Work((Product(18, 18, 4, 1, weighted=True, read_bytes=576, written_bytes=288),), 0, 0, 0),
    )


def test_depthwise_convolution_sums_inside_a_channel_only() -> None:
    layer = only(traced(lambda m, x: m.conv(x), (2, 6, 5, 5), conv=lambda: nn.Conv2d(6, 6, 3, groups=6)))
    assert layer.macs == 6 * 9 * 9
    assert layer.allowed_forms == (0, 2)


def test_transposed_convolution_multiplies_every_input_with_its_kernels() -> None:
    layer = only(traced(lambda m, x: m.up(x), (2, 6, 5, 5), up=lambda: nn.ConvTranspose2d(6, 4, 2, stride=2)))
    assert layer.macs == 6 * 5 * 5 * (4 * 2 * 2)
    assert layer.output_bytes == 4 * 4 * 10 * 10


def test_batch_norm_and_its_counter() -> None:
    graph = traced(
        lambda m, x: m.bn(m.conv(x)), (2, 3, 4, 4), conv=lambda: nn.Conv2d(3, 5, 1), bn=lambda: nn.BatchNorm2d(5)
    )
    # num_batches_tracked is counted up and read by nobody: no layer. Mean and deviation: 8 bytes a channel.
    assert list(graph) == ["conv", "bn"]
    layer = by_name(graph)["bn"]
    assert layer == Layer(
        "bn", "BatchNorm2d", Split.FOLLOW, 4 * 10, 320, 320, 320 + 8 * 5, 0, 2 * 80, work=moved(320, 320)
    )


def test_embedding_keeps_the_token_numbers() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Embedding(11, 6))
        tokens = torch.zeros(2, 5, dtype=torch.long)
    layer = only(trace(module, (tokens,), "model"))
    assert layer == Layer("0", "Embedding", Split.MATRIX, 4 * 66, 8 * 5, 4 * 30, 8 * 5, 0, work=moved(40, 120))


def test_pooling_keeps_its_input_and_indices() -> None:
    graph = traced(
        lambda m, x: m.pool(m.conv(x)), (2, 3, 4, 4), conv=lambda: nn.Conv2d(3, 5, 1), pool=lambda: nn.MaxPool2d(2)
    )
    layer = by_name(graph)["pool"]
    assert layer == Layer("pool", "MaxPool2d", Split.FOLLOW, 0, 320, 80, 320 + 8 * 20, 0, 80, work=moved(320, 80))


def test_dropout_keeps_a_byte_per_element_unless_it_is_off() -> None:
    graph = traced(
        lambda m, x: m.off(m.on(m.fc(x))),
        (2, 5),
        fc=lambda: nn.Linear(5, 8),
        on=lambda: nn.Dropout(0.5),
        off=lambda: nn.Dropout(0.0),
    )
    layers = by_name(graph)
    assert (layers["on"].stash_bytes, layers["off"].stash_bytes) == (8, 0)


def test_layer_norm_needs_whole_rows() -> None:
    graph = traced(lambda m, x: m.ln(m.fc(x)), (2, 7, 5), fc=lambda: nn.Linear(5, 8), ln=lambda: nn.LayerNorm(8))
    layer = by_name(graph)["ln"]
    assert layer == Layer(
        "ln", "LayerNorm", Split.JOIN, 64, 224, 224, 224 + 7 * 8, 0, allowed_forms=(0, 1), work=moved(224, 224)
    )


def test_residual_addition() -> None:
    graph = traced(lambda m, x: m.a(x) + m.b(m.a(x)), (2, 4), a=lambda: nn.Linear(4, 4), b=lambda: nn.Linear(4, 4))
    assert list(graph) == ["a", "a:1", "b", "add"]
    assert by_name(graph)["add"] == Layer("add", "add", Split.JOIN, 0, 32, 16, 0, 0, work=moved(32, 16))
    assert set(graph.edges(data="bytes")) == {("a:1", "b", 16), ("b", "add", 16), ("a", "add", 16)}


def test_concatenation_of_channels() -> None:
    graph = traced(
        lambda m, x: torch.cat([m.a(x), m.b(x)], 1),
        (2, 3, 4, 4),
        a=lambda: nn.Conv2d(3, 2, 1),
        b=lambda: nn.Conv2d(3, 5, 1),
    )
    assert by_name(graph)["cat"] == Layer(
        "cat", "cat", Split.JOIN, 0, 4 * 7 * 16, 4 * 7 * 16, 0, 0, work=moved(448, 448)
    )
    assert list(graph.edges(data="bytes")) == [("a", "cat", 4 * 2 * 16), ("b", "cat", 4 * 5 * 16)]


def test_attention_counts_two_products_and_keeps_no_square() -> None:
    graph = traced(attend, (2, 5, 8), q=linear8, k=linear8, v=linear8, o=linear8)
    layer = by_name(graph)["scaled_dot_product_attention"]
    assert layer.macs == 2 * (2 * 5 * 5 * 4)
    # q, k, v, the output, and one number for each of 2 heads x 5 queries.
    assert layer.stash_bytes == 4 * 4 * 40 + 4 * 10
    assert (layer.split, layer.allowed_forms) == (Split.JOIN, ANY)
    assert by_name(graph)["o"].stash_bytes == 0  # the attention keeps its output, which is the projection's input


def test_attention_written_out_keeps_the_square_and_may_be_cut_by_heads() -> None:
    graph = traced(explicit_attention, (2, 5, 8), qkv=lambda: nn.Linear(8, 24))
    layers = by_name(graph)
    assert list(layers) == ["qkv", "matmul", "matmul:1"]
    assert layers["matmul"].macs == layers["matmul:1"].macs == 2 * 5 * 5 * 4
    assert [layer.split for layer in layers.values()] == [Split.MATRIX, Split.JOIN, Split.JOIN]
    assert {layer.allowed_forms for layer in layers.values()} == {ANY}
    # Copies of q and k, which are parts of one tensor, and the softmax; the second product keeps a copy of v.
    assert layers["matmul"].stash_bytes == 4 * 5 * 16 + 4 * 2 * 5 * 5
    assert layers["matmul:1"].stash_bytes == 4 * 5 * 8


def test_einsum_counts_the_product_of_all_letters() -> None:
    graph = traced(
        lambda m, x: torch.einsum("bsd,dhk->bhsk", x, m.w), (2, 5, 8), w=lambda: nn.Parameter(torch.ones(8, 2, 3))
    )
    layer = only(graph)
    assert (layer.split, layer.macs, layer.parameter_bytes) == (Split.MATRIX, 5 * 8 * 2 * 3, 4 * 48)


PRODUCTS: dict[str, tuple[Function, tuple[int, ...], dict[str, Part]]] = {
    "convolution 1d": (lambda m, x: m.c(x), (2, 4, 9), {"c": lambda: nn.Conv1d(4, 6, 3, stride=2)}),
    "convolution 3d": (lambda m, x: m.c(x), (2, 4, 5, 6, 7), {"c": lambda: nn.Conv3d(4, 6, (1, 2, 3), padding=1)}),
    "grouped convolution": (lambda m, x: m.c(x), (2, 8, 9, 9), {"c": lambda: nn.Conv2d(8, 12, 3, groups=4)}),
    "dilated convolution": (lambda m, x: m.c(x), (2, 4, 9, 9), {"c": lambda: nn.Conv2d(4, 6, 3, dilation=2)}),
    "up-convolution": (
        lambda m, x: m.c(x),
        (2, 4, 5, 5),
        {"c": lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2)},
    ),
    "matmul": (lambda m, x: x @ m.w, (2, 5, 4), {"w": lambda: nn.Parameter(torch.ones(4, 3))}),
    "matmul on the left": (lambda m, x: m.w @ x, (2, 5, 4), {"w": lambda: nn.Parameter(torch.ones(3, 5))}),
    "addmm": (
        lambda m, x: torch.addmm(m.b, x, m.w),
        (2, 4),
        {
            "w": lambda: nn.Parameter(torch.ones(4, 3)),
            "b": lambda: nn.Parameter(torch.ones(3)),
        },
    ),
    "bmm": (lambda m, x: torch.bmm(x, x.transpose(1, 2)), (2, 5, 4), {}),
    "baddbmm": (lambda m, x: torch.baddbmm(x, x, x), (2, 4, 4), {}),
    "attention": (attend, (2, 5, 8), dict.fromkeys("qkvo", linear8)),
    "attention written out": (explicit_attention, (2, 5, 8), {"qkv": lambda: nn.Linear(8, 24)}),
    "einsum": (lambda m, x: torch.einsum("bsd,btd->bst", x, x), (2, 5, 4), {}),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_multiply_accumulates_are_half_of_torchs_own_count(name: str) -> None:
    function, shape, parts = PRODUCTS[name]
    with torch.device("meta"):
        module = Calls(function, **{key: part() for key, part in parts.items()})
        inputs = torch.empty(shape)
    with FlopCounterMode(display=False) as counter:
        module(inputs)
    layers = layers_of(trace(module, (inputs,), "model"))
    assert 2 * shape[0] * sum(layer.macs for layer in layers) == counter.get_total_flops() > 0
