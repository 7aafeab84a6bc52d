"""Bytes of weights by kind: trained ones, and frozen ones that may have parts of a byte each."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import Layer, LayerGraph, Split
from pipecut.formulation.problem.options import Compute, CostModel
from pipecut.formulation.problem.precision import Precision
from pipecut.formulation.problem.training import Training

BITS = st.sampled_from([4, 8, 16]) | st.integers(1, 64)
COUNTS = st.integers(0, 999)


def instance_of(elements: int, trained: int, precision: Precision, cost: CostModel | None = None) -> Instance:
    layer = Layer("a", "linear", Split.MATRIX, 2 * elements, 8, 8, 8, 64, trainable_bytes=2 * trained)
    card = DeviceClass("card", 2**30, 10**12, memory_bytes_per_second=10**9)
    cluster = cluster_graph("c", [Server("s", card, 1)], [], [], None)
    graph = LayerGraph.chain("m", [layer], element_bytes=2).graph()
    return build_instance(graph, cluster, Training(1, precision=precision), cost or CostModel())


@given(COUNTS, COUNTS, BITS)
def test_frozen_weights_have_their_bits_rounded_up_to_bytes_once(frozen: int, trained: int, bits: int) -> None:
    found = instance_of(frozen + trained, trained, Precision(2, 3, 2, 8, Fraction(bits, 8)))
    assert found.parameter_bytes == (2 * trained + math.ceil(frozen * bits / 8),)
    assert (found.updated_bytes, found.gradient_bytes) == ((2 * trained,), (3 * trained,))
    assert found.optimizer_bytes == (8 * trained,)


@given(COUNTS, COUNTS)
def test_frozen_weights_of_as_many_bytes_change_nothing(frozen: int, trained: int) -> None:
    plain, apart = (
        instance_of(frozen + trained, trained, Precision(2, 2, 2, 8, kept), CostModel(compute=Compute.ROOFLINE))
        for kept in (None, 2)
    )
    assert plain.parameter_bytes == apart.parameter_bytes
    assert plain.layers == apart.layers


def test_it_is_said_as_a_scenario_writes_it() -> None:
    assert str(Precision(2, 4, 2, 12)) == "{weights: 2, gradients: 4, activations: 2, optimizer: 12}"
    assert str(Precision(2, 2, 2, 8, Fraction(1, 2))).endswith("optimizer: 8, frozen: 1/2}")


@pytest.mark.parametrize("wrong", [0, -1, 9, Fraction(-1, 2)])
def test_no_weight_has_no_bytes(wrong: Fraction | int) -> None:
    with pytest.raises(ValueError, match=r"precision\.frozen is .*, expected more than 0 and at most 8"):
        Precision(2, 2, 2, 8, wrong)
