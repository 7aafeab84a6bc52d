"""GPipe's memory: the paper's Table 1, the executed schedule, and the largest model against a search."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.table import peak_in_flight
from pipecut_literature.gpipe.memory import (
    GPipeBatch,
    boundary_bytes,
    largest_layers,
    largest_naive_layers,
    naive_activation_bytes,
    parameter_bytes,
    parameters,
    pipeline_activation_bytes,
    sample_bytes,
)
from pipecut_literature.megatron.transformer import TransformerShape
from tests.laws import so_many

GIB = 2**30
relaxed = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(80))


def transformer(layers: int) -> TransformerShape:
    return TransformerShape(layers, 2048, 32, 1024, 32000)


@pytest.mark.parametrize(
    ("layers", "millions", "gib"),
    [(3, 282.2, 3.15), (13, 785.8, 8.8), (103, 5300, 59.5), (415, 21000, 235.1), (1663, 83900, 937.9)],
)
def test_parameters_of_table_1(layers: int, millions: float, gib: float) -> None:
    """The first row is *Naive-1*, whose 3.15 G is printed as its activations."""
    count = parameters(transformer(layers))
    assert count / 10**6 == pytest.approx(millions, rel=4e-3)
    assert parameter_bytes(count) / GIB == pytest.approx(gib, rel=3e-3)


def test_naive_activations_are_what_is_printed_as_parameters() -> None:
    assert naive_activation_bytes(transformer(3), 32) / GIB == pytest.approx(11.7, rel=0.03)


def test_a_layer_of_table_1_keeps_64_bytes_for_each_element() -> None:
    assert sample_bytes(transformer(1)) == 64 * 1024 * 2048


@relaxed
@given(cells=st.integers(1, 5), parts=st.sampled_from([1, 2, 3, 6]), per_cell=st.integers(1, 3))
def test_the_rule_is_what_the_schedule_keeps(cells: int, parts: int, per_cell: int) -> None:
    """Inputs of all micro-batches in flight, and one micro-batch of every layer, at every cell."""
    shape = TransformerShape(cells * per_cell, 8, 2, 4, 3)
    batch = GPipeBatch(6, parts)
    in_flight = peak_in_flight(gpipe(cells, parts))
    inputs = sum(count * boundary_bytes(shape, batch.micro_batch) for count in in_flight)
    layers = cells * per_cell * batch.micro_batch * sample_bytes(shape)
    assert pipeline_activation_bytes(shape, batch, cells) == inputs + layers


def fits(shape: TransformerShape, batch: GPipeBatch, cells: int, layers: int, capacity: int) -> bool:
    """Fill cells one after another, embedding and head being items of their own."""
    end = parameter_bytes(shape.vocabulary * shape.hidden)
    layer = parameter_bytes(shape.layer_parameters) + int(batch.micro_batch * sample_bytes(shape))
    used, held = 1, boundary_bytes(shape, batch.samples)
    for item in [end, *[layer] * layers, end]:
        if held + item > capacity:
            used, held = used + 1, boundary_bytes(shape, batch.samples)
        held += item
        if held > capacity:
            return False
    return used <= cells


@relaxed
@given(
    cells=st.integers(1, 4),
    hidden=st.integers(1, 6),
    vocabulary=st.integers(1, 40),
    parts=st.sampled_from([1, 2, 4]),
    capacity=st.integers(500, 20_000),
)
def test_the_largest_model_is_the_one_that_a_search_finds(
    cells: int, hidden: int, vocabulary: int, parts: int, capacity: int
) -> None:
    shape = TransformerShape(1, hidden, 1, 2, vocabulary)
    batch = GPipeBatch(4, parts)
    found = largest_layers(shape, batch, cells, capacity)
    assert found == 0 or fits(shape, batch, cells, found, capacity)
    assert not fits(shape, batch, cells, found + 1, capacity)


def test_the_largest_naive_model_fits_and_one_more_layer_does_not() -> None:
    layers = largest_naive_layers(transformer(1), 32, 16 * GIB)

    def held(count: int) -> int:
        shape = transformer(count)
        return parameter_bytes(parameters(shape)) + naive_activation_bytes(shape, 32)

    assert held(layers) <= 16 * GIB < held(layers + 1)
    assert largest_naive_layers(transformer(1), 32, GIB) == 0


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="32 samples do not divide into 5 micro-batches"):
        GPipeBatch(32, 5)
    with pytest.raises(ValueError, match="0 accelerators"):
        largest_layers(transformer(1), GPipeBatch(32, 8), 0, GIB)
