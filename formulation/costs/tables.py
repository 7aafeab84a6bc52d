"""All cost numbers of an instance at once, as integer arrays: what solvers read instead of ``costs.times``.

Built in bulk with formulas written out a second time (coefficients by pairs of letters instead of layouts that are
compared), so that a slip in one of the two shows: a test compares them cell by cell.
Cost: O(kinds x (layers + edges)) whole-number operations, done with Python integers, which cannot overflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.bulk.alike import number_of_forms
from pipecut.formulation.costs.bulk.changes import between_of
from pipecut.formulation.costs.bulk.columns import column, transfer
from pipecut.formulation.costs.bulk.computing import computing_of
from pipecut.formulation.costs.bulk.crossing import crossing_bytes
from pipecut.formulation.costs.bulk.inside import copies_of, inside_of
from pipecut.formulation.limits import NEVER, Deadline, TooLargeError, in_time
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.options import Boundary
from pipecut.formulation.problem.shares import lanes, same_servers
from pipecut.formulation.problem.units import Link

Times = NDArray[np.int64]

BYTES_A_CELL = 40
"""A number of eight bytes in an array, and while the array is made a number of Python."""


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Times in ns of one micro-batch. G groups make K kinds; L distinct links join neighbouring groups.

    A row is a layer of the instance, or a run of layers where stages may be cut at some places only.
    ``kind_of[g]``: kind index of group g. ``compute[k, l]``: forward plus backward. ``inside[k, l, t]``:
    communication inside layer l under form t of the layer that decides its layout, FORBIDDEN where it has no
    such form; ``each`` the same without what is done once a step. ``between[k, e, s, t]``: form edge e from form s
    to form t. ``activation[x, c]`` and ``gradient[x, c]``: what crosses cut c over link x, 0 at both ends of the
    model. ``deadline`` is that of the search that they were built for; tables that are built from these look at it
    too. ``copies[e, l][k, t]`` is what layer l takes beside ``inside`` in a stage that starts behind layer e, of
    whose weights it has a copy, and ``copies_each`` beside ``each``.
    """

    instance: Instance
    groups: tuple[Group, ...]
    kinds: tuple[GroupKind, ...]
    kind_of: tuple[int, ...]
    compute: Times
    inside: Times
    each: Times
    between: Times
    links: tuple[Link, ...]
    activation: Times
    gradient: Times
    deadline: Deadline = NEVER
    copies: Mapping[tuple[int, int], Times] = field(default_factory=dict)
    copies_each: Mapping[tuple[int, int], Times] = field(default_factory=dict)

    def own(self, kind: int, layer: int, first: int) -> Times:
        """Return by form what happens inside a layer of a stage that starts at layer ``first``."""
        copy = self.instance.copied(layer, first)
        row = self.inside[kind, layer]
        return row if copy is None else row + self.copies[copy.earlier, layer][kind]

    def recomputing(self) -> dict[int, int]:
        """Return, for kinds whose stages may compute single blocks again, the kind that prices layers of these."""
        if not self.instance.constraints.recompute.by_blocks:
            return {}
        index = {kind: at for at, kind in enumerate(self.kinds)}
        whole = {at: replace(kind, mode=replace(kind.mode, recompute=True)) for kind, at in index.items()}
        return {at: index[kind] for at, kind in whole.items() if index.get(kind, at) != at}

    @property
    def rows(self) -> int:
        """How many layers, or runs of layers, the tables price."""
        return self.compute.shape[1]

    def moves(self, layer: int) -> bool:
        """Tell whether a layer takes time beside ``compute`` in some form, on some kind of group."""
        row, copy = self.inside[:, layer], self.instance.copies[layer]
        copied = copy is not None and bool(self.copies[copy.earlier, layer].any())
        return copied or bool(((row > 0) & (row < FORBIDDEN)).any())

    def link_index(self, one: int, other: int) -> int:
        """Return the index in ``links`` of the slowest link between two groups of different devices."""
        link = Group.link_between(self.instance, self.groups[one], self.groups[other])
        if link is None:
            raise ValueError(f"groups {one} and {other} are the same device, which has no link to itself")
        return self.links.index(link)


