"""All cost numbers of an instance at once, as integer arrays: what solvers read instead of ``formulation.times``.

Built in bulk with formulas written out a second time (coefficient tables over ``n * n`` instead of layouts that
are compared), so that a slip in one of the two shows: a test compares them cell by cell.
Cost: O(kinds x (layers + edges)) whole-number operations, done with Python integers, which cannot overflow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulation.groups import Group, GroupKind, group_kind, line_group, link_between
from formulation.instance import Instance
from formulation.layers import Split
from formulation.options import AllReduce, Boundary
from formulation.times import cut_bytes
from formulation.units import BITS_PER_BYTE, NS_PER_SECOND, Link, ceil_div

Times = NDArray[np.int64]

FORBIDDEN = 1 << 56
"""Time of a form that a layer cannot take: larger than any real time, small enough that sums fit 64 bits."""

Coefficients = tuple[tuple[tuple[int, int, int], ...], ...]

MATRIX_CHANGE: Coefficients = (
    ((0, 0, 0), (0, 2, 2), (1, 0, 1)),
    ((1, 0, 1), (1, 0, 1), (0, 0, 0)),
    ((0, 2, 2), (0, 0, 0), (1, 0, 1)),
)
"""By form of producer and consumer: (a, b, m) for ``(a * n + b) * (n - 1) / n**2`` of a tensor in
``m * (n - 1)`` messages (AccPar Table 5 with equal shares)."""
JOIN_CHANGE: Coefficients = (
    ((0, 0, 0), (1, 0, 1), (0, 2, 2)),
    ((1, 0, 1), (0, 0, 0), (1, 0, 1)),
    ((0, 2, 2), (1, 0, 1), (0, 0, 0)),
)


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Times in ns of one micro-batch. G groups make K kinds; L distinct links join neighbouring groups.

    ``kind_of[g]``: kind index of group g. ``compute[k, l]``: forward plus backward. ``inside[k, l, t]``:
    communication inside layer l under form t of the layer that decides its layout, FORBIDDEN where it has no
    such form. ``between[k, e, s, t]``: form edge e from form s to form t. ``activation[x, c]`` and
    ``gradient[x, c]``: what crosses cut c over link x, 0 at both ends of the model.
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


def build_tables(instance: Instance, groups: tuple[Group, ...]) -> Tables:
    """Price every layer, edge and cut on every kind of the given groups."""
    kinds_of_groups = [group_kind(instance, group) for group in groups]
    kinds = tuple(dict.fromkeys(kinds_of_groups))
    index = {kind: at for at, kind in enumerate(kinds)}
    links = _links(instance)
    return Tables(
        instance=instance,
        groups=groups,
        kinds=kinds,
        kind_of=tuple(index[kind] for kind in kinds_of_groups),
        compute=np.array([_compute(instance, kind) for kind in kinds], dtype=np.int64),
        inside=np.array([_inside(instance, kind) for kind in kinds], dtype=np.int64),
        between=np.array([_between(instance, kind) for kind in kinds], dtype=np.int64).reshape(
            len(kinds), len(instance.form_edges), 3, 3
        ),
        links=links,
        activation=_crossing(instance, links, charged=instance.cost.boundary is not Boundary.NONE),
        gradient=_crossing(instance, links, charged=instance.cost.boundary is Boundary.BOTH),
    )


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
    pairs = [(instance.forward_ns[one], instance.backward_ns[one]) for one in kind.classes]
    n = kind.devices
    return [
        max(-(-forward[layer] // n) - (-backward[layer] // n) for forward, backward in pairs)
        for layer in range(len(instance.layers))
    ]


def _inside(instance: Instance, kind: GroupKind) -> list[list[int]]:
    n, link = kind.devices, kind.link
    if link is None:
        return [[0, FORBIDDEN, FORBIDDEN]] * len(instance.layers)
    ring = instance.cost.all_reduce is AllReduce.RING
    factor, messages, divisor = (2 * (n - 1), 2 * (n - 1), n) if ring else (1, 1, 1)
    steps = instance.training.micro_batches
    rows: list[list[int]] = []
    for at, layer in enumerate(instance.layers):
        sync = -(-_transfer(factor * instance.parameter_bytes[at], divisor, messages, link) // steps)
        row = [sync, 0, 0]
        if layer.split is Split.MATRIX:
            row[1] = _transfer(factor * instance.output_bytes[at], divisor, messages, link)
            row[2] = _transfer(factor * instance.input_bytes[at], divisor, messages, link)
        if layer.split is not Split.FOLLOW:
            row = [time if form in layer.allowed_forms else FORBIDDEN for form, time in enumerate(row)]
        rows.append(row)
    return rows


def _between(instance: Instance, kind: GroupKind) -> list[list[list[int]]]:
    n, link = kind.devices, kind.link
    if link is None:
        return [[[0] * 3] * 3] * len(instance.form_edges)
    rows: list[list[list[int]]] = []
    for edge in instance.form_edges:
        matrix = instance.layers[edge.consumer].split is Split.MATRIX
        rows.append(
            [
                [_transfer(edge.size_bytes * (a * n + b) * (n - 1), n * n, m * (n - 1), link) for a, b, m in row]
                for row in (MATRIX_CHANGE if matrix else JOIN_CHANGE)
            ]
        )
    return rows


def _crossing(instance: Instance, links: tuple[Link, ...], *, charged: bool) -> Times:
    total = len(instance.layers)
    times = np.zeros((len(links), total + 1), dtype=np.int64)
    if charged:
        sizes = [cut_bytes(instance, cut) for cut in range(1, total)]
        for at, link in enumerate(links):
            times[at, 1:total] = [_transfer(size, 1, 1, link) for size in sizes]
    return times
