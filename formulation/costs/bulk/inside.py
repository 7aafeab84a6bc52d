"""What happens inside layers, in every form, on one kind of group: written out once more for the tables.

All layers of one kind that may take the same forms are priced together, in columns of whole numbers of any size.
``formulation.costs.times`` is the specification; a test compares the two cell by cell.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.bulk.alike import (
    BY_EXPERTS,
    SINGLES,
    forms_of,
    fullest,
    number_of_forms,
    runs_of,
    sorted_out,
)
from pipecut.formulation.costs.bulk.columns import Column, column, transfer
from pipecut.formulation.costs.bulk.computing import parts_of
from pipecut.formulation.costs.bulk.synchronised import ByteColumns, halves, holders_of, summed, synchronised
from pipecut.formulation.limits import Deadline, in_time
from pipecut.formulation.problem.constraints import Sharded
from pipecut.formulation.problem.groups import GroupKind, forms_on
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.layers import PAIRS, Layer, Split
from pipecut.formulation.problem.options import StageTime, Synchronisation
from pipecut.formulation.problem.precision import NOTHING_COPIED, Copy
from pipecut.formulation.problem.units import Link, ceil_div

Times = NDArray[np.int64]
Both = tuple[Column, Column]
"""Times per micro-batch, and without what is done once a step."""


class _Batch(NamedTuple):
    """Layers of one kind that may take the same forms: their indices, one of them, and whether it is named.

    A stage may compute the named ones again alone.
    """

    layers: list[int]
    row: Layer
    named: bool
    sizes: ByteColumns


def inside_of(instance: Instance, kinds: tuple[GroupKind, ...], deadline: Deadline) -> tuple[Times, Times]:
    """Return the times by kind, layer and form, and those without what is done once a step.

    Layers that are alike are priced once, and what kinds have in common.
    """
    keys = [(_batch_key(instance, at), one) for at, one in enumerate(instance.alike)]
    firsts, alike = sorted_out(keys)
    ones, of_one = sorted_out(keys[at][0] for at in firsts)
    batches = [[place for place, one in enumerate(of_one) if one == number] for number in range(len(ones))]
    number = number_of_forms(instance.layers)
    times = np.full((2, len(kinds), len(firsts), number), FORBIDDEN, dtype=np.int64)
    rows = [
        (places, _batch(instance, [firsts[place] for place in places]), dict[Hashable, Both]())
        for places in batches
    ]
    for at, kind in enumerate(in_time(kinds, deadline)):
        for places, batch, known in rows:
            if found := _inside(instance, kind, batch, number, known):
                cells = np.array([*found.values()], dtype=np.int64)  # [form, with or without, layer]
                times[:, at, np.array(places)[:, None], [*found]] = cells.transpose(1, 2, 0)
    return times[0][:, alike], times[1][:, alike]


def _batch_key(instance: Instance, at: int) -> tuple[object, ...]:
    row = instance.layers[at]
    return row.split, *forms_of(row), at in instance.demands.recompute_layers


def _batch(instance: Instance, layers: list[int], copy: Copy = NOTHING_COPIED) -> _Batch:
    """Return layers of one key as a batch, each with this copy beside its own weights."""
    sizes = ByteColumns(*map(column, zip(*(_sizes(instance, at, copy) for at in layers), strict=True)))
    named = layers[0] in instance.demands.recompute_layers
    return _Batch(layers, instance.layers[layers[0]], named, sizes)


def copies_of(
    instance: Instance, kinds: tuple[GroupKind, ...], deadline: Deadline
) -> Iterator[tuple[tuple[int, int], tuple[Times, Times]]]:
    """Yield what every copied weight takes beside what its layer takes anyway, and nothing in forbidden forms.

    With and without what is done once a step.
    """
    number = number_of_forms(instance.layers)
    for at, copy in in_time(enumerate(instance.copies), deadline):
        if copy is None:
            continue
        own, both = _batch(instance, [at]), _batch(instance, [at], copy)
        known = dict[Hashable, Both](), dict[Hashable, Both]()
        times = np.zeros((2, len(kinds), number), dtype=np.int64)
        for row, kind in enumerate(kinds):
            sent = _exchanged(instance, kind, own.row, copy, number)
            alone = _inside(instance, kind, own, number, known[0])
            whole = _inside(instance, kind, both, number, known[1], sent)
            for form, found in alone.items():
                times[:, row, form] = [
                    int((more - less)[0]) for more, less in zip(whole[form], found, strict=True)
                ]
        yield (copy.earlier, at), (times[0], times[1])


def _exchanged(instance: Instance, kind: GroupKind, layer: Layer, copy: Copy, number: int) -> list[int]:
    """Return by form the time per micro-batch to add a copy's gradients to those of the stage before."""
    parts = holders_of(kind, layer.split is Split.MATRIX, number)
    if kind.mode.sharded in (Sharded.GRADIENTS, Sharded.WEIGHTS):
        parts = [(1, part / devices) for devices, part in parts]
    link, size = instance.cluster.slowest, column([copy.gradient_bytes])
    each = (summed(instance, link, size, 2, part) for _, part in parts)
    return [ceil_div(int(one[0]), instance.training.micro_batches) for one in each]


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


