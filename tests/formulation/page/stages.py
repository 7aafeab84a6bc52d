"""docs/formulation.md from "Devices of a stage" to "Time of a stage": what a stage takes, for one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from math import ceil

from formulation.problem.layers import Split
from formulation.problem.options import Boundary, BoundaryCharge, Sharing, StageTime, Synchronisation
from formulation.problem.plan import Plan
from tests.formulation.page.numbers import Link, Numbers, slowest, transfer_ns

ROWS, WHOLE, COLUMNS = "rows", "whole", "columns"
MADE = {0: ROWS, 1: WHOLE, 2: COLUMNS}
TAKEN = {0: ROWS, 1: COLUMNS, 2: WHOLE}


@dataclass(frozen=True)
class Shares:
    """The largest part of the work, and of tensors, of any device."""

    device: Fraction
    replica: Fraction
    gather: Fraction
    turn: Fraction
    shard: Fraction


class PricedStage:
    """Stage ``index`` of a plan."""

    def __init__(self, numbers: Numbers, plan: Plan, index: int) -> None:
        self.numbers, self.plan, self.index = numbers, plan, index
        stage = plan.stages[index]
        self.first, self.stop = stage.span.first, stage.span.stop
        self.layers = range(self.first, self.stop)
        self.servers = [server for server, count in sorted(stage.group.counts) for _ in range(count)]
        """The server of each device, in server order."""
        self.replicas = stage.group.replicas
        self.degree = len(self.servers) // self.replicas
        self.again = 1 if stage.group.recompute else 0
        self.forms = dict(zip(self.layers, stage.forms, strict=True))

    @cached_property
    def all_link(self) -> Link | None:
        return self._slowest_in(self.servers)

    @cached_property
    def inner_link(self) -> Link | None:
        found = [self._slowest_in(replica) for replica in self._replicas(self.servers)]
        return slowest([link for link in found if link is not None])

    def _slowest_in(self, servers: list[int]) -> Link | None:
        links = self.numbers.links
        return slowest([links[pair] for pair in combinations(servers, 2) if pair in links])

    def _replicas(self, row: list) -> list[list]:
        return [row[at : at + self.degree] for at in range(0, len(row), self.degree)]

    @cached_property
    def parts(self) -> list[Fraction]:
        """sigma of each device."""
        classes = [self.numbers.servers[server].device_class for server in self.servers]
        if self.numbers.cost.sharing is Sharing.EQUAL or len({one.name for one in classes}) == 1:
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

    @cached_property
    def compute_ns(self) -> int:
        return sum(self._compute_ns(layer) for layer in self.layers)

    def _compute_ns(self, layer: int) -> int:
        return max(
            (1 + self.again) * ceil(part * self.numbers.forward_ns(layer, server))
            + ceil(part * self.numbers.backward_ns(layer, server))
            for part, server in zip(self.parts, self.servers, strict=True)
        )

    def source(self, layer: int) -> int | None:
        if self.numbers.layers[layer].split is not Split.FOLLOW:
            return layer
        producers = [u for u, v, _ in self.numbers.edges if v == layer]
        return self.source(producers[0]) if producers else None

    def form(self, layer: int) -> int:
        source = self.source(layer)
        return self.forms[source] if source is not None and source in self.layers else 0

    @cached_property
    def inside_ns(self) -> int:
        return sum(self._passes_ns(layer) + self._charged_ns(layer) for layer in self.layers)

    def _passes_ns(self, layer: int) -> int:
        numbers, form = self.numbers, self.form(layer)
        if form == 0 or numbers.layers[layer].split is not Split.MATRIX:
            return 0
        if form == 1:
            once = numbers.sum_ns(self.shares.replica * numbers.made[layer], self.degree, self.inner_link)
            return (1 + self.again) * once
        return numbers.sum_ns(self.shares.replica * numbers.taken[layer], self.degree, self.inner_link)

    def _charged_ns(self, layer: int) -> int:
        if self.numbers.cost.synchronisation is Synchronisation.OVERLAPPED:
            return 0
        return ceil(Fraction(self._sync_ns(layer), self.numbers.training.micro_batches))

    def _sync_ns(self, layer: int) -> int:
        numbers, form = self.numbers, self.form(layer)
        weights = numbers.gradients[layer]
        if form == 0:
            return numbers.sum_ns(weights, len(self.servers), self.all_link)
        if form == 1 and numbers.layers[layer].split is not Split.MATRIX:
            return numbers.sum_ns(weights, self.replicas, self.all_link)
        return numbers.sum_ns(self.shares.shard * weights, self.replicas, self.all_link)

    @cached_property
    def between_ns(self) -> int:
        return sum(self._between_ns(u, v, size) for u, v, size in self.numbers.edges if v in self.layers)

    def _between_ns(self, u: int, v: int, size: int) -> int:
        split, source = self.numbers.layers[v].split, self.source(u)
        if split is Split.FOLLOW or source is None or source not in self.layers:
            return 0
        have = MADE[self.forms[source]]
        want = (TAKEN if split is Split.MATRIX else MADE)[self.forms[v]]
        there, back = self._change(have, want, size), self._change(want, have, size)
        messages = (self.degree - 1) * ((1 + self.again) * (there > 0) + (back > 0))
        return transfer_ns((1 + self.again) * there + back, messages, self.inner_link)

    def _change(self, have: str, want: str, size: int) -> Fraction:
        if have in (want, WHOLE):
            return Fraction(0)
        return size * (self.shares.gather if want == WHOLE else self.shares.turn)

    @cached_property
    def activation_ns(self) -> int:
        charged = self.numbers.cost.boundary in (Boundary.ACTIVATION, Boundary.BOTH)
        return self._crossing_ns() if self.index > 0 and charged else 0

    @cached_property
    def gradient_ns(self) -> int:
        return self._crossing_ns() if self.index > 0 and self.numbers.cost.boundary is Boundary.BOTH else 0

    def _crossing_ns(self) -> int:
        before = PricedStage(self.numbers, self.plan, self.index - 1)
        pairs = [(one, two) for one in before.servers for two in self.servers]
        link = slowest([self.numbers.links[pair] for pair in pairs if pair in self.numbers.links])
        return transfer_ns(self.crossing_bytes, 1, link)

    @cached_property
    def crossing_bytes(self) -> int:
        """What crosses the cut before the stage."""
        sent: dict[int, int] = {}
        for u, v, size in self.numbers.edges:
            if u < self.first <= v:
                sent[u] = sent.get(u, 0) + size
        return sum(min(size, self.numbers.made[u]) for u, size in sent.items())

    @cached_property
    def boundary_ns(self) -> int:
        return self.activation_ns + self.gradient_ns

    @cached_property
    def received_ns(self) -> int:
        if self.numbers.cost.boundary_charge is BoundaryCharge.LINK:
            return 0
        last = self.index + 1 == len(self.plan.stages)
        behind = 0 if last else PricedStage(self.numbers, self.plan, self.index + 1).gradient_ns
        return self.activation_ns + behind

    @cached_property
    def total_ns(self) -> int:
        communication = self.inside_ns + self.between_ns + self.received_ns
        if self.numbers.cost.stage_time is StageTime.ADD:
            return self.compute_ns + communication
        return max(self.compute_ns, communication)
