"""What happens inside layers, in every form, on kinds of groups: written out once more for the tables.

Layers that may take the same forms are priced together on all kinds, in columns of whole numbers of any size.
``formulation.costs.times`` is the specification; a test compares the two cell by cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.bulk.alike import (
    BY_EXPERTS,
    SINGLES,
    forms_of,
    fullest,
    number_of_forms,
    places_by,
    runs_of,
    sorted_out,
)
from pipecut.formulation.costs.bulk.columns import Among, Column, Sharers, column, transfer
from pipecut.formulation.costs.bulk.computing import parts_of
from pipecut.formulation.costs.bulk.synchronised import ByteColumns, halves, holders_of, summed, synchronised
from pipecut.formulation.limits import Deadline, in_time
from pipecut.formulation.problem.constraints import Sharded
from pipecut.formulation.problem.groups import GroupKind, forms_on
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.layers import PAIRS, Layer, Split
from pipecut.formulation.problem.options import StageTime, Synchronisation
from pipecut.formulation.problem.precision import NOTHING_COPIED, Copy

Times = NDArray[np.int64]
AT_ONCE = 1 << 16  # cells: columns of Python's numbers take much memory, and nobody looks at the time meanwhile


class _Batch(NamedTuple):
    """Layers of one kind that may take the same forms: their indices, one of them, and whether it is named.

    A stage may compute the named ones again alone.
    """

    layers: list[int]
    row: Layer
    named: bool
    sizes: ByteColumns


class _Way(NamedTuple):
    """A form in which the layers of a batch may lie on a kind, the ``at``-th one.

    ``held``: how many devices have the same part of their weights (``holders_of``), their link, and the part.
    """

    at: int
    kind: GroupKind
    form: int
    held: Sharers


def inside_of(instance: Instance, kinds: tuple[GroupKind, ...], deadline: Deadline) -> tuple[Times, Times]:
    """Return the times by kind, layer and form, and those without what is done once a step.

    Layers that are alike are priced once, on all kinds together.
    """
    keys = [(_batch_key(instance, at), one) for at, one in enumerate(instance.alike)]
    firsts, alike = sorted_out(keys)
    number = number_of_forms(instance.layers)
    times = np.full((2, len(kinds), len(firsts), number), FORBIDDEN, dtype=np.int64)
    for _, places in places_by(keys[at][0] for at in firsts):
        batch = _batch(instance, [firsts[place] for place in places])
        ways = in_time(_ways(batch.row, kinds, number), deadline)
        while some := list(islice(ways, -(-AT_ONCE // len(places)))):
            at, forms = (np.array([way[key] for way in some])[:, None] for key in (0, 2))
            times[:, at, places, forms] = _inside(instance, batch, some)
    return times[0][:, alike], times[1][:, alike]


def _batch_key(instance: Instance, at: int) -> tuple[object, ...]:
    row = instance.layers[at]
    return row.split, *forms_of(row), at in instance.demands.recompute_layers


def _batch(instance: Instance, layers: list[int], copy: Copy = NOTHING_COPIED) -> _Batch:
    """Return layers of one key as a batch, each with this copy beside its own weights."""
    sizes = ByteColumns(*map(column, zip(*(_sizes(instance, at, copy) for at in layers), strict=True)))
    named = layers[0] in instance.demands.recompute_layers
    return _Batch(layers, instance.layers[layers[0]], named, sizes)


def _ways(row: Layer, kinds: Iterable[GroupKind], number: int) -> Iterator[_Way]:
    """Yield all ways in which a layer may lie on kinds, in so many forms."""
    for at, kind in enumerate(kinds):
        held = holders_of(kind, row.split is Split.MATRIX, number)
        for form in _allowed(row, kind, number):
            devices, part = held[form]
            yield _Way(at, kind, form, (devices, kind.link if devices > 1 else None, part, part))


def copies_of(
    instance: Instance, kinds: tuple[GroupKind, ...], deadline: Deadline
) -> dict[tuple[int, int], tuple[Times, Times]]:
    """Return what every copied weight takes beside what its layer takes anyway, and nothing in forbidden forms.

    With and without what is done once a step. Alike copies in alike layers are priced once.
    """
    copied = [(at, copy) for at, copy in enumerate(instance.copies) if copy is not None]
    firsts, alike = sorted_out((_batch_key(instance, at), instance.alike[at]) for at, _ in copied)
    times = [_copied(instance, kinds, *copied[first]) for first in in_time(firsts, deadline)]
    return {(copy.earlier, at): times[own] for (at, copy), own in zip(copied, alike, strict=True)}


def _copied(instance: Instance, kinds: tuple[GroupKind, ...], at: int, copy: Copy) -> tuple[Times, Times]:
    """Return what a layer takes with such a copy beside what it takes anyway."""
    number = number_of_forms(instance.layers)
    own, both = _batch(instance, [at]), _batch(instance, [at], copy)
    times = np.zeros((2, len(kinds), number), dtype=np.int64)
    if ways := list(_ways(own.row, kinds, number)):
        sent = _exchanged(instance, ways, copy)
        more = _inside(instance, both, ways, sent) - _inside(instance, own, ways)
        times[:, [way.at for way in ways], [way.form for way in ways]] = more[:, :, 0]
    return times[0], times[1]


def _exchanged(instance: Instance, ways: Sequence[_Way], copy: Copy) -> Column:
    """Return by way the time per micro-batch to add a copy's gradients to those of the stage before."""
    alone = (Sharded.GRADIENTS, Sharded.WEIGHTS)
    held = ((way.held[2], way.held[0] if way.kind.mode.sharded in alone else 1) for way in ways)
    parts = [part / number for part, number in held]
    among = Among.of([(2, instance.cluster.slowest, part, part) for part in parts])
    return -(-summed(instance, column([copy.gradient_bytes]), among) // instance.training.micro_batches)


def _sizes(instance: Instance, at: int, copy: Copy = NOTHING_COPIED) -> tuple[int, ...]:
    """Return of one layer what :class:`ByteColumns` has of many."""
    return (
        instance.parameter_bytes[at] + copy.parameter_bytes,
        instance.updated_bytes[at] + copy.updated_bytes,
        instance.gradient_bytes[at] + copy.gradient_bytes,
        instance.optimizer_bytes[at] + copy.optimizer_bytes,
        instance.output_bytes[at],
        instance.input_bytes[at],
        instance.sent_bytes[at],
    )


def _beside(instance: Instance, way: _Way, layers: Sequence[int]) -> list[int]:
    """Return of each layer for how long the gradient of its weights is computed, on the class over it first."""
    parts, find = parts_of(instance, way.kind, way.form), instance.predictor.beside_ns
    return [min(find(instance.layers[at], one, way.form, share) for one, share in parts) for at in layers]


def _hidden(instance: Instance, way: _Way, layers: Sequence[int], runs: int) -> list[tuple[int, int]]:
    """Return of each layer how much of its synchronisation a forward and a backward pass hide."""
    parts, find = parts_of(instance, way.kind, way.form), instance.predictor.passes_ns
    rows = ([find(instance.layers[at], one, way.form, share) for one, share in parts] for at in layers)
    found = (max(row, key=lambda passes: runs * passes[0] + passes[1]) for row in rows)
    halves = 2 if instance.cost.inside is Synchronisation.OVERLAPPED else 1
    return [(there, -(-back // halves)) for there, back in found]


def _inside(instance: Instance, batch: _Batch, ways: Sequence[_Way], more: Column | None = None) -> Column:
    """Return ``[2, way, layer]``: what layers of a batch take, with and without what is done once a step.

    ``more`` is by way what each spends with the sum of its gradients beside that.
    """
    cost, sent = instance.cost, _sent(instance, batch, ways)
    found = np.stack((sent, sent))
    keys = ((runs_of(way.kind, batch.named), way.held[1] is None, *_of_kind(way.kind)) for way in ways)
    for (runs, *_), rows in places_by(keys):
        some, among = [ways[row] for row in rows], Among.of([ways[row].held for row in rows])
        beside: tuple[Column | int, Column | int] = (0, 0)
        if cost.synchronisation is Synchronisation.OVERLAPPED and cost.stage_time is StageTime.ADD:
            hidden = np.array([_hidden(instance, way, batch.layers, runs) for way in some], dtype=np.object_)
            beside = hidden[:, :, 0], hidden[:, :, 1]
        extra = 0 if more is None else more[rows]
        found[:, rows] += np.stack(
            synchronised(instance, some[0].kind, batch.sizes, runs, among, more=extra, beside=beside)
        )
    return found


def _of_kind(kind: GroupKind) -> tuple[tuple[int, ...], Sharded, bool]:
    """Return what is the same of kinds whose synchronisation is priced together."""
    return kind.classes, kind.mode.sharded, kind.mode.optimizer_on_host


def _allowed(row: Layer, kind: GroupKind, number: int) -> Iterator[int]:
    """Yield the forms, of so many, in which a layer may lie on a kind."""
    follows = row.split is Split.FOLLOW
    allowed: Iterable[int] = range(SINGLES) if follows else forms_on(row, kind)
    if kind.tensor_parallel_degree == 1:
        allowed = (0,)
    elif follows and kind.axes:
        allowed = range(number)
    yield from (form for form in allowed if form < number)


def _axes(kind: GroupKind, form: int, load: Fraction) -> list[tuple[int, Sharers]]:
    """Return the forms that one is made of, each with the devices that share a layer in it, of what is left.

    How many they are, their link, what all have together, and what one lacks.
    """
    shares, replica = kind.shares, kind.shares.replica
    if form < SINGLES or kind.axes is None:
        return [(form, (kind.tensor_parallel_degree, kind.inner, replica, shares.columns.gather))]
    (one, other), (a, b) = PAIRS[form], kind.grid
    left = [replica * _left(kind, other, b, load), replica * _left(kind, one, a, load)]
    lacking = [left[0] * Fraction(a - 1, a), left[1] * Fraction(b - 1, b)]
    return [(one, (a, kind.axes[0], left[0], lacking[0])), (other, (b, kind.axes[1], left[1], lacking[1]))]


def _left(kind: GroupKind, form: int, devices: int, load: Fraction) -> Fraction:
    """Return the part of what a layer makes that lies on one of so many devices which share it in this form."""
    if form in (1, 7):
        return Fraction(1)
    return min(Fraction(1), load / devices) if form == BY_EXPERTS else fullest(kind, form, devices)


def _sent(instance: Instance, batch: _Batch, ways: Sequence[_Way]) -> Column:
    """Return ``[way, layer]``: what devices that share layers send for a micro-batch, beside what weights take."""
    matrix, hides = batch.row.split is Split.MATRIX, instance.cost.inside is Synchronisation.OVERLAPPED
    sent = np.zeros((len(ways), len(batch.layers)), dtype=np.object_)
    if batch.row.split is Split.FOLLOW:
        return sent
    load, named, beside = instance.cost.expert_load, batch.named, sent.copy()
    every = ((at, one) for at, way in enumerate(ways) for one in _axes(way.kind, way.form, load))
    rows = [(at, form, own) for at, (form, own) in every if own[1] is not None and own[0] > 1]
    keys = ((form, runs_of(ways[at].kind, named)) for at, form, _ in rows)
    for (form, runs), some in places_by(keys):
        among, own = Among.of([rows[one][2] for one in some]), [rows[one][0] for one in some]
        np.add.at(sent, own, _in_form(instance, matrix, form, among, batch.sizes, runs))
        if matrix and hides and form in (2, 4):
            np.add.at(beside, own, _in_form(instance, matrix, form, among, batch.sizes, 0))
    for at in np.flatnonzero(beside.any(axis=1)).tolist():
        sent[at] -= np.minimum(beside[at], column(_beside(instance, ways[at], batch.layers)))
    return sent


def _in_form(instance: Instance, matrix: bool, form: int, among: Among, sizes: ByteColumns, runs: int) -> Column:
    """Time that devices which share layers in one form send for a micro-batch, beside what weights take."""
    if matrix:
        if form in (3, 4):
            return (runs + 1) * halves(instance, (1, sizes.made if form == 3 else sizes.taken), among)
        if form in (1, 2):
            return (runs if form == 1 else 1) * summed(instance, sizes.made if form == 1 else sizes.taken, among)
    elif form == 5:
        return runs * _rings(among, sizes.sent) + _rings(among, 2 * sizes.sent, 2)
    elif form == 7:
        return runs * summed(instance, sizes.sent, among, sums=3)
    return 0 * among.devices * sizes.sent


def _rings(among: Among, size: Column, rings: int = 1) -> Column:
    """Time to take so many bytes round these devices, in so many rings together."""
    return transfer(size * among.lacking[0], among.lacking[1], rings * (among.devices - 1), among.link)
