"""docs/formulation.md, "Devices of a stage", "Shares", and grids: links of a stage, parts of its devices."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from math import ceil, floor
from typing import TYPE_CHECKING

from pipecut.formulation.problem.layers import Axis
from pipecut.formulation.problem.options import Samples, Sharing
from tests.formulation.page.numbers import Link, Numbers, slowest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipecut.formulation.problem.plan import Stage


@dataclass(frozen=True)
class Shares:
    """The largest part of the work, and of tensors, of any device: by rows, and by anything else."""

    device: Fraction
    replica: Fraction
    gather: Fraction
    turn: Fraction
    gather_rows: Fraction
    turn_rows: Fraction
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
        for server, one in zip(self.servers, self.speeds, strict=True):
            rows[server] += one
        return min(floor(self.adapters(server) / rows[server]) for server in rows)

    def _replicas(self, row: list) -> list[list]:
        return [row[at : at + self.degree] for at in range(0, len(row), self.degree)]

    @cached_property
    def speeds(self) -> list[Fraction]:
        """phi of each device."""
        classes = [self.numbers.servers[server].device_class for server in self.servers]
        if self.numbers.cost.sharing is Sharing.EQUAL or self.grid > 1 or len({one.name for one in classes}) == 1:
            return [Fraction(1, len(classes))] * len(classes)
        return [Fraction(one.flops_per_second, sum(two.flops_per_second for two in classes)) for one in classes]

    @cached_property
    def samples(self) -> list[Fraction]:
        """m Sigma of the replica of each device."""
        m = Fraction(self.numbers.training.global_batch, self.numbers.training.micro_batches)
        each = [m * sum(row, Fraction(0)) for row in self._replicas(self.speeds)]
        whole = self.numbers.cost.samples is Samples.WHOLE
        return [Fraction(ceil(one)) if whole else one for one in each for _ in range(self.degree)]

    @cached_property
    def whole_rows(self) -> bool:
        """Whether every row is of a whole sample."""
        sequences = {Axis.SEQUENCE, Axis.CONTEXT} & set(self.numbers.constraints.splits)
        return self.numbers.cost.samples is Samples.WHOLE and not sequences

    @cached_property
    def widths(self) -> list[Fraction]:
        """The part of its replica's columns of each device."""
        sums = [sum(row, Fraction(0)) for row in self._replicas(self.speeds)]
        return [one / sums[at // self.degree] for at, one in enumerate(self.speeds)]

    def _of_samples(self, rounded: Callable[[Fraction], int]) -> list[Fraction]:
        """The samples of each device over m, rounded where they are whole."""
        m = Fraction(self.numbers.training.global_batch, self.numbers.training.micro_batches)
        each = [own * width for own, width in zip(self.samples, self.widths, strict=True)]
        return [(rounded(one) if self.whole_rows else one) / m for one in each]

    @cached_property
    def rows(self) -> list[Fraction]:
        """sigma of each device, of what lies by rows."""
        return self._of_samples(ceil)

    @cached_property
    def parts(self) -> list[Fraction]:
        """sigma of each device, of all else."""
        m = Fraction(self.numbers.training.global_batch, self.numbers.training.micro_batches)
        return [own * width / m for own, width in zip(self.samples, self.widths, strict=True)]

    @cached_property
    def shares(self) -> Shares:
        m = Fraction(self.numbers.training.global_batch, self.numbers.training.micro_batches)
        replicas = [one / m for one in self.samples]
        return Shares(
            device=max(self.parts),
            replica=max(replicas),
            gather=max(whole - part for part, whole in zip(self.parts, replicas, strict=True)),
            turn=max(part * (1 - width) for part, width in zip(self.parts, self.widths, strict=True)),
            gather_rows=max(whole - part for part, whole in zip(self._of_samples(floor), replicas, strict=True)),
            turn_rows=max(part * (1 - width) for part, width in zip(self.rows, self.widths, strict=True)),
            shard=max(self.widths),
        )
