"""The networks that pipecut brings along, against the numbers of the literature."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import networkx as nx
import pytest
import torch

from pipecut.formulation.problem.layers import Layer, Split, layers_of
from pipecut.ingest.models import gpt, resnet, vgg
from pipecut.ingest.torch.trace import trace

# PipePar's Table I ("Parameters", "Total Flops (G)"), and exact multiply-accumulates in units of 10^9.
TABLE = {
    "vgg13": (vgg.vgg13, 133_047_848, "11.34", "11.308", 33),
    "vgg16": (vgg.vgg16, 138_357_544, "15.50", "15.470", 39),
    "vgg19": (vgg.vgg19, 143_667_240, "19.67", "19.632", 45),
    "resnet34": (resnet.resnet34, 21_797_672, "3.67", "3.664", 125),
    "resnet50": (resnet.resnet50, 25_557_032, "4.12", "4.089", 175),
    "resnet152": (resnet.resnet152, 60_192_808, "11.57", "11.514", 515),
}


def traced(build: Callable[[], tuple[Any, Any]], name: str) -> nx.DiGraph:
    with torch.device("meta"):
        module, inputs = build()
    assert all(parameter.is_meta for parameter in module.parameters())
    return trace(module, inputs, name)


@pytest.fixture(scope="module")
def graphs() -> dict[str, nx.DiGraph]:
    return {name: traced(row[0], name) for name, row in TABLE.items()}


def total(graph: nx.DiGraph, field: str) -> int:
    return sum(getattr(layer, field) for layer in layers_of(graph))


@pytest.mark.few(3)
@pytest.mark.parametrize("name", TABLE)
def test_parameters_are_those_of_table_one(graphs: dict[str, nx.DiGraph], name: str) -> None:
    assert total(graphs[name], "parameter_bytes") == 4 * TABLE[name][1]
    assert "ties" not in graphs[name].graph


@pytest.mark.parametrize("name", TABLE)
def test_torchstat_count_is_table_ones(graphs: dict[str, nx.DiGraph], name: str) -> None:
    assert f"{total(graphs[name], 'torchstat_flops') / 1e9:.2f}" == TABLE[name][2]


@pytest.mark.parametrize("name", TABLE)
def test_multiply_accumulates(graphs: dict[str, nx.DiGraph], name: str) -> None:
    assert f"{total(graphs[name], 'macs') / 1e9:.3f}" == TABLE[name][3]


def test_torchstat_count_of_vgg16_exactly(graphs: dict[str, nx.DiGraph]) -> None:
    # 15,470,264,320 for the products, and one per element: 13,547,520 convolution outputs (bias), the same for
    # ReLU behind them plus 2 x 4,096 in the classifier, and 6,121,472 elements that enter a pooling layer.
    assert total(graphs["vgg16"], "macs") == 15_470_264_320
    extra = 13_547_520 + 13_547_520 + 2 * 4_096 + 6_121_472
    assert total(graphs["vgg16"], "torchstat_flops") == 15_470_264_320 + extra


@pytest.mark.parametrize("name", TABLE)
def test_graphs_are_acyclic_connected_and_in_execution_order(graphs: dict[str, nx.DiGraph], name: str) -> None:
    graph = graphs[name]
    assert len(graph) == TABLE[name][4]
    position = {layer: index for index, layer in enumerate(graph)}
    assert all(position[start] < position[end] for start, end in graph.edges)
    assert nx.is_weakly_connected(graph)
    assert (graph.graph["name"], graph.graph["element_bytes"]) == (name, 4) and "cuts" not in graph.graph


# Index in Table II of PipePar: name, multiply-accumulates in units of 10^6, output elements, parameters.
VGG16 = {
    0: ("features.0", 87, 3_211_264, 1_792),
    2: ("features.2", 1_850, 3_211_264, 36_928),
    4: ("features.4", 0, 802_816, 0),
    5: ("features.5", 925, 1_605_632, 73_856),
    7: ("features.7", 1_850, 1_605_632, 147_584),
    9: ("features.9", 0, 401_408, 0),
    10: ("features.10", 925, 802_816, 295_168),
    12: ("features.12", 1_850, 802_816, 590_080),
    14: ("features.14", 1_850, 802_816, 590_080),
    16: ("features.16", 0, 200_704, 0),
    17: ("features.17", 925, 401_408, 1_180_160),
    19: ("features.19", 1_850, 401_408, 2_359_808),
    21: ("features.21", 1_850, 401_408, 2_359_808),
    23: ("features.23", 0, 100_352, 0),
    24: ("features.24", 462, 100_352, 2_359_808),
    26: ("features.26", 462, 100_352, 2_359_808),
    28: ("features.28", 462, 100_352, 2_359_808),
    30: ("features.30", 0, 25_088, 0),
    31: ("classifier.0", 103, 4_096, 102_764_544),
    33: ("classifier.2", 0, 4_096, 0),
    34: ("classifier.3", 17, 4_096, 16_781_312),
    37: ("classifier.6", 4, 1_000, 4_097_000),
}


def test_vgg16_layer_by_layer(graphs: dict[str, nx.DiGraph]) -> None:
    modules = [layer for layer in layers_of(graphs["vgg16"]) if layer.name != "flatten"]
    assert len(modules) == 38
    for index, (name, mega, elements, parameters) in VGG16.items():
        layer = modules[index]
        assert (layer.name, round(layer.macs / 1e6), layer.output_bytes, layer.parameter_bytes) == (
            name,
            mega,
            4 * elements,
            4 * parameters,
        )


def test_vgg16_is_a_chain_whose_edges_carry_the_outputs(graphs: dict[str, nx.DiGraph]) -> None:
    graph = graphs["vgg16"]
    layers = layers_of(graph)
    assert list(graph.edges(data="bytes")) == [
        (layer.name, after.name, layer.output_bytes) for layer, after in itertools.pairwise(layers)
    ]
    assert layers[31].name == "flatten"
    assert [layer.split for layer in layers] == [
        Split.MATRIX if layer.operator in ("Conv2d", "Linear") else Split.FOLLOW for layer in layers
    ]


def test_vgg16_stash_is_what_autograd_keeps(graphs: dict[str, nx.DiGraph]) -> None:
    # The image, every ReLU output, every pooling output and both dropout outputs (products read them), 8 bytes of
    # index per pooling output, and two dropout masks of a byte per element.
    pooled = 802_816 + 401_408 + 200_704 + 100_352 + 25_088
    floats = 3 * 224 * 224 + 13_547_520 + 2 * 4_096 + pooled + 2 * 4_096
    assert total(graphs["vgg16"], "stash_bytes") == 4 * floats + 8 * pooled + 2 * 4_096


def test_every_call_of_a_repeated_relu_is_a_layer(graphs: dict[str, nx.DiGraph]) -> None:
    names = [name for name in graphs["resnet50"] if name.startswith("layer1.0.")]
    assert names == [
        "layer1.0.conv1",
        "layer1.0.bn1",
        "layer1.0.relu",
        "layer1.0.conv2",
        "layer1.0.bn2",
        "layer1.0.relu:1",
        "layer1.0.conv3",
        "layer1.0.bn3",
        "layer1.0.downsample.0",
        "layer1.0.downsample.1",
        "layer1.0.add",
        "layer1.0.relu:2",
    ]


def test_a_residual_block_forks_and_joins(graphs: dict[str, nx.DiGraph]) -> None:
    graph = graphs["resnet34"]
    addition: Layer = graph.nodes["layer1.1.add"]["layer"]
    assert addition.split is Split.JOIN
    assert addition.allowed_forms == (0, 1, 2)
    assert set(graph.predecessors("layer1.1.add")) == {"layer1.0.relu:1", "layer1.1.bn2"}
    assert set(graph.successors("layer1.0.relu:1")) == {"layer1.1.conv1", "layer1.1.add"}
    assert addition.input_bytes == 2 * addition.output_bytes == 2 * 4 * 64 * 56 * 56


def test_gpt_counts_against_the_formula() -> None:
    layers, hidden, heads, vocabulary, sequence = 3, 64, 4, 97, 16
    graph = traced(lambda: gpt.gpt(layers, hidden, heads, vocabulary, sequence), "gpt")
    # Megatron-LM, arXiv 2104.04473: 24 B s h^2 + 4 B s^2 h operations a layer forward, and 2 B s h V for the head.
    macs = layers * (12 * sequence * hidden**2 + 2 * sequence**2 * hidden) + sequence * hidden * vocabulary
    assert total(graph, "macs") == macs
    block = 12 * hidden**2 + 13 * hidden
    parameters = layers * block + (2 * vocabulary + sequence) * hidden + 2 * hidden
    assert total(graph, "parameter_bytes") == 4 * parameters
    assert len(graph) == 10 * layers + 4


def test_gpt_layers_and_forms() -> None:
    graph = traced(lambda: gpt.gpt(1, 64, 4, 97, 16), "gpt")
    forms = {layer.name: (layer.split, layer.allowed_forms) for layer in layers_of(graph)}
    anything = (0, 1, 2)
    assert forms == {
        "tokens": (Split.MATRIX, anything),
        "add": (Split.FOLLOW, anything),
        "blocks.0.norm1": (Split.JOIN, (0, 1)),
        "blocks.0.attention.qkv": (Split.MATRIX, anything),
        "blocks.0.attention.scaled_dot_product_attention": (Split.JOIN, anything),
        "blocks.0.attention.projection": (Split.MATRIX, anything),
        "blocks.0.add": (Split.JOIN, anything),
        "blocks.0.norm2": (Split.JOIN, (0, 1)),
        "blocks.0.mlp.0": (Split.MATRIX, anything),
        "blocks.0.mlp.1": (Split.FOLLOW, anything),
        "blocks.0.mlp.2": (Split.MATRIX, anything),
        "blocks.0.add:1": (Split.JOIN, anything),
        "norm": (Split.JOIN, (0, 1)),
        "head": (Split.MATRIX, anything),
    }


def test_gpt_positions_belong_to_the_layer_that_adds_them() -> None:
    graph = traced(lambda: gpt.gpt(1, 64, 4, 97, 16), "gpt")
    assert graph.nodes["add"]["layer"].parameter_bytes == 4 * 16 * 64
    assert list(graph.predecessors("add")) == ["tokens"]


def test_gpt_refuses_heads_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="hidden 10 does not divide among 3 heads"):
        gpt.gpt(1, 10, 3, 5, 4)


@pytest.mark.slow
def test_gpt3_has_175_billion_parameters_and_costs_no_memory() -> None:
    graph = traced(gpt.gpt3_175b, "gpt3")
    hidden, vocabulary = 12_288, 50_257
    published = 96 * (12 * hidden**2 + 13 * hidden) + (vocabulary + 2_048) * hidden + 2 * hidden
    assert published == 174_604_259_328  # "175B", with tied embeddings
    assert total(graph, "parameter_bytes") == 4 * (published + vocabulary * hidden)
