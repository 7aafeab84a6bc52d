"""All cost numbers of an instance at once, as integer arrays: what solvers read instead of ``costs.times``.

Built in bulk with formulas written out a second time (coefficient tables over ``n * n`` instead of layouts that
are compared), so that a slip in one of the two shows: a test compares them cell by cell.
Cost: O(kinds x (layers + edges)) whole-number operations, done with Python integers, which cannot overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from formulation.costs.times import cut_bytes
from formulation.limits.deadline import NEVER, Deadline, in_time
from formulation.limits.size import refuse_above
from formulation.problem.groups import Group, GroupKind, group_kind, line_group, link_between, possible_groups
from formulation.problem.instance import Instance
from formulation.problem.layers import Layer, Split
from formulation.problem.magnitude import FORBIDDEN
from formulation.problem.options import AllReduce, Boundary, Synchronisation
from formulation.problem.units import BITS_PER_BYTE, NS_PER_SECOND, Link, ceil_div

__all__ = ["FORBIDDEN", "Tables", "Times", "all_tables", "build_tables", "line_groups", "possible_kinds"]

Times = NDArray[np.int64]

BYTES_A_CELL = 40
"""A number of eight bytes in an array, and while the array is made a number of Python."""

Coefficients = tuple[tuple[tuple[int, int], ...], ...]

NONE, ALL, SHIFT = (0, 0), (1, 0), (0, 1)
"""(a, b) for ``a * gather + b * turn`` of a tensor (``problem.shares``), in t - 1 messages on t devices."""
MATRIX_FORWARD: Coefficients = ((NONE, SHIFT, ALL), (NONE, NONE, NONE), (SHIFT, NONE, ALL))
MATRIX_BACKWARD: Coefficients = ((NONE, SHIFT, NONE), (ALL, ALL, NONE), (SHIFT, NONE, NONE))
"""By form of producer and consumer: how F turns forward and E backward (AccPar Table 5 with equal shares)."""
JOIN_FORWARD: Coefficients = ((NONE, ALL, SHIFT), (NONE, NONE, NONE), (SHIFT, ALL, NONE))
JOIN_BACKWARD: Coefficients = ((NONE, NONE, SHIFT), (ALL, NONE, ALL), (SHIFT, NONE, NONE))


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Times in ns of one micro-batch. G groups make K kinds; L distinct links join neighbouring groups.

    A row is a layer of the instance, or a run of layers where stages may be cut at some places only.
    ``kind_of[g]``: kind index of group g. ``compute[k, l]``: forward plus backward. ``inside[k, l, t]``:
    communication inside layer l under form t of the layer that decides its layout, FORBIDDEN where it has no
    such form. ``between[k, e, s, t]``: form edge e from form s to form t. ``activation[x, c]`` and
    ``gradient[x, c]``: what crosses cut c over link x, 0 at both ends of the model. ``deadline`` is that of the
    search that they were built for; tables that are built from these look at it too.
    """

    instance: Instance
    groups: tuple[Group, ...]
    kinds: tuple[GroupKind, ...]
    kind_of: tuple[int, ...]
    compute: Times
    inside: Times
    between: Times
    links: tuple[Link, ...]
    activation: Times
    gradient: Times
    deadline: Deadline = NEVER

    @property
    def rows(self) -> int:
        """How many layers, or runs of layers, the tables price."""
        return self.compute.shape[1]

    def link_index(self, one: int, other: int) -> int:
        """Return the index in ``links`` of the slowest link between two groups of different devices."""
        link = link_between(self.instance, self.groups[one], self.groups[other])
        if link is None:
            raise ValueError(f"groups {one} and {other} are the same device, which has no link to itself")
        return self.links.index(link)


def line_groups(instance: Instance) -> dict[tuple[int, int], Group]:
    """Return every group of the line by (first device, number of devices)."""
    total = instance.devices
    return {
        (first, count): line_group(instance, first, count)
        for first in range(total)
        for count in range(1, total - first + 1)
    }


