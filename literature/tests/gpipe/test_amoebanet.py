"""AmoebaNet-D: parameters as published, and counts by hand."""

from __future__ import annotations

import pytest

from pipecut_literature.gpipe.amoebanet import NORMAL, Convolution, amoebanet_d


@pytest.mark.parametrize(
    ("layers", "filters", "millions", "printed_to"),
    [(18, 208, 82, 1), (18, 416, 318, 2), (18, 544, 542, 1), (36, 544, 1050, 10), (72, 512, 1800, 50)],
)
def test_parameters_of_gpipes_table_1(layers: int, filters: int, millions: int, printed_to: int) -> None:
    count = sum(layer.parameters for layer in amoebanet_d(layers, filters))
    assert abs(count / 10**6 - millions) <= printed_to


def test_a_convolution_by_hand() -> None:
    one = Convolution(inputs=4, outputs=6, kernel=9, side_in=8, side_out=4)
    assert one.parameters == 4 * 6 * 9 + 12
    assert one.flops == 2 * 4 * 6 * 9 * 16
    assert one.kept_elements == 4 * 64 + 6 * 16


def test_a_normal_cell_by_hand() -> None:
    """The third normal cell of the first group: both inputs have 4 c channels, on 28 x 28."""
    c, side = 64, 28
    cell = amoebanet_d(18, c)[5]
    q = c // 4
    long = [(c, q, 1), (q, q, 7), (q, q, 7), (q, c, 1)]
    every = [(4 * c, c, 1), (4 * c, c, 1), *[(c, c, 1)] * 3, *long, *long]
    assert cell.parameters == sum(i * o * k + 2 * o for i, o, k in every)
    assert cell.flops == 2 * side**2 * sum(i * o * k for i, o, k in every)
    pooled = 2 * c  # two states go through max pooling
    assert cell.kept_elements == side**2 * (sum(i + o for i, o, _ in every) + pooled)
    assert cell.boundary_elements == side**2 * (4 * c + 4 * c)
    assert len({state for state, name in NORMAL if name == "max_pool"}) == 2


def test_the_line() -> None:
    layers = amoebanet_d(6, 128)
    assert [layer.name for layer in layers] == ["stem", *(f"cell {at}" for at in range(10)), "classifier"]
    assert layers[0].flops == 2 * 3 * 32 * 9 * 112**2
    assert layers[0].boundary_elements == 32 * 112**2
    # The first reduction cell has 64 channels and puts three states of 56 x 56 together; its input goes on too.
    assert layers[1].boundary_elements == 3 * 64 * 56**2 + 32 * 112**2
    # The last normal cells work on 7 x 7 with 4 x 128 channels, and put four states together.
    assert layers[-2].boundary_elements == 2 * 4 * 512 * 7**2
    assert layers[-1].parameters == (4 * 512 + 1) * 1000


@pytest.mark.parametrize("size", [(0, 128), (17, 128), (18, 0), (18, 130)])
def test_sizes_that_it_cannot_have_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="expected multiples of 3 and 4 above 0"):
        amoebanet_d(*size)
