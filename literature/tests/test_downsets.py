import itertools
import random

import pytest

from pipecut_literature.common.downsets import TooManyDownsetsError, bits, downsets, masks, reachable, topological
from pipecut_literature.dnn_partitioning.graph import TABLE_SIZES, hash_order


def random_edges(seed, size, density):
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    return [pair for pair in itertools.combinations(range(size), 2) if chance.random() < density]


@pytest.mark.parametrize("seed", range(12))
def test_downsets_are_those_of_an_exhaustive_search(seed):
    size = 7
    required = masks(size, [(b, a) for a, b in random_edges(seed, size, 0.3)])
    closed = {one for one in range(1 << size) if all(required[node] & ~one == 0 for node in bits(one))}
    found = downsets(required, limit=1 << size)
    assert found[0] == 0
    assert len(found) == len(set(found))
    assert set(found) == closed


def test_the_limit_of_downsets_is_kept():
    with pytest.raises(TooManyDownsetsError, match="more than 100 downsets"):
        downsets([0] * 10, limit=100)
    assert len(downsets([0] * 6, limit=64)) == 64


def test_orders_and_reachable_nodes_of_a_diamond():
    consumers = masks(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    producers = masks(4, [(1, 0), (2, 0), (3, 1), (3, 2)])
    assert topological(producers) == [0, 1, 2, 3]
    assert reachable([0, 1, 2, 3], producers) == [0, 0b1, 0b1, 0b111]
    assert reachable([3, 2, 1, 0], consumers) == [0b1110, 0b1000, 0b1000, 0]
    with pytest.raises(ValueError, match="cycle"):
        topological([0b10, 0b01])


def test_hash_order_is_that_of_a_compiled_program():
    # std::unordered_map<int, int>, keys 0 to 40 inserted in order, compiled with g++ (59 buckets in the end).
    assert hash_order(range(41)) == [*range(40, 28, -1), *range(12, -1, -1), *range(13, 29)]


def test_hash_order_puts_a_new_bucket_and_a_new_key_first():
    assert hash_order([1, 2, 14]) == [2, 14, 1]  # 14 shares bucket 1 of 13
    assert hash_order([5, 5, 3, 5]) == [3, 5]
    assert hash_order([]) == []


@pytest.mark.slow
def test_hash_order_names_its_limit():
    with pytest.raises(ValueError, match=f"expected at most {TABLE_SIZES[-1]}"):
        hash_order(range(TABLE_SIZES[-1] + 1))
