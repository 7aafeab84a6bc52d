"""GPipe's throughput: its partitioner against every cut, the executed step against the closed form."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecut_literature.gpipe.memory import GPipeBatch
from pipecut_literature.gpipe.planner import least_variance
from pipecut_literature.gpipe.time import (
    Accelerator,
    LayerLine,
    closed_form_speed,
    gpipe_durations,
    samples_per_second,
    transformer_network,
)
from pipecut_literature.megatron.transformer import TransformerShape
from tests.laws import so_many

MACHINE = Accelerator("machine", 10**9, near_bytes_per_second=10**6)
relaxed = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(80))


@relaxed
@given(costs=st.lists(st.integers(0, 9), min_size=1, max_size=8), data=st.data())
def test_no_cut_has_less_variance(costs: list[int], data: st.DataObject) -> None:
    cells = data.draw(st.integers(1, len(costs)))

    def squares(spans: tuple[tuple[int, int], ...]) -> int:
        return sum(sum(costs[first:stop]) ** 2 for first, stop in spans)

    found = tuple(pairwise(least_variance(costs, cells)))
    assert found[0][0] == 0 and found[-1][1] == len(costs) and len(found) == cells
    every = [tuple(pairwise((0, *cuts, len(costs)))) for cuts in combinations(range(1, len(costs)), cells - 1)]
    assert found in every
    assert squares(found) == min(map(squares, every))


@relaxed
@given(cells=st.integers(1, 5), parts=st.sampled_from([1, 2, 4, 8]), layers=st.integers(1, 3))
def test_equal_cells_reach_the_closed_form(cells: int, parts: int, layers: int) -> None:
    network = LayerLine("equal", (1000,) * (cells * layers), (0,) * (cells * layers))
    batch = GPipeBatch(8, parts)
    one = samples_per_second(network, 1, batch, MACHINE)
    assert samples_per_second(network, cells, batch, MACHINE) / one == closed_form_speed(cells, parts)


def test_durations_by_hand() -> None:
    network = LayerLine("three", (1, 2, 3), boundary_bytes=(4, 5, 6))
    durations = gpipe_durations(network, 2, GPipeBatch(6, 2), MACHINE)
    assert durations.forward_ns == durations.recompute_ns == (9, 9)
    assert durations.backward_ns == (18, 18)
    assert durations.activation_ns == durations.gradient_ns == (15_000,)


def test_a_transformer_has_an_embedding_and_a_head() -> None:
    shape = TransformerShape(2, 8, 2, 4, 16)
    network = transformer_network("small", shape, 2)
    layer = 24 * 4 * 64 + 4 * 16 * 8
    assert network.layer_flops == (0, layer, layer, 2 * 4 * 8 * 16)
    assert network.boundary_bytes == (2 * 4 * 8,) * 4


def test_every_layer_has_a_boundary() -> None:
    with pytest.raises(ValueError, match="two: 1 boundaries for 2 layers"):
        LayerLine("two", (1, 1), (5,))


def test_more_cells_than_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="3 cells of 2 layers, expected 1 or more"):
        gpipe_durations(LayerLine("two", (1, 1), (0, 0)), 3, GPipeBatch(6, 2), MACHINE)


def test_the_closed_form_at_its_ends() -> None:
    assert closed_form_speed(8, 1) == 1
    assert closed_form_speed(8, 10**6) == pytest.approx(8, rel=1e-4)
    assert closed_form_speed(4, 32) == Fraction(128, 35)
