"""The order in which a C++ ``std::unordered_map<int, …>`` of GNU's standard library is walked.

The standard leaves this order open, and dnn-partitioning's program lets it decide in which order independent
nodes are lined up; its published results depend on it, so it is reproduced. The rule: a key belongs to bucket
``key mod buckets``; a bucket used for the first time goes to the front of the walk, a key to the front of its
bucket; when the keys outnumber the buckets, all keys move, in the order of the walk, to the next larger table.
"""

from __future__ import annotations

from collections.abc import Iterable

TABLE_SIZES = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933)
"""Numbers of buckets of a growing table, observed: each is the first prime of the library above twice the last."""


def hash_order(keys: Iterable[int]) -> list[int]:
    """Return the keys, each once, in the order of a walk after they were inserted one by one.

    Raises ValueError beyond the largest known table. Cost: linear, growth included.
    """
    sizes = iter(TABLE_SIZES)
    buckets: dict[int, list[int]] = {}
    size = 0
    for count, key in enumerate(dict.fromkeys(keys)):
        if count == size:
            size = next(sizes, 0)
            if not size:
                raise ValueError(f"{count + 1} keys, expected at most {TABLE_SIZES[-1]}")
            walked, buckets = _walk(buckets), {}
            for one in walked:
                buckets.setdefault(one % size, []).append(one)
        buckets.setdefault(key % size, []).append(key)
    return _walk(buckets)


def _walk(buckets: dict[int, list[int]]) -> list[int]:
    return [key for bucket in reversed(buckets.values()) for key in reversed(bucket)]