def _beside(instance: Instance, kind: GroupKind, layers: Sequence[int], form: int) -> Column:
    """Return of each layer for how long the gradient of its weights is computed, on the class over it first."""
    parts, find = parts_of(instance, kind, form), instance.predictor.beside_ns
    return column(min(find(instance.layers[at], one, form, share) for one, share in parts) for at in layers)


def _hidden(
    instance: Instance, kind: GroupKind, layers: Sequence[int], form: int, runs: int
) -> tuple[Column, Column]:
    """Return of each layer how much of its synchronisation a forward and a backward pass hide."""
    parts, find = parts_of(instance, kind, form), instance.predictor.passes_ns
    found = [
        max(
            (find(instance.layers[at], one, form, share) for one, share in parts),
            key=lambda passes: runs * passes[0] + passes[1],
        )
        for at in layers
    ]
    halves = 2 if instance.cost.inside is Synchronisation.OVERLAPPED else 1
    return column(there for there, _ in found), column(-(-back // halves) for _, back in found)


class _Axis(NamedTuple):
    """Devices that share a layer in one form: how many, their link, what all have together, and what one lacks."""

    devices: int
    link: Link | None
    replica: Fraction
    lacking: Fraction


def _inside(
    instance: Instance,
    kind: GroupKind,
    batch: _Batch,
    number: int,
    known: dict[Hashable, Both],
    exchanged: Sequence[int] = (),
) -> dict[int, Both]:
    """Return by form that the layers of a batch may take on a kind what each of them takes.

    With and without what is done once a step. ``exchanged`` is by form what each spends with the sum of its
    gradients beside that; ``known`` is what was found on other kinds, for all on which it is the same.
    """
    runs, sizes = runs_of(kind, batch.named), batch.sizes
    follows, matrix = batch.row.split is Split.FOLLOW, batch.row.split is Split.MATRIX
    weights = holders_of(kind, matrix, number)
    cost, mode = instance.cost, kind.mode
    hides = cost.synchronisation is Synchronisation.OVERLAPPED and cost.stage_time is StageTime.ADD
    found: dict[int, Both] = {}
    for form in _allowed(batch.row, kind, number):
        held, more = weights[form], exchanged[form] if exchanged else 0
        among = held[0], *held[1].as_integer_ratio(), kind.link
        key: Hashable = (among, more, mode.sharded, mode.optimizer_on_host, kind.classes, runs)
        if hides or key not in known:
            beside = _hidden(instance, kind, batch.layers, form, runs) if hides else (0, 0)
            known[key] = synchronised(instance, kind, sizes, runs, held, more=more, beside=beside)
        axes = () if follows else _axes(kind, form, cost.expert_load)
        sent = 0 * sizes.weights
        for one, axis in axes:
            # Whole numbers are found faster than fractions.
            parts = *axis.replica.as_integer_ratio(), *axis.lacking.as_integer_ratio()
            if (passed := (one, axis.devices, axis.link, parts, runs)) not in known:
                spent = 0 * sizes.weights + _sent(instance, matrix, one, axis, sizes, runs)
                known[passed] = spent, spent
            sent = sent + known[passed][0]
        if matrix and cost.inside is Synchronisation.OVERLAPPED:
            beside = sum(_sent(instance, matrix, one, axis, sizes, 0) for one, axis in axes if one in (2, 4))
            if np.any(beside):
                sent = sent - np.minimum(beside, _beside(instance, kind, batch.layers, form))
        charged, each = known[key]
        found[form] = charged + sent, each + sent
    return found


def _allowed(row: Layer, kind: GroupKind, number: int) -> Iterator[int]:
    """Yield the forms, of so many, in which a layer may lie on a kind."""
    follows = row.split is Split.FOLLOW
    allowed: Iterable[int] = range(SINGLES) if follows else forms_on(row, kind)
    if kind.tensor_parallel_degree == 1:
        allowed = (0,)
    elif follows and kind.axes:
        allowed = range(number)
    yield from (form for form in allowed if form < number)


def _axes(kind: GroupKind, form: int, load: Fraction) -> list[tuple[int, _Axis]]:
    """Return the forms that one is made of, each with the devices that share a layer in it, of what is left."""
    shares, replica = kind.shares, kind.shares.replica
    if form < SINGLES or kind.axes is None:
        return [(form, _Axis(kind.tensor_parallel_degree, kind.inner, replica, shares.columns.gather))]
    (one, other), (a, b) = PAIRS[form], kind.grid
    left = [replica * _left(kind, other, b, load), replica * _left(kind, one, a, load)]
    lacking = [left[0] * Fraction(a - 1, a), left[1] * Fraction(b - 1, b)]
    return [
        (one, _Axis(a, kind.axes[0], left[0], lacking[0])),
        (other, _Axis(b, kind.axes[1], left[1], lacking[1])),
    ]


def _left(kind: GroupKind, form: int, devices: int, load: Fraction) -> Fraction:
    """Return the part of what a layer makes that lies on one of so many devices which share it in this form."""
    if form in (1, 7):
        return Fraction(1)
    return min(Fraction(1), load / devices) if form == BY_EXPERTS else fullest(kind, form, devices)


def _sent(instance: Instance, matrix: bool, form: int, axis: _Axis, sizes: ByteColumns, runs: int) -> Column | int:
    """Time that devices which share layers in one form send for a micro-batch, beside what weights take."""
    t, link, replica, _ = axis
    if matrix:
        if form in (3, 4):
            return (runs + 1) * _half(instance, link, sizes.made if form == 3 else sizes.taken, t, replica)
        if form in (1, 2):
            once = summed(instance, link, sizes.made if form == 1 else sizes.taken, t, replica)
            return once * (runs if form == 1 else 1)
        return 0
    if form == 5:
        return runs * _rings(axis, sizes.sent) + _rings(axis, 2 * sizes.sent, 2)
    return runs * summed(instance, link, sizes.sent, t, replica, sums=3) if form == 7 else 0


def _rings(axis: _Axis, size: Column, rings: int = 1) -> Column:
    """Time to take so many bytes round these devices, in so many rings together."""
    if axis.link is None:
        return 0 * size
    return transfer(size * axis.lacking.numerator, axis.lacking.denominator, rings * (axis.devices - 1), axis.link)


def _half(instance: Instance, link: Link | None, size: Column, devices: int, part: Fraction) -> Column:
    """Time of one half of such a sum: parts of it to the devices, or all parts to all of them."""
    return 0 * size if link is None or devices == 1 else halves(instance, link, (1, size), devices, part)
