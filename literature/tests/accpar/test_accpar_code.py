import itertools
import random
from fractions import Fraction

import pytest

from pipecut_literature.accpar.code import ACCPAR, HYPAR, MatrixLayer, between, optimise

# AlexNet: input channels, input map, kernel, output channels, output map after pooling.
ALEXNET = [
    MatrixLayer("conv1", 3, 224**2, 11**2, 96, 55**2),
    MatrixLayer("conv2", 96, 55**2, 5**2, 256, 27**2),
    MatrixLayer("conv3", 256, 27**2, 3**2, 384, 13**2),
    MatrixLayer("conv4", 384, 13**2, 3**2, 384, 13**2),
    MatrixLayer("conv5", 384, 13**2, 3**2, 256, 6**2),
    MatrixLayer("fc1", 9216, 1, 1, 4096, 1),
    MatrixLayer("fc2", 4096, 1, 1, 4096, 1),
    MatrixLayer("fc3", 4096, 1, 1, 1000, 1),
]


def spelled(plan):
    return [" ".join("".join(map(str, part)) for part in (types[:5], types[5:])) for types in plan.types]


def test_accpar_on_alexnet_to_the_letter():
    assert spelled(optimise(ALEXNET)) == [
        "00000 121",
        "00000 211",
        "00000 121",
        "00000 212",
        "00000 121",
        "00021 212",
        "00001 121",
    ]


def test_hypar_on_alexnet_to_the_letter():
    assert spelled(optimise(ALEXNET, types=HYPAR)) == [
        "00000 111",
        "00000 111",
        "00000 111",
        "00000 100",
        "00000 111",
        "00001 000",
        "00011 111",
    ]


def elements(layers, batch, types):
    """What one level moves, written down once more: partial sums, and tensors that change their layout."""
    moved = Fraction(0)
    for number, (layer, kind) in enumerate(zip(layers, types, strict=True)):
        taken = batch * layer.inputs * layer.inputs_map
        made = batch * layer.outputs * layer.outputs_map
        moved += (layer.inputs * layer.outputs * layer.kernel, made, taken)[kind]
        if number:
            moved += between(types[number - 1], kind, Fraction(taken))
    return moved


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("types", [ACCPAR, HYPAR])
def test_one_level_against_every_choice(seed, types):
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    widths = [chance.randrange(1, 60) for _ in range(6)]
    layers = [MatrixLayer(f"l{n}", widths[n], 1, 1, widths[n + 1], 1) for n in range(5)]
    batch = chance.randrange(1, 80)
    plan = optimise(layers, batch, 1, types)
    least = min(elements(layers, batch, choice) for choice in itertools.product(types, repeat=5))
    assert plan.elements == (least,)
    assert elements(layers, batch, plan.types[0]) == least


def test_the_table_between_layers():
    # Rows and columns I, II, III of a tensor of 4 elements whose gradient is as large.
    table = [[between(a, b, Fraction(4)) for b in ACCPAR] for a in ACCPAR]
    assert table == [[0, 2, 2], [2, 2, 0], [2, 0, 2]]


def test_a_level_halves_what_the_types_split():
    one = [MatrixLayer("fc", 8, 1, 1, 4, 1)]
    # Elements of weights, input, output: 32, 16, 8, then 16, 8, 8 (the smaller type of equals), then 8, 4, 8.
    plan = optimise(one, batch=2, levels=3)
    assert plan.types == ((1,), (1,), (2,))
    assert plan.elements == (8, 8, 4)


def test_networks_that_the_program_takes_for_resnets_are_refused():
    layers = [MatrixLayer(f"l{n}", 2, 1, 1, 2, 1) for n in range(18)]
    with pytest.raises(ValueError, match="18 layers"):
        optimise(layers)
    with pytest.raises(ValueError, match="0 layers"):
        optimise([])
    with pytest.raises(ValueError, match="above 0"):
        MatrixLayer("none", 0, 1, 1, 1, 1)
