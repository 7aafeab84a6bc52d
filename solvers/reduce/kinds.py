"""Kinds of groups that need no cells of their own, as others are no worse wherever they might be used.

Two kinds that divide different parts of what every replica holds (ZeRO) have the same layouts. One whose layers
hold no more and take no longer *stands for* the other: a stage of the other may as well be one of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.memory_tables import CopyTables, MemoryTables
from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.problem.constraints import Sharded
from pipecut.formulation.problem.groups import GroupKind

Priced = tuple[Tables, MemoryTables | None]
"""What layers take, and what they hold, by kind."""
COSTS = "compute", "inside", "each", "between"
BYTES = "once", "by_version", "by_micro_batch", "working_set", "received"
COPIED = "once", "by_version", "working_set"


def of_kinds(priced: Priced, wanted: Sequence[int]) -> Priced:
    """Return the tables of some kinds, with those that price what is computed again in them."""
    tables, held = priced
    again = {} if held is None else held.recomputing
    rows = list(dict.fromkeys([*wanted, *(again[one] for one in wanted if one in again)]))
    fewer = replace(
        tables,
        groups=(),
        kinds=tuple(tables.kinds[at] for at in rows),
        kind_of=(),
        copies={ends: copy[rows] for ends, copy in tables.copies.items()},
        copies_each={ends: copy[rows] for ends, copy in tables.copies_each.items()},
        **{name: getattr(tables, name)[rows] for name in COSTS},
    )
    if held is None:
        return fewer, None
    copies = {
        ends: CopyTables(*(getattr(copy, name)[rows] for name in COPIED)) for ends, copy in held.copies.items()
    }
    return fewer, replace(
        held,
        capacity=tuple(held.capacity[at] for at in rows),
        possible=held.possible[rows],
        copies=copies,
        recomputing=fewer.recomputing(),
        **{name: getattr(held, name)[rows] for name in BYTES},
    )


def stand_ins(priced: Priced) -> list[int]:
    """Return by kind the one that stands for it: itself, or one that holds no more and takes no longer.

    Kinds that divide gradients, or do not, are never compared with each other: passes of both are not the same.
    """
    tables, held = priced
    found, again = list(range(len(tables.kinds))), {} if held is None else held.recomputing
    families = dict[object, list[int]]()
    for at, kind in enumerate(tables.kinds):
        key = _whole(kind), kind.mode.sharded.divides_gradients, kind.mode.sharded.divides_weights
        families.setdefault(key, []).append(at)
    pairs = [pair for family in families.values() for pair in permutations(family, 2)]
    if not pairs:
        return found
    better = dict(zip(pairs, _no_worse(priced, pairs).tolist(), strict=True))
    for one, other in pairs:
        ties = better[one, other] and better[other, one]
        fits = (one in again) == (other in again) and better.get((again.get(one, one), again.get(other, other)))
        if better[one, other] and fits and found[one] == one and (one < other or not ties):
            found[other] = one
    return found


def _whole(kind: GroupKind) -> GroupKind:
    return replace(kind, mode=replace(kind.mode, sharded=Sharded.NONE))


def _arrays(priced: Priced) -> Iterator[Times]:
    """Yield all that layers take and hold: arrays by kind."""
    tables, held = priced
    yield from (getattr(tables, name) for name in COSTS)
    yield from (*tables.copies.values(), *tables.copies_each.values())
    if held is not None:
        yield from (getattr(held, name) for name in BYTES)
        yield from (getattr(copy, name) for copy in held.copies.values() for name in COPIED)
        yield (~held.possible).astype(np.int64)
        yield -np.array(held.capacity, dtype=np.int64)


def _no_worse(priced: Priced, pairs: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Tell for each pair whether the first kind takes and holds no more than the second, layer by layer."""
    ones, others = np.array(pairs).T
    kept = np.ones(len(pairs), dtype=np.bool_)
    for array in _arrays(priced):
        some = np.flatnonzero(kept)
        rows = array.reshape(len(array), -1)
        kept[some] = (rows[ones[some]] <= rows[others[some]]).all(axis=1)
    return kept
