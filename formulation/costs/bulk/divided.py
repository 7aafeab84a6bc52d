"""What devices hold of layers, divided as forms say: bytes by kind, layer and form, for many layers at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import mul
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.bulk.alike import (
    BY_EXPERTS,
    BY_ROWS,
    BY_ROWS_TAKEN,
    SINGLES,
    fullest,
    number_of_forms,
    places_by,
)
from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.layers import PAIRS, Split

if TYPE_CHECKING:
    from pipecut.formulation.costs.tables import Tables
    from pipecut.formulation.problem.groups import GroupKind

Times = NDArray[np.int64]
Pair = tuple[int, int]

Whole = Mapping[Split, str]
"""By kind of layer and form: 1 where every device has all of something."""


def _whole(matrix: str, join: str, follow: str | None = None) -> Whole:
    return {Split.MATRIX: matrix, Split.JOIN: join, Split.FOLLOW: follow or join}


WHOLE_WEIGHTS = _whole("10000100", "11010111")
ALL_ALIKE = _whole("10000100", "10010110")
"""Where all devices of a group hold the same weights."""
WHOLE_INPUT = _whole("00100000", "01000000", "01000001")
WHOLE_OUTPUT = _whole("01000001", "01000001")
WHOLE_INPUT_AT_WORK = _whole("00101000", "01000000", "01000001")
WHOLE_OUTPUT_AT_WORK = _whole("01010001", "01000001")


def divided(tables: Tables, sizes: Sequence[int], whole: Whole) -> Times:
    """Divide every size of activations among the devices that share it, rounding up.

    What is whole lies on every device, with the samples of one replica. Of what is split, each has a part.
    """
    load, replicas = tables.instance.cost.expert_load, [kind.shares.replica for kind in tables.kinds]
    full = shared_out(tables, sizes, replicas)
    part = shared_out(tables, sizes, [kind.shares.columns.device for kind in tables.kinds])
    rows = shared_out(tables, sizes, [kind.shares.rows.device for kind in tables.kinds])
    split = np.repeat(part[:, :, None], number_of_forms(tables.instance.layers), axis=2)
    for own, places in places_by(layer.split for layer in tables.instance.layers):
        for form in (form for form in _by_rows(whole, own) if form < split.shape[2]):
            split[:, places, form] = rows[:, places]
    found = np.where(_by_form(tables, whole)[None, :, :], full[:, :, None], split)
    if found.shape[2] > BY_EXPERTS:
        shares = [min(kind.shares.replica, load * kind.shares.columns.device) for kind in tables.kinds]
        found[:, :, BY_EXPERTS] = shared_out(tables, sizes, shares)

    def left(kind: GroupKind, split: Split, form: int, devices: int, among: int) -> Fraction:
        if whole[split][form] == "1":
            return Fraction(1)
        by_rows = _by_rows(whole, split)
        return (
            min(Fraction(1), load / devices)
            if form == BY_EXPERTS
            else fullest(kind, form, devices, by_rows, among)
        )

    def both(kind: GroupKind, split: Split, pair: Pair, sizes: Pair) -> Fraction:
        among = sizes[0] if pair[0] in _by_rows(whole, split) and whole[split][pair[0]] != "1" else 1
        return left(kind, split, pair[0], sizes[0], 1) * left(kind, split, pair[1], sizes[1], among)

    fill_pairs(tables, found, both, lambda shares: shared_out(tables, sizes, [*map(mul, replicas, shares)]))
    return found


def _by_rows(whole: Whole, split: Split) -> tuple[int, ...]:
    """Return the forms in which a tensor lies by rows: of what a product takes others than of what it makes."""
    taken = whole in (WHOLE_INPUT, WHOLE_INPUT_AT_WORK) and split is Split.MATRIX
    return BY_ROWS_TAKEN if taken else BY_ROWS


def _by_form(tables: Tables, whole: Whole) -> NDArray[np.bool_]:
    """Return by layer and form which ones are whole; of pairs none, which are filled in."""
    layers = tables.instance.layers
    number = number_of_forms(layers)
    rows = {split: [digit == "1" for digit in whole[split].ljust(number, "0")[:number]] for split in whole}
    numbers = {split: at for at, split in enumerate(rows)}
    return np.array([*rows.values()])[[numbers[layer.split] for layer in layers]]


@dataclass(frozen=True, slots=True, eq=False)
class WeightTables:
    """Bytes on a device by ``[kind, layer, form]``: what it keeps, and what it gathers of others to work with."""

    kept: Times
    gathered: Times


def weights_of(tables: Tables, sizes: Sequence[int], parted: Sequence[bool]) -> WeightTables:
    """Divide weights, or what goes with them, in a replica, and on kinds that are ``parted`` among all that share.

    All devices of a group share what lies by rows, the counterparts in its replicas everything else.
    """
    whole = _by_form(tables, WHOLE_WEIGHTS)
    full = shared_out(tables, sizes, [Fraction(1) for _ in tables.kinds])
    part = shared_out(tables, sizes, [kind.shares.shard for kind in tables.kinds])
    used = np.where(whole[None, :, :], full[:, :, None], part[:, :, None])
    fill_pairs(
        tables,
        used,
        lambda _, split, pair, sizes: math.prod(
            (
                Fraction(1, 1 if WHOLE_WEIGHTS[split][form] == "1" else devices)
                for form, devices in zip(pair, sizes, strict=True)
            ),
            start=Fraction(1),
        ),
        lambda shares: shared_out(tables, sizes, shares),
    )
    if not any(parted):
        return WeightTables(used, np.zeros_like(used))
    devices = [kind.devices if one else 1 for kind, one in zip(tables.kinds, parted, strict=True)]
    replicas = [kind.replicas if one else 1 for kind, one in zip(tables.kinds, parted, strict=True)]
    by_rows = _by_form(tables, ALL_ALIKE)
    sharing = np.where(by_rows, np.array(devices)[:, None, None], np.array(replicas)[:, None, None])
    fill_pairs(
        tables,
        sharing,
        lambda _, split, pair, sizes: Fraction(
            math.prod(
                devices if ALL_ALIKE[split][form] == "1" else 1 for form, devices in zip(pair, sizes, strict=True)
            )
        ),
        lambda alike: np.array(
            [
                [of * int(one) if cut else 1] * len(sizes)
                for of, one, cut in zip(replicas, alike, parted, strict=True)
            ]
        ),
    )
    return WeightTables(-(-used // sharing), np.where(sharing > 1, used, 0))


def shared_out(tables: Tables, sizes: Sequence[int], shares: Sequence[Fraction]) -> Times:
    """Return every size times every share, rounded up; by (share, size)."""
    parts = [share.as_integer_ratio() for share in in_time(shares, tables.deadline)]
    different = {size: at for at, size in enumerate(dict.fromkeys(sizes))}
    known = {one: [-(-size * one[0] // one[1]) for size in different] for one in set(parts)}
    rows = np.array([known[one] for one in parts], dtype=np.int64)
    return rows[:, [different[size] for size in sizes]]


def fill_pairs(
    tables: Tables,
    found: Times,
    part: Callable[[GroupKind, Split, Pair, Pair], Fraction],
    make: Callable[[list[Fraction]], Times],
) -> None:
    """Write what layers have in pairs of forms into ``found[kind, layer, form]``, on the kinds that have a grid.

    ``part`` is that of a device in both forms of a pair, on so many devices each; ``make`` makes the cells of a
    form from the parts of all kinds. Cost: one ``make`` for each pair and each of the three kinds of layers.
    """
    kinds = [at for at, kind in enumerate(tables.kinds) if kind.axes]
    for split, form in itertools.product(Split, range(SINGLES, found.shape[2] if kinds else 0)):
        layers = [at for at, layer in enumerate(tables.instance.layers) if layer.split is split]
        shares = [part(kind, split, PAIRS[form], kind.grid) for kind in tables.kinds]
        found[*np.ix_(kinds, layers), form] = make(shares)[np.ix_(kinds, layers)]
