"""What stages pay for what they receive (``BoundaryCharge.RECEIVER``): activations in front, gradients behind.

What a boundary takes depends on its link, and so on the groups at both of its ends. A group that leaves no device
of its only server, or has several servers, is joined by no link that is better than those between servers; so each
kind has charges that it pays at least. Where links pay, nobody is charged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.options import BoundaryCharge
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.shares import lanes


@dataclass(frozen=True, slots=True)
class Charges:
    """What a boundary over link x before place i costs: ``front[x, i]`` who receives, ``back[x, i]`` who sent.

    ``near`` are the kinds of which some group may be joined by a link inside a server, ``far`` the links that may
    join servers.
    """

    tables: Tables
    front: Times
    back: Times
    near: frozenset[int]
    far: tuple[int, ...]

    @property
    def none(self) -> Times:
        """By place, nothing."""
        return np.zeros(self.front.shape[1], dtype=np.int64)

    @classmethod
    def of(cls, tables: Tables, space: CutSpace) -> Charges:
        """Return the charges at the places of a cut space."""
        instance, places = tables.instance, list(space.places)
        pay = instance.cost.boundary_charge is BoundaryCharge.RECEIVER
        some = {
            kind
            for group, kind in zip(tables.groups, tables.kind_of, strict=True)
            for server, count in group.counts[:1]
            if len(group.counts) == 1 and count < instance.servers[server].devices
        }
        return cls(
            tables,
            tables.activation[:, places] * pay,
            tables.gradient[:, places] * pay,
            frozenset(some),
            tuple(_between_servers(tables)),
        )

    def least(self, kind: int) -> tuple[Times, Times]:
        """Return by place what a stage of a kind pays in front and behind at least."""
        links = slice(None) if kind in self.near or not self.far else list(self.far)
        front, back = self.front[links], self.back[links]
        return (front.min(axis=0), back.min(axis=0)) if len(front) else (self.none, self.none)

    def dearer(self, kind: int) -> Iterator[tuple[int | None, int | None, tuple[Times, Times]]]:
        """Yield links in front and behind, None for any, with what they make a stage pay: more than the least."""
        front, back = self.least(kind)
        ways = [
            [(None, least), *((x, row) for x, row in enumerate(np.maximum(rows, least)) if (row > least).any())]
            for least, rows in ((front, self.front), (back, self.back))
        ]
        for x, paid in ways[0]:
            for y, given in ways[1]:
                if x is not None or y is not None:
                    yield x, y, (paid, given)

    def left(self, plan: Plan, threshold_ns: int) -> list[int]:
        """Return what each stage of a plan of places may take itself, to keep a threshold with what it pays."""
        index = {group: at for at, group in enumerate(self.tables.groups)}
        found = [threshold_ns] * len(plan)
        for at in range(1, len(plan) if self.front.any() or self.back.any() else 0):
            before, behind = plan.stages[at - 1], plan.stages[at]
            link = self.tables.link_index(index[before.group], index[behind.group])
            found[at] -= int(self.front[link, behind.span.first])
            found[at - 1] -= int(self.back[link, behind.span.first])
        return found


def _between_servers(tables: Tables) -> Iterator[int]:
    """Yield the links that are no better than the best one between two servers."""
    instance = tables.instance
    across = [
        link
        for server, row in enumerate(instance.links)
        for other, link in enumerate(row)
        if server != other and link is not None
    ]
    if across:
        most = max(link.bits_per_second for link in across) * max(
            lanes(instance, counts) for counts in {group.counts for group in tables.groups}
        )
        latency = min(link.latency_ns for link in across)
        for x, link in enumerate(tables.links):
            if link.bits_per_second <= most and link.latency_ns >= latency:
                yield x