def build_tables(instance: Instance, groups: tuple[Group, ...], deadline: Deadline = NEVER) -> Tables:
    """Price every layer, edge and cut on every kind of the given groups.

    Raises TooLargeError before it takes too much memory, and StoppedError once the deadline is over.
    """
    kinds_of_groups = _kinds_of(instance, groups, deadline)
    kinds = tuple(dict.fromkeys(kinds_of_groups))
    index = {kind: at for at, kind in enumerate(kinds)}
    links = _links(instance)
    _check_size(instance, len(kinds), len(links))
    return Tables(
        instance=instance,
        groups=groups,
        kinds=kinds,
        kind_of=tuple(index[kind] for kind in kinds_of_groups),
        compute=np.array([_compute(instance, kind) for kind in in_time(kinds, deadline)], dtype=np.int64),
        inside=np.array([_inside(instance, kind) for kind in in_time(kinds, deadline)], dtype=np.int64),
        between=np.array([_between(instance, kind) for kind in in_time(kinds, deadline)], dtype=np.int64).reshape(
            len(kinds), len(instance.form_edges), 3, 3
        ),
        links=links,
        activation=_crossing(instance, links, deadline, charged=instance.cost.boundary is not Boundary.NONE),
        gradient=_crossing(instance, links, deadline, charged=instance.cost.boundary is Boundary.BOTH),
        deadline=deadline,
    )


def _check_size(instance: Instance, kinds: int, links: int) -> None:
    cells = kinds * (4 * len(instance.layers) + 9 * len(instance.form_edges)) + 2 * links * len(instance.layers)
    refuse_above(
        f"times of {len(instance.layers)} layers on {kinds} kinds of device groups",
        BYTES_A_CELL * cells,
        "merge layers, or narrow constraints.devices_per_stage or constraints.max_servers",
    )


def all_tables(instance: Instance, deadline: Deadline = NEVER) -> Tables:
    """Price every layer, edge and cut on every group that a stage may run on.

    Raises ValueError as ``formulation.problem.groups.possible_groups`` does, and StoppedError once the deadline is
    over.
    """
    return build_tables(instance, possible_groups(instance, deadline), deadline)


def possible_kinds(instance: Instance) -> tuple[GroupKind, ...]:
    """Return the kinds of all groups that a stage may run on. Raises ValueError as :func:`all_tables`."""
    return tuple(dict.fromkeys(_kinds_of(instance, possible_groups(instance), NEVER)))


def _kinds_of(instance: Instance, groups: tuple[Group, ...], deadline: Deadline) -> list[GroupKind]:
    return [group_kind(instance, group) for group in in_time(groups, deadline)]


def _links(instance: Instance) -> tuple[Link, ...]:
    """Every link that can be the slowest between two groups: a smallest bandwidth with a largest latency."""
    known = [link for row in instance.links for link in row if link is not None]
    bandwidths = sorted({link.bits_per_second for link in known})
    latencies = sorted({link.latency_ns for link in known})
    return tuple(Link(bits, latency) for bits in bandwidths for latency in latencies)


def _transfer(numerator: int, denominator: int, messages: int, link: Link) -> int:
    """Time of ``numerator / denominator`` bytes over a link."""
    if numerator == 0:
        return 0
    time = ceil_div(numerator * BITS_PER_BYTE * NS_PER_SECOND, denominator * link.bits_per_second)
    return time + messages * link.latency_ns


