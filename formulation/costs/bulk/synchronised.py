"""What devices that hold the same weights send of them, their gradients and the optimiser's state, on one kind.

``formulation.costs.times.synchronisation_ns`` and its neighbours are the specification.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np

from pipecut.formulation.costs.bulk.alike import SINGLES
from pipecut.formulation.costs.bulk.columns import Among, Column, transfer
from pipecut.formulation.problem.constraints import Sharded
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import PAIRS
from pipecut.formulation.problem.options import AllReduce, Compute
from pipecut.formulation.problem.units import NS_PER_SECOND


class ByteColumns(NamedTuple):
    """What the communication of layers depends on, in bytes: a column of each."""

    weights: Column
    updated: Column
    gradients: Column
    state: Column
    made: Column
    taken: Column
    sent: Column


@lru_cache(maxsize=4096)
def holders_of(kind: GroupKind, matrix: bool, number: int) -> list[tuple[int, Fraction]]:
    """Return by form how many devices have the same weights of a layer, and what part of them that is."""
    t, d = kind.tensor_parallel_degree, kind.replicas
    found = [(own * d, part) for own, part in _divided(kind.shares.shard, t, matrix)]
    axes = [_divided(Fraction(1, size), size, matrix) for size in kind.grid]
    for one, other in PAIRS.values() if number > SINGLES else ():
        (own, part), (others, rest) = axes[0][one], axes[1][other]
        found.append((own * others * d, part * rest))
    return found[:number]


def _divided(shard: Fraction, t: int, matrix: bool) -> list[tuple[int, Fraction]]:
    """Return the same by single form, of the ``t`` devices that share a layer so."""
    rows, part, data = (t, Fraction(1)), (1, shard), (1, Fraction(1))
    if matrix:
        return [rows, part, part, part, part, rows, part, part]
    return [rows, data, part, rows, part, rows, rows, data]


def synchronised(
    instance: Instance,
    kind: GroupKind,
    sizes: ByteColumns,
    runs: int,
    among: Among,
    *,
    more: Column | int = 0,
    beside: tuple[Column | int, Column | int] = (0, 0),
) -> tuple[Column, Column]:
    """Time per micro-batch that so many devices spend on a part of the weights that they all hold, or divide.

    And what of it is spent in each pass, beside what is done once a step. ``kind`` is one of kinds with the same
    classes and mode, but for its replicas. ``more`` is spent with the sum of gradients. Of weights that are
    gathered, or gradients that are added, to and from divided parts each pass counts whole; a forward and a
    backward pass hide as much as ``beside`` says.
    """
    once, gathered, added = _among(instance, kind, sizes, among)
    if kind.mode.optimizer_on_host:
        once = once + _through_host(instance, kind, sizes, among)
    elif instance.cost.compute is Compute.ROOFLINE:
        once = once + _updating(instance, kind, sizes, among)
    before, behind = runs * np.maximum(gathered - beside[0], 0), gathered + added
    charged = behind + more - (-once // instance.training.micro_batches)
    return before + np.maximum(charged - beside[1], 0), before + np.maximum(behind - beside[1], 0)


def _among(instance: Instance, kind: GroupKind, sizes: ByteColumns, among: Among) -> tuple[Column, Column, Column]:
    """Time that devices with the same weights send to each other: once a step, before each pass, and behind."""
    sharded, nothing = kind.mode.sharded, 0 * among.devices * sizes.weights
    if among.link is None:
        return nothing, nothing, nothing
    if sharded is Sharded.NONE:
        return summed(instance, sizes.gradients, among), nothing, nothing
    if sharded is Sharded.OPTIMIZER:
        both = (_counted(sizes.gradients, sizes.updated), sizes.gradients + sizes.updated)
        return halves(instance, both, among), nothing, nothing
    added = halves(instance, (1, sizes.gradients), among)
    if sharded is Sharded.GRADIENTS:
        return halves(instance, (1, sizes.updated), among), nothing, added
    return nothing, halves(instance, (1, sizes.weights), among), added


def _counted(*sizes: Column) -> Column:
    """Return how many of these are not zero, cell by cell."""
    return np.sum([size != 0 for size in sizes], axis=0)


def _updating(instance: Instance, kind: GroupKind, sizes: ByteColumns, among: Among) -> Column:
    """Time to move gradients once, weights and the optimiser's state twice through the slowest memory."""
    known = {instance.device_classes[one].memory_bytes_per_second for one in kind.classes} - {0}
    if not known:
        return 0 * sizes.state
    times = instance.cost.roofline.update / instance.cost.roofline.memory
    speed = among.part[1] * (min(known) * times.denominator)
    size = (sizes.gradients + 2 * sizes.updated + 2 * sizes.state) * among.part[0]
    shared = among.devices if kind.mode.sharded.divides_optimizer else 1
    return -(-size * (NS_PER_SECOND * times.numerator) // (speed * shared))


def _through_host(instance: Instance, kind: GroupKind, sizes: ByteColumns, among: Among) -> Column:
    """Time to take gradients to the host and new weights back, of all or of a device's part of the optimiser."""
    parts = among.part[1] * (among.devices if kind.mode.sharded.divides_optimizer else 1)
    size, messages = sizes.gradients + sizes.updated, _counted(sizes.gradients, sizes.updated)
    links = {instance.device_classes[one].host_link for one in kind.classes}
    return reduce(np.maximum, (transfer(size * among.part[0], parts, messages, link) for link in links))


def halves(instance: Instance, sent: tuple[Column | int, Column], among: Among) -> Column:
    """Time of so many halves of sums over devices, of their part of so many bytes together."""
    number, size = sent[0], sent[1] * among.part[0]
    if instance.cost.all_reduce is AllReduce.RING:
        others, parts = among.devices - 1, among.devices * among.part[1]
        return transfer(others * size, parts, number * others, among.link)
    return transfer(size, 2 * among.part[1], number, among.link)


def summed(instance: Instance, size: Column, among: Among, sums: int = 1) -> Column:
    """Time to sum their part of so many bytes over devices, so many times in one go."""
    size = sums * size * among.part[0]
    if instance.cost.all_reduce is AllReduce.RING:
        others, parts = among.devices - 1, among.devices * among.part[1]
        return transfer(2 * others * size, parts, 2 * sums * others, among.link)
    return transfer(size, among.part[1], sums, among.link)