def line_groups(instance: Instance) -> dict[tuple[int, int], Group]:
    """Return every group of the line by (first device, number of devices)."""
    total = instance.devices
    return {
        (first, count): Group.on_line(instance, first, count)
        for first in range(total)
        for count in range(1, total - first + 1)
    }


def build_tables(instance: Instance, groups: tuple[Group, ...], deadline: Deadline = NEVER) -> Tables:
    """Price every layer, edge and cut on every kind of the given groups.

    Raises TooLargeError before it takes too much memory, and StoppedError once the deadline is over.
    """
    kinds_of_groups = GroupKind.all_of(instance, in_time(groups, deadline))
    # Where no stage may compute all of itself again, kinds of stages that would price what blocks do.
    asked, named = instance.constraints.recompute, bool(instance.constraints.recompute_layers)
    again = kinds_of_groups if asked.by_blocks and True not in asked.of_stages(named=named) else ()
    priced = (replace(kind, mode=replace(kind.mode, recompute=True)) for kind in again)
    kinds = tuple(dict.fromkeys((*kinds_of_groups, *priced)))
    index = {kind: at for at, kind in enumerate(kinds)}
    links = _links(instance, groups)
    _check_size(instance, len(kinds), len(links))
    compute, more = computing_of(instance, kinds, deadline)
    inside, each = inside_of(instance, kinds, deadline)
    copies = copies_of(instance, kinds, deadline)
    return Tables(
        instance=instance,
        groups=groups,
        kinds=kinds,
        kind_of=tuple(index[kind] for kind in kinds_of_groups),
        compute=compute,
        inside=inside + more,
        each=each + more,
        between=between_of(instance, kinds, deadline),
        links=links,
        activation=_crossing(instance, links, deadline, charged=instance.cost.boundary is not Boundary.NONE),
        gradient=_crossing(instance, links, deadline, charged=instance.cost.boundary is Boundary.BOTH),
        deadline=deadline,
        copies={ends: charged for ends, (charged, _) in copies.items()},
        copies_each={ends: passed for ends, (_, passed) in copies.items()},
    )


def _check_size(instance: Instance, kinds: int, links: int) -> None:
    layers, forms = len(instance.layers), number_of_forms(instance.layers)
    cells = kinds * ((1 + forms) * layers + forms**2 * len(instance.form_edges)) + 2 * links * layers
    TooLargeError.refuse_above(
        f"times of {len(instance.layers)} layers on {kinds} kinds of device groups",
        BYTES_A_CELL * cells,
        "merge layers, or narrow constraints.devices_per_stage or constraints.max_servers",
    )


def all_tables(instance: Instance, deadline: Deadline = NEVER) -> Tables:
    """Price every layer, edge and cut on every group that a stage may run on.

    Raises ValueError as ``formulation.problem.groups.Group.possible`` does, and StoppedError once the deadline is
    over.
    """
    return build_tables(instance, Group.possible(instance, deadline), deadline)


def possible_kinds(instance: Instance) -> tuple[GroupKind, ...]:
    """Return the kinds of all groups that a stage may run on. Raises ValueError as :func:`all_tables`."""
    return tuple(dict.fromkeys(GroupKind.all_of(instance, Group.possible(instance))))


def _links(instance: Instance, groups: tuple[Group, ...]) -> tuple[Link, ...]:
    """Every link that can join two groups: a smallest bandwidth with a largest latency, and fewest adapters."""
    # Of servers that are alike, one has the links of all.
    some = (instance.links[row[0]] for row in same_servers(instance))
    known = {link for row in some for link in row if link is not None}
    numbers = {1} | {lanes(instance, counts) for counts in {group.counts for group in groups}}
    bandwidths = sorted({link.bits_per_second * number for link in known for number in numbers})
    latencies = sorted({link.latency_ns for link in known})
    return tuple(Link(bits, latency) for bits in bandwidths for latency in latencies)


def _crossing(instance: Instance, links: tuple[Link, ...], deadline: Deadline, *, charged: bool) -> Times:
    total = len(instance.layers)
    times = np.zeros((len(links), total + 1), dtype=np.int64)
    if charged:
        sizes = column(crossing_bytes(instance)[1:total])
        for at, link in enumerate(in_time(links, deadline)):
            times[at, 1:total] = transfer(sizes, 1, 1, link)
    return times