def _compute(instance: Instance, kind: GroupKind) -> list[int]:
    runs, rows = 2 if kind.recompute else 1, []
    for one, share in zip(kind.classes, kind.shares.by_class, strict=True):
        part, whole = share.numerator, share.denominator
        pairs = list(zip(instance.forward_ns[one], instance.backward_ns[one], strict=True))
        times = {pair: runs * -(-pair[0] * part // whole) - (-pair[1] * part // whole) for pair in set(pairs)}
        rows.append([times[pair] for pair in pairs])
    return [max(column) for column in zip(*rows, strict=True)]


def _inside(instance: Instance, kind: GroupKind) -> list[list[int]]:
    """Price layers that are alike once: deep networks repeat themselves."""
    known: dict[tuple[Split, tuple[int, ...], int, int, int], list[int]] = {}
    rows: list[list[int]] = []
    for at, layer in enumerate(instance.layers):
        sizes = (instance.gradient_bytes[at], instance.output_bytes[at], instance.input_bytes[at])
        key = (layer.split, layer.allowed_forms, *sizes)
        if key not in known:
            known[key] = _inside_row(instance, kind, layer, sizes)
        rows.append(known[key])
    return rows


def _inside_row(instance: Instance, kind: GroupKind, layer: Layer, sizes: tuple[int, int, int]) -> list[int]:
    t, d, runs = kind.tensor_parallel_degree, kind.replicas, 2 if kind.recompute else 1
    shard, replica, full = kind.shares.shard, kind.shares.replica, Fraction(1)
    weights, made, taken = sizes
    row = [_sync(instance, kind, weights, t * d, full)]
    if t == 1:
        return [*row, FORBIDDEN, FORBIDDEN]
    matrix = layer.split is Split.MATRIX
    row.append(_sync(instance, kind, weights, d, shard if matrix else full))
    row.append(_sync(instance, kind, weights, d, shard))
    if matrix:
        row[1] += runs * _summed(instance, kind.inner, made, t, replica)
        row[2] += _summed(instance, kind.inner, taken, t, replica)
    if layer.split is Split.FOLLOW:
        return row
    return [time if form in layer.allowed_forms else FORBIDDEN for form, time in enumerate(row)]


def _summed(instance: Instance, link: Link | None, size: int, devices: int, part: Fraction) -> int:
    """Time to sum a part of so many bytes over so many devices."""
    if link is None or devices == 1:
        return 0
    size, parts = size * part.numerator, part.denominator
    if instance.cost.all_reduce is AllReduce.RING:
        return _transfer(2 * (devices - 1) * size, devices * parts, 2 * (devices - 1), link)
    return _transfer(size, parts, 1, link)


def _sync(instance: Instance, kind: GroupKind, weights: int, devices: int, part: Fraction) -> int:
    """Time per micro-batch to sum the gradients of a part of the weights over so many devices once a step."""
    if instance.cost.synchronisation is Synchronisation.OVERLAPPED:
        return 0
    return -(-_summed(instance, kind.link, weights, devices, part) // instance.training.micro_batches)


def _between(instance: Instance, kind: GroupKind) -> list[list[list[int]]]:
    if kind.inner is None:
        return [[[0] * 3] * 3] * len(instance.form_edges)
    known: dict[tuple[bool, int], list[list[int]]] = {}
    rows: list[list[list[int]]] = []
    for edge in instance.form_edges:
        key = (instance.layers[edge.consumer].split is Split.MATRIX, edge.size_bytes)
        if key not in known:
            known[key] = _changes(kind, kind.inner, *key)
        rows.append(known[key])
    return rows


def _changes(kind: GroupKind, link: Link, matrix: bool, size: int) -> list[list[int]]:
    """Return the times to change the layout of a tensor, by form of producer and consumer."""
    t, runs = kind.tensor_parallel_degree, 2 if kind.recompute else 1
    gather, turn = kind.shares.gather, kind.shares.turn
    forward, backward = (MATRIX_FORWARD, MATRIX_BACKWARD) if matrix else (JOIN_FORWARD, JOIN_BACKWARD)
    times = [[0] * 3 for _ in range(3)]
    for source in range(3):
        for form in range(3):
            (a, b), (c, e) = forward[source][form], backward[source][form]
            part = (runs * a + c) * gather + (runs * b + e) * turn
            messages = (runs * (a + b) + c + e) * (t - 1)
            times[source][form] = _transfer(size * part.numerator, part.denominator, messages, link)
    return times


def _crossing(instance: Instance, links: tuple[Link, ...], deadline: Deadline, *, charged: bool) -> Times:
    total = len(instance.layers)
    times = np.zeros((len(links), total + 1), dtype=np.int64)
    if charged:
        sizes = [cut_bytes(instance, cut) for cut in range(1, total)]
        for at, link in enumerate(in_time(links, deadline)):
            times[at, 1:total] = [_transfer(size, 1, 1, link) for size in sizes]
    return times
