"""What layers compute on every kind of group: at least, and in every form more (``costs.times.compute_ns``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.bulk.alike import (
    BY_EXPERTS,
    BY_ROWS,
    SINGLES,
    fullest,
    lies,
    number_of_forms,
    places_by,
    runs_of,
    sorted_out,
)
from pipecut.formulation.costs.bulk.columns import Column, column, scaled
from pipecut.formulation.limits import Deadline, in_time
from pipecut.formulation.predictor.layer_times import Share
from pipecut.formulation.problem.cluster import DeviceClass
from pipecut.formulation.problem.groups import GroupKind, layouts_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import PAIRS

Times = NDArray[np.int64]


class _Batch(NamedTuple):
    """Layers that may take, and lie in, the same forms: their places among those that are priced, and indices.

    ``shared``: a part of each takes its share of the time of the whole, on every class.
    """

    places: list[int]
    layers: list[int]
    shared: bool


def computing_of(instance: Instance, kinds: tuple[GroupKind, ...], deadline: Deadline) -> tuple[Times, Times]:
    """Return what layers compute at least on each kind, and in each form more; kinds that share alike are one."""
    # A layer that follows another one may lie in its forms.
    named = ((lies(instance, at), one) for at, one in enumerate(instance.alike))
    (firsts, alike), number = sorted_out(named), number_of_forms(instance.layers)
    batches = list(_batches(instance, firsts))
    ones, of_one = sorted_out((kind.classes, kind.shares, kind.grid) for kind in kinds)
    # With one forward pass, and with two.
    times = np.zeros((len(ones), 2, len(firsts), 1 + number), dtype=np.int64)
    for row, kind in zip(times, in_time((kinds[one] for one in ones), deadline), strict=True):
        for batch in batches:
            row[:, batch.places] = _computed(instance, kind, batch, number)
    again = [[runs_of(kind, at in instance.demands.recompute_layers) - 1 for at in firsts] for kind in kinds]
    rows = times[np.array(of_one)[:, None], again, np.arange(len(firsts))][:, alike]
    return rows[:, :, 0], rows[:, :, 1:]


def _batches(instance: Instance, firsts: Sequence[int]) -> Iterator[_Batch]:
    """Sort the layers that are priced by the forms that they may take and lie in."""
    find, rows = instance.predictor.takes_its_share, [(at, instance.layers[at]) for at in firsts]
    shared = (all(find(layer, one) for one in instance.device_classes) for _, layer in rows)
    kinds = ((layer.split, lies(instance, at)) for at, layer in rows)
    for (own, _), places in places_by(zip(shared, kinds, strict=True)):
        yield _Batch(places, [firsts[place] for place in places], own)


def _computed(instance: Instance, kind: GroupKind, batch: _Batch, number: int) -> Column:
    """Return by number of forward passes and layer what it computes at least, and by form, of so many, more."""
    passes = (_by_shares if batch.shared else _by_form)(instance, kind, batch.layers, number)
    slowest = [
        [reduce(np.maximum, (runs * there + back for there, back in form)) for form in passes] for runs in (1, 2)
    ]
    times = np.array(slowest if len(passes) == number else [row * number for row in slowest])
    # A layer may have no form on so many devices; what lies inside it is forbidden then.
    layouts = layouts_on(instance, batch.layers[0], kind) or range(number)
    least = times[:, list(layouts)].min(axis=1, keepdims=True)
    return np.concatenate((least, np.maximum(times - least, 0)), axis=1).transpose(0, 2, 1)


_Passes = list[list[tuple[Column, Column]]]
"""The forward and backward passes of layers by form, and by class of devices: one form where all are alike."""


def _by_shares(instance: Instance, kind: GroupKind, layers: Sequence[int], number: int) -> _Passes:
    """Return the passes of layers of one kind, of which each part takes its share of the whole."""
    row, times = instance.layers[layers[0]], (instance.forward_ns, instance.backward_ns)
    whole = [[column(of[one][at] for at in layers) for of in times] for one in kind.classes]
    known: dict[tuple[Fraction, ...], list[tuple[Column, Column]]] = {}
    found: _Passes = []
    for form in range(number if kind.tensor_parallel_degree > 1 else 1):
        parts = tuple(instance.predictor.share(row, form, share) for share in shares_of(instance, kind, form))
        if parts not in known:
            rows = zip(parts, whole, strict=True)
            known[parts] = [(scaled(there, part), scaled(back, part)) for part, (there, back) in rows]
        found.append(known[parts])
    return found


def _by_form(instance: Instance, kind: GroupKind, layers: Sequence[int], number: int) -> _Passes:
    """Return the passes of layers of one kind whose parts have times of their own."""
    rows, find = [instance.layers[at] for at in layers], instance.predictor.passes_ns
    forms = range(number if kind.tensor_parallel_degree > 1 else 1)
    parts = ([(form, *part) for part in parts_of(instance, kind, form)] for form in forms)
    each = ([[find(row, one, form, share) for row in rows] for form, one, share in some] for some in parts)
    return [[(column(a for a, _ in one), column(b for _, b in one)) for one in some] for some in each]


def parts_of(instance: Instance, kind: GroupKind, form: int) -> list[tuple[DeviceClass, Share]]:
    """Return the classes of a kind, each with what a device does of a layer in a form (:func:`shares_of`)."""
    devices = (instance.device_classes[one] for one in kind.classes)
    return list(zip(devices, shares_of(instance, kind, form), strict=True))


def shares_of(instance: Instance, kind: GroupKind, form: int) -> list[Share]:
    """Return by class what a device does of a layer in a form."""
    load, most = instance.cost.expert_load if form == BY_EXPERTS else 1, kind.shares.replica
    if form >= SINGLES and kind.axes:
        return [_in_pair(kind, form, instance.cost.expert_load)] * len(kind.classes)
    parts = kind.shares.rows if form in BY_ROWS else kind.shares.columns
    return [Share(min(most, share * load), most) for share in parts.by_class]


def _in_pair(kind: GroupKind, form: int, load: Fraction) -> Share:
    """Return what a device of a grid does of a layer in a pair of forms; of experts the fullest one."""
    first = kind.grid[0] if PAIRS[form][0] in BY_ROWS else 1
    parts = [
        min(Fraction(1), load / size) if one == BY_EXPERTS else fullest(kind, one, size, among=among)
        for one, size, among in zip(PAIRS[form], kind.grid, (1, first), strict=True)
    ]
    pair = tuple(zip(PAIRS[form], parts, strict=True))
    return Share(kind.shares.replica * parts[0] * parts[1], kind.shares.replica, pair)
