"""docs/formulation.md from "Computation" to "Time of a stage": what a stage takes, for one micro-batch."""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from math import ceil, prod
from operator import mul

from pipecut.formulation.problem.constraints import Sharded
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.options import Boundary, BoundaryCharge, StageTime, Synchronisation
from pipecut.formulation.problem.plan import Plan
from tests.formulation.page.chunks import on
from tests.formulation.page.computing import Part, hidden_ns, part, passes_ns, updating_ns
from tests.formulation.page.devices import Devices
from tests.formulation.page.layouts import (
    BY_ROWS,
    COLUMNS,
    EXPERTS,
    MADE,
    PAIRS,
    ROWS,
    TAKEN,
    TAKEN_BY_JOIN,
    WHOLE,
    Axis,
    changed,
    in_pair,
    lying,
    on_axes,
    pair_of,
    sent_ns,
)
from tests.formulation.page.numbers import Numbers, slowest, transfer_ns


class PricedStage(Devices):
    """Stage ``index`` of a plan."""

    def __init__(self, numbers: Numbers, plan: Plan, index: int) -> None:
        self.plan, self.index = plan, index
        stage = plan.stages[index]
        super().__init__(numbers, stage)
        self.first, self.stop = stage.span.first, stage.span.stop
        self.layers = range(self.first, self.stop)
        self.recompute = stage.group.mode.recompute
        self.runs = [range(run.first, run.stop) for run in stage.again]
        kinds = (Sharded.NONE, Sharded.OPTIMIZER, Sharded.GRADIENTS, Sharded.WEIGHTS)
        self.divided = kinds.index(stage.group.mode.sharded)
        self.on_host = stage.group.mode.optimizer_on_host
        self.forms = dict(zip(self.layers, stage.forms, strict=True))

    def again(self, layer: int) -> int:
        """rho_l."""
        named = layer in self.numbers.again if self.recompute == "layers" else self.recompute
        return int(named or self.run_of(layer) is not None)

    def run_of(self, layer: int) -> range | None:
        return next((run for run in self.runs if layer in run), None)

    @cached_property
    def compute_ns(self) -> int:
        return sum(self._compute_ns(layer) for layer in self.layers)

    def _compute_ns(self, layer: int) -> int:
        forward, backward = self.paced(layer)
        return (1 + self.again(layer)) * forward + backward

    def paced(self, layer: int) -> tuple[int, int]:
        """F and G of a layer on the device that sets the pace."""
        pairs = (
            passes_ns(self.numbers, layer, server, *work)
            for work, server in zip(self.work(layer), self.servers, strict=True)
        )
        each = ((ceil(forward), ceil(backward)) for forward, backward in pairs)
        return max(each, key=lambda passes: (1 + self.again(layer)) * passes[0] + passes[1])

    def beside(self, layer: int) -> tuple[int, int]:
        """beside_l of a forward and of a backward pass."""
        cost = self.numbers.cost
        if cost.synchronisation is Synchronisation.CHARGED or cost.stage_time is StageTime.OVERLAP:
            return 0, 0
        forward, backward = self.paced(layer)
        return forward, ceil(Fraction(backward, 1 if cost.inside is Synchronisation.CHARGED else 2))

    def gathered_ns(self, layer: int) -> int:
        """gather_l."""
        return self._half_ns(layer, self.sizes(layer)[:1]) if self.divided == 3 else 0

    def scattered_ns(self, layer: int) -> int:
        """scatter_l."""
        return self._half_ns(layer, self.sizes(layer)[1:2]) if self.divided >= 2 else 0

    def work(self, layer: int) -> list[tuple[Fraction, Part]]:
        """sigma of each device, for this layer, and x, a and b of its part."""
        form, row, replica = self.form(layer), self.numbers.layers[layer], self.shares.replica
        if form in PAIRS:
            return [in_pair(self, row, form)] * len(self.servers)
        load = self.numbers.cost.expert_load if form == 6 else 1
        loaded = [min(replica, load * one) for one in (self.rows if form in BY_ROWS else self.parts)]
        return [(one, part(row, form, one, replica)) for one in loaded]

    def lies(self, layer: int, whole: set[int], rows: tuple[int, ...] = BY_ROWS) -> Fraction:
        """What the fullest device has of a tensor of a layer that lies whole in some forms, by rows in others."""
        form, load = self.form(layer), self.numbers.cost.expert_load
        if form not in PAIRS:
            loaded = min(self.shares.replica, (load if form == 6 else 1) * self.shares.device)
            return self.shares.replica if form in whole else max(self.rows) if form in rows else loaded
        return self.shares.replica * lying(self, self.axes(layer), load, whole, rows)

    def axes(self, layer: int) -> list[Axis]:
        """The devices that share a layer in each of its forms, one or two."""
        form, shares = self.form(layer), self.shares
        return (
            pair_of(self, form)
            if form in PAIRS
            else [Axis(form, self.degree, self.inner_link, shares.replica, shares.gather)]
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
        return sum(self._moved_ns(layer) + self._charged_ns(layer) for layer in self.layers)

    def _moved_ns(self, layer: int) -> int:
        there, back = self._passes_ns(layer)
        return (1 + self.again(layer)) * there + back

    def _passes_ns(self, layer: int) -> tuple[int, int]:
        """Forward and backward."""
        axes = [(axis.form, sent_ns(self, layer, axis)) for axis in self.axes(layer)]
        there, back = (sum(sent[which] for _, sent in axes) for which in (0, 1))
        beside = sum(sent[1] for form, sent in axes if form in (2, 4))
        return there, back - (min(beside, hidden_ns(self, layer)) if beside else 0)

    def held(self, layer: int) -> Fraction:
        """The part of a layer's weights that a device works with."""
        matrix, axes = self.numbers.layers[layer].split is Split.MATRIX, self.axes(layer)
        parted = [axis for axis in axes if axis.form in (2, 4) or (matrix and axis.form in (1, 3, 6))]
        if len(axes) == 1:
            return self.shares.shard if parted else Fraction(1)
        return Fraction(1, prod(axis.devices for axis in parted))

    def holders(self, layer: int) -> int:
        """h_l: the devices that hold the same weights."""
        alike = (0,) if self.numbers.layers[layer].split is Split.MATRIX else (0, 3, 5, 6)
        return self.replicas * prod(axis.devices for axis in self.axes(layer) if axis.form in alike)

    def _charged_ns(self, layer: int) -> int:
        steps, (there, back) = self.numbers.training.micro_batches, self.beside(layer)
        once = ceil(Fraction(self._sync_ns(layer), steps)) + ceil(Fraction(self._exchanged_ns(layer), steps))
        gathered = self.gathered_ns(layer)
        behind = max(0, gathered + self.scattered_ns(layer) + once - back)
        return (1 + self.again(layer)) * max(0, gathered - there) + behind

    def copied(self, layer: int) -> tuple[int, ...]:
        """Weights, gradients, trained weights and optimiser state that a layer copies in this stage."""
        earlier, sizes = self.numbers.copies.get(layer, (layer, (0, 0, 0, 0)))
        return sizes if earlier < self.first else (0, 0, 0, 0)

    def sizes(self, layer: int) -> list[int]:
        """Weights, gradients, trained weights and optimiser state of a layer, with its copy."""
        numbers = self.numbers
        own = [row[layer] for row in (numbers.weights, numbers.gradients, numbers.updated, numbers.optimizer)]
        return [one + more for one, more in zip(own, self.copied(layer), strict=True)]

    def _sync_ns(self, layer: int) -> int:
        return self._among_ns(layer) + (self._host_ns(layer) if self.on_host else self._updating_ns(layer))

    def _updating_ns(self, layer: int) -> int:
        moved = self.held(layer) * sum(map(mul, self.sizes(layer), (0, 1, 2, 2)))
        return updating_ns(self.numbers, self.servers, moved / (self.holders(layer) if self.divided else 1))

    def _host_ns(self, layer: int) -> int:
        _, gradients, updated, _ = self.sizes(layer)
        parts = self.holders(layer) if self.divided else 1
        links = [self.numbers.servers[server].device_class.host_link for server in self.servers]
        size, messages = self.held(layer) * (gradients + updated) / parts, (gradients > 0) + (updated > 0)
        known = [(one.bits_per_second, one.latency_ns) for one in links if one is not None]
        return max((transfer_ns(size, messages, one) for one in known), default=0)

    def _among_ns(self, layer: int) -> int:
        _, gradients, updated, _ = self.sizes(layer)
        if self.divided == 0:
            return self.numbers.sum_ns(self.held(layer) * gradients, self.holders(layer), self.all_link)
        return self._half_ns(layer, {1: [gradients, updated], 2: [updated], 3: []}[self.divided])

    def _exchanged_ns(self, layer: int) -> int:
        """Time to add the gradients of a copy to those of the stage before that has the weights."""
        sent = self.held(layer) * self.copied(layer)[1] / (self.holders(layer) if self.divided >= 2 else 1)
        return self.numbers.sum_ns(sent, 2, slowest(list(self.numbers.links.values())))

    def _half_ns(self, layer: int, tensors: list[int]) -> int:
        """half() of what a device works with of these."""
        held = [self.held(layer) * size for size in tensors]
        return self.numbers.halves_ns(held, self.holders(layer), self.all_link)

    @cached_property
    def between_ns(self) -> int:
        edges = [(u, v, size) for u, v, size in self.numbers.edges if v in self.layers]
        passes = [(1 + self.again(v), self.change_ns(u, v, size)) for u, v, size in edges]
        return sum(often * forward + backward for often, (forward, backward) in passes)

    def change_ns(self, u: int, v: int, size: int) -> tuple[int, int]:
        """forward_uv and backward_uv."""
        there = back = 0
        for have, want, whole in self.changes(u, v, size):
            forward = whole - whole // 2
            if WHOLE in (have, want):
                forward = whole if want == WHOLE else 0
            else:
                assert {have, want} <= {ROWS, COLUMNS, EXPERTS}
            there, back = there + forward, back + whole - forward
        return there, back

    def changes(self, u: int, v: int, size: int) -> list[tuple[str, str, int]]:
        """How a tensor lies, how it is wanted and the time there and back, of all devices or along either axis."""
        split, source = self.numbers.layers[v].split, self.source(u)
        if split is Split.FOLLOW or source is None or source not in self.layers:
            return []
        ends = self.forms[source], self.forms[v]
        if not PAIRS.keys().isdisjoint(ends):
            return on_axes(self, v, ends, size)
        have, want = MADE[ends[0]], (TAKEN if split is Split.MATRIX else TAKEN_BY_JOIN)[ends[1]]
        there, back = changed(self, have, want, size), changed(self, want, have, size)
        messages = (self.degree - 1) * ((there > 0) + (back > 0))
        return [(have, want, transfer_ns(there + back, messages, self.inner_link))]

    @cached_property
    def activation_ns(self) -> int:
        charged = self.numbers.cost.boundary in (Boundary.ACTIVATION, Boundary.BOTH)
        return self._crossing_ns() if self.index > 0 and charged else 0

    @cached_property
    def gradient_ns(self) -> int:
        return self._crossing_ns() if self.index > 0 and self.numbers.cost.boundary is Boundary.BOTH else 0

    def _crossing_ns(self) -> int:
        total = len(self.plan.stages)
        if on(self.numbers, self.index - 1, total) == on(self.numbers, self.index, total):
            return 0
        before = PricedStage(self.numbers, self.plan, self.index - 1)
        pairs = [(one, two) for one in before.servers for two in self.servers]
        link = slowest([self.numbers.links[pair] for pair in pairs if pair in self.numbers.links])
        if link is not None:
            link = link[0] * min(before.lanes, self.lanes), link[1]
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
