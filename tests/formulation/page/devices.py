"""docs/formulation.md, "Devices of a stage", "Shares", and grids: links of a stage, parts of its devices."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from math import floor
from typing import TYPE_CHECKING

from formulation.problem.options import Sharing
from tests.formulation.page.numbers import Link, Numbers, slowest

if TYPE_CHECKING:
    from formulation.problem.plan import Stage


@dataclass(frozen=True)
class Shares:
    """The largest part of the work, and of tensors, of any device."""

    device: Fraction
    replica: Fraction
    gather: Fraction
    turn: Fraction
    shard: Fraction


def rows(grid: int, degree: int, replicas: int) -> list[list[int]]:
    """The devices of a row each, over all replicas."""
    return [list(range(at, at + grid)) for at in range(0, degree * replicas, grid)]


def places(grid: int, degree: int, replicas: int) -> list[list[int]]:
    """The devices each with the same place in the rows of a replica."""
    starts = [(replica * degree + at) for replica in range(replicas) for at in range(grid)]
    return [[start + grid * row for row in range(degree // grid)] for start in starts]


class Devices:
    """The devices of a stage, in its mode."""

    def __init__(self, numbers: Numbers, stage: Stage) -> None:
        self.numbers = numbers
        self.servers = [server for server, count in sorted(stage.group.counts) for _ in range(count)]
        """The server of each device, in server order."""
        self.replicas, self.grid = stage.group.replicas, stage.group.mode.grid
        self.degree = len(self.servers) // self.replicas

    @cached_property
    def all_link(self) -> Link | None:
        rings = {server: min(self.degree, self.servers.count(server)) for server in self.servers}
        return self._slowest_in(self.servers, rings)

    @cached_property
    def inner_link(self) -> Link | None:
        return self._slowest_of(self._replicas(list(range(len(self.servers)))))

    @cached_property
    def grid_links(self) -> list[Link | None]:
        """y_1 and y_2."""
        sizes = self.grid, self.degree, self.replicas
        return [self._slowest_of(rows(*sizes)), self._slowest_of(places(*sizes))]

    def _slowest_of(self, among: list[list[int]]) -> Link | None:
        """The slowest link inside any of these sets of devices, which sum at the same time."""
        held = [[self.servers[device] for device in row] for row in among]
        spread = [set(row) for row in held if len(set(row)) > 1]
        rings = {server: sum(server in one for one in spread) for server in self.servers}
        found = [self._slowest_in(row, rings) for row in held]
        return slowest([link for link in found if link is not None])

    def adapters(self, server: int) -> int:
        """k_v: how many adapters of a server the devices of the stage have."""
        one = self.numbers.servers[server]
        return max(1, one.adapters * self.servers.count(server) // one.devices)

    def _part(self, v: int, rings: dict[int, int]) -> Fraction:
        return Fraction(self.adapters(v), rings[v]) if self.numbers.servers[v].adapters else Fraction(1)

    def _slowest_in(self, servers: list[int], rings: dict[int, int]) -> Link | None:
        found: list[Link] = []
        for one, two in combinations(servers, 2):
            if (one, two) in self.numbers.links:
                bandwidth, latency = self.numbers.links[one, two]
                part = min(self._part(v, rings) for v in {one, two}) if one != two else 1
                found.append((max(1, floor(bandwidth * part)), latency))
        return slowest(found)

    @cached_property
    def lanes(self) -> int:
        if not all(self.numbers.servers[server].adapters for server in self.servers):
            return 1
        rows = {server: Fraction(0) for server in self.servers}
        for server, one in zip(self.servers, self.parts, strict=True):
            rows[server] += one
        return min(floor(self.adapters(server) / rows[server]) for server in rows)

    def _replicas(self, row: list) -> list[list]:
        return [row[at : at + self.degree] for at in range(0, len(row), self.degree)]

    @cached_property
    def parts(self) -> list[Fraction]:
        """sigma of each device."""
        classes = [self.numbers.servers[server].device_class for server in self.servers]
        if self.numbers.cost.sharing is Sharing.EQUAL or self.grid > 1 or len({one.name for one in classes}) == 1:
            return [Fraction(1, len(classes))] * len(classes)
        return [Fraction(one.flops_per_second, sum(two.flops_per_second for two in classes)) for one in classes]

    @cached_property
    def shares(self) -> Shares:
        of_replica = [sum(row, Fraction(0)) for row in self._replicas(self.parts)]
        pairs = [(part, of_replica[at // self.degree]) for at, part in enumerate(self.parts)]
        return Shares(
            device=max(self.parts),
            replica=max(of_replica),
            gather=max(whole - part for part, whole in pairs),
            turn=max(part * (whole - part) / whole for part, whole in pairs),
            shard=max(part / whole for part, whole in pairs),
        )
