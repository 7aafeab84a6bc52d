import itertools
import random

import numpy as np
import pytest

from planners.piper.knapsack import Knapsack, Range, StageAlternatives


def made_up(seed, size=9):
    """A stage in which the slower alternative of a layer mostly takes less memory."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    seconds, flying, fixed = np.zeros((2, size, 2)), np.zeros((size, 2)), np.zeros((size, 2))
    for layer in range(size):
        slow = chance.randrange(2)
        times = sorted((chance.randrange(1, 40), chance.randrange(1, 40)))
        sizes = sorted((chance.randrange(1, 30), chance.randrange(1, 30)))
        for replicas in (0, 1):
            seconds[replicas, layer, slow] = times[1] / (replicas + 1)
            seconds[replicas, layer, 1 - slow] = times[0] / (replicas + 1)
        flying[layer, slow], flying[layer, 1 - slow] = sizes
        fixed[layer] = chance.randrange(5)
    return StageAlternatives(seconds, flying, fixed)


def settings(stage, row, in_flight):
    """Every choice of one case, as (seconds, bytes)."""
    memory = stage.flying * in_flight + stage.fixed
    layers = np.arange(len(memory))
    for second in itertools.product((0, 1), repeat=len(memory)):
        yield float(stage.seconds[row, layers, second].sum()), float(memory[layers, second].sum())


def by_the_listing(stage, row, in_flight, limit):
    """The program's greedy loop, one swap at a time."""
    memory = stage.flying * in_flight + stage.fixed
    size = len(memory)
    held = [int(stage.seconds[row, i, 1] < stage.seconds[row, i, 0]) for i in range(size)]
    need = sum(memory[i, held[i]] for i in range(size)) - limit
    swaps = []
    for i in range(size):
        saving = memory[i, held[i]] - memory[i, 1 - held[i]]
        if saving > 1e-9:
            swaps.append(
                ((stage.seconds[row, i, 1 - held[i]] - stage.seconds[row, i, held[i]]) / saving, i, saving)
            )
    for _, i, saving in sorted(swaps):
        if need < 1e-9:
            break
        need -= saving
        held[i] = 1 - held[i]
    return float(sum(stage.seconds[row, i, held[i]] for i in range(size))) if need < 1e-9 else float("inf")


@pytest.mark.parametrize("seed", range(25))
def test_every_kind_against_its_definition(seed):
    stage = made_up(seed)
    row, in_flight = np.array([0, 0, 1, 1]), np.array([1.0, 3.0, 1.0, 2.0])
    for limit in (60.0, 110.0, 180.0, 300.0):
        found = {kind: stage.best(kind, row, in_flight, limit, Range()) for kind in Knapsack}
        for case, (one, y) in enumerate(zip(row, in_flight, strict=True)):
            least = min((time for time, size in settings(stage, one, y) if size <= limit), default=np.inf)
            values = {kind: float(times[case]) for kind, (times, _) in found.items()}
            assert values[Knapsack.EXACT] == pytest.approx(least)
            assert values[Knapsack.GREEDY] == pytest.approx(by_the_listing(stage, one, y, limit))
            if np.isfinite(least):
                assert values[Knapsack.FRACTIONAL] <= least + 1e-9
                assert least <= values[Knapsack.GREEDY] + 1e-9 <= values[Knapsack.ALL_OR_NOTHING] + 2e-9
            for kind in (Knapsack.EXACT, Knapsack.GREEDY, Knapsack.ALL_OR_NOTHING):
                second = found[kind][1][case].astype(int)
                if np.isfinite(values[kind]):
                    layers = np.arange(len(second))
                    assert stage.seconds[one, layers, second].sum() == pytest.approx(values[kind])
                    assert (stage.flying * y + stage.fixed)[layers, second].sum() <= limit + 1e-9


def test_a_large_last_layer_makes_the_greedy_choice_overshoot():
    # Two units of memory are missing. The cheapest saving per byte is 1 s for 1 byte, then 9 s for 8 bytes, ...
    seconds = np.array([[[0.0, 1.0], [0.0, 9.0], [0.0, 2.0]]])
    stage = StageAlternatives(seconds, np.array([[1.0, 0.0], [8.0, 0.0], [1.0, 0.0]]), np.zeros((3, 2)))
    case = np.array([0]), np.array([1.0]), 8.0
    assert stage.best(Knapsack.GREEDY, *case, Range())[0] == [10.0]
    assert stage.best(Knapsack.EXACT, *case, Range())[0] == [3.0]
    assert stage.best(Knapsack.FRACTIONAL, *case, Range())[0] == [1 + 9 / 8]
    # Nobody asks for less than the floor, or for as much as the bound.
    assert stage.best(Knapsack.EXACT, *case, Range(floor=10.0))[0] == [10.0]
    assert stage.best(Knapsack.EXACT, *case, Range(bound=3.0))[0] == [np.inf]


def test_the_program_takes_the_first_of_equal_alternatives():
    stage = StageAlternatives(np.array([[[1.0, 1.0]]]), np.array([[5.0, 2.0]]), np.zeros((1, 2)))
    times, second = stage.best(Knapsack.GREEDY, np.array([0, 0]), np.array([1.0, 2.0]), 5.0, Range())
    assert times.tolist() == [1.0, 1.0]
    assert second.tolist() == [[False], [True]]
