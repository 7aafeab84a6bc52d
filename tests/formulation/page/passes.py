"""docs/formulation.md, "Goals": what is executed, as graphs of what waits for what."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from operator import add

from pipecut.formulation.problem.options import BoundaryCharge, StageTime, Synchronisation
from pipecut.formulation.problem.training import Schedule
from tests.formulation.page.chunks import groups, in_order, on
from tests.formulation.page.computing import passes_ns
from tests.formulation.page.memory import gradients_made, in_flight
from tests.formulation.page.numbers import Numbers
from tests.formulation.page.stages import PricedStage

Row = list[int]
HALVES = (Schedule.ZERO_BUBBLE_H1, Schedule.ZERO_BUBBLE_V)


class Passes:
    """f, b, sync, a and g of a plan; a and g have a last entry for the boundary that is none."""

    def __init__(self, numbers: Numbers, stages: list[PricedStage]) -> None:
        self.numbers, self.total, self.stages = numbers, len(stages), stages
        own = [_passes(stage) for stage in stages]
        self.f, self.b, self.u = ([one[at] for one in own] for at in range(3))
        self.sync = [
            sum(stage._sync_ns(layer) + stage._exchanged_ns(layer) for layer in stage.layers) for stage in stages
        ]
        self.a = [*(stage.activation_ns for stage in stages[1:]), 0]
        self.g = [*(stage.gradient_ns for stage in stages[1:]), 0]
        if numbers.cost.boundary_charge is BoundaryCharge.RECEIVER:
            self.f = [one + other for one, other in zip(self.f, [0, *self.a[:-1]], strict=True)]
            self.b = [one + other for one, other in zip(self.b, self.g, strict=True)]
            self.a = self.g = [0] * self.total

    def step_ns(self) -> int:
        """step_time: every pass when its group is free and what it needs has come, in the order of the group."""
        ranks = groups(self.numbers, self.total)
        orders = [self._order(rank) for rank in range(ranks)]
        ends: dict[tuple[str, int, int], int] = {}
        free, done = [0] * ranks, [0] * ranks
        while any(done[rank] < len(order) for rank, order in enumerate(orders)):
            for rank, order in enumerate(orders):
                while done[rank] < len(order):
                    kind, stage, batch = order[done[rank]]
                    ready = self._ready(kind, stage, batch, ends)
                    if ready is None:
                        break
                    spent = self._spent(kind, stage)
                    free[rank] = ends[kind, stage, batch] = max(free[rank], ready) + spent
                    done[rank] += 1
        return max(self._summed_ns(rank, free[rank], ends) for rank in range(ranks))

    def _spent(self, kind: str, stage: int) -> int:
        if kind == "B" and self.numbers.training.schedule in HALVES:
            return self.b[stage] - self.u[stage]
        return {"F": self.f, "B": self.b, "W": self.u}[kind][stage]

    def _summed_ns(self, rank: int, free: int, ends: dict[tuple[str, int, int], int]) -> int:
        """When the stages of a group have summed their gradients, one after another."""
        beside, now = self.numbers.cost.synchronisation is Synchronisation.OVERLAPPED, 0
        own = (stage for stage in range(self.total) if on(self.numbers, stage, self.total) == rank)
        last = {stage: max(ns for (_, at, _), ns in ends.items() if at == stage) for stage in own}
        for stage in sorted(last, key=last.__getitem__):
            now = max(now, last[stage] if beside else free) + self.sync[stage]
        return now

    def _ready(self, kind: str, stage: int, batch: int, ends: dict[tuple[str, int, int], int]) -> int | None:
        if kind == "W":
            return ends.get(("B", stage, batch))
        if kind == "F":
            before, moved = ("F", stage - 1, batch), self.a[stage - 1]
            first = stage == 0
        else:
            before, moved = ("B", stage + 1, batch), self.g[stage]
            first = stage == self.total - 1
        if first:
            return 0
        return ends[before] + moved if before in ends else None

    def _order(self, rank: int) -> list[tuple[str, int, int]]:
        training = self.numbers.training
        each = range(training.micro_batches)
        if training.chunks > 1:
            return in_order(self.numbers, self.total, rank)
        if training.schedule is Schedule.GPIPE:
            return [("F", rank, one) for one in each] + [("B", rank, one) for one in each]
        halves = training.schedule is Schedule.ZERO_BUBBLE_H1
        behind = self.total - rank
        warm = min(behind, len(each) + 1) - 1 if halves else in_flight(self.stages[rank], behind) - 1
        found = [("F", rank, one) for one in each[:warm]]
        for one in each:
            found += [("F", rank, one + warm)] * (one + warm < len(each)) + [("B", rank, one)]
            found += [("W", rank, one - rank)] * (halves and one >= rank)
        return found + [("W", rank, one) for one in each[max(0, len(each) - rank) :] if halves]

    def period_ns(self) -> int:
        """period: the least whole T with which no circle of what waits for what takes longer than its periods."""
        overlapped = self.numbers.cost.synchronisation is Synchronisation.OVERLAPPED
        rounds = self.numbers.training.micro_batches
        low, high = 0, sum(self.f) + sum(self.b) + sum(self.a) + sum(self.g) + sum(self.sync)
        while low < high:
            middle = (low + high) // 2
            if self._too_short(middle * rounds, rounds, charged=not overlapped):
                low = middle + 1
            else:
                high = middle
        return max(low, -(-max(self.sync) // rounds) * overlapped)

    def _too_short(self, round_ns: int, rounds: int, *, charged: bool) -> bool:
        """Bellman and Ford: whether a circle over pairs 0 .. M - 1 of a round takes longer than its rounds."""
        waits = []
        for pair in range(rounds):
            back, less = (pair - 1) % rounds, 0 if pair else round_ns
            for s in range(self.total):
                held = 0 if pair or not charged else self.sync[s]
                waits.append((("B", s, back), ("F", s, pair), held + self.f[s] - less))
                waits.append((("F", s, pair), ("B", s, pair), self.b[s]))
                if s:
                    waits.append((("F", s - 1, back), ("F", s, pair), self.a[s - 1] + self.f[s] - less))
                    waits.append((("B", s, pair), ("B", s - 1, pair), self.g[s - 1] + self.b[s - 1]))
        longest = {node: 0 for node, _, _ in waits}
        for _ in range(len(longest)):
            changed = False
            for one, other, time in waits:
                if longest[one] + time > longest[other]:
                    longest[other], changed = longest[one] + time, True
            if not changed:
                return False
        return True


def _passes(stage: PricedStage) -> tuple[int, int, int]:
    """f, b and u of a stage, without what it receives."""
    numbers, back, backward = stage.numbers, 0, 0
    weights_at_work = weights_sent = 0
    there, forward = [0, 0], [0, 0]
    """All, and what is computed again."""
    for layer in stage.layers:
        again = stage.again(layer)
        each = sorted(zip(stage.servers, stage.work(layer), strict=True), key=lambda one: _place(numbers, one[0]))
        shares = [tuple(map(ceil, passes_ns(numbers, layer, server, *work))) for server, work in each]
        at = max(range(len(each)), key=lambda at: (1 + again) * shares[at][0] + shares[at][1])
        one, other = shares[at]
        of_weights = _of_weights(numbers, layer, each[at], other)
        weights_at_work += of_weights
        sent, returned = stage._passes_ns(layer)
        back += returned
        gathered, added, (ahead, behind) = stage.gathered_ns(layer), stage.scattered_ns(layer), stage.beside(layer)
        moved = sent + max(0, gathered - ahead)
        if numbers.training.schedule in (Schedule.ZERO_BUBBLE_H1, Schedule.ZERO_BUBBLE_V):
            later = min(behind, of_weights)
            gathered, added = max(0, gathered - behind + later), max(0, added - later)
        else:
            gathered, added = max(0, gathered + added - behind), 0
        for part, runs in enumerate((1, again)):
            forward[part], there[part] = forward[part] + runs * one, there[part] + runs * moved
        backward, back, weights_sent = backward + other, back + gathered + added, weights_sent + added
    for u, v, size in numbers.edges:
        one, other = stage.change_ns(u, v, size) if v in stage.layers else (0, 0)
        there, back = [there[0] + one, there[1] + stage.again(v) * one], back + other
    both = max if numbers.cost.stage_time is StageTime.OVERLAP else add
    whole, part = map(both, forward, there)
    of_weights = both(backward, back) - both(backward - weights_at_work, back - weights_sent)
    return whole, both(backward, back) + part, of_weights


def _place(numbers: Numbers, server: int) -> int:
    """The first server of the cluster with devices of the same class."""
    kinds = [(row.device_class, memory) for row, memory in zip(numbers.servers, numbers.memory, strict=True)]
    return kinds.index(kinds[server])


def _of_weights(numbers: Numbers, layer: int, where: tuple[int, tuple], backward: int) -> int:
    """u_l: what a device would not do backward if the layer trained no weights; of measured times half."""
    if not gradients_made(numbers, layer):
        return 0
    device = numbers.servers[where[0]].device_class
    if any(one.device_class == device.name for one in numbers.layers[layer].measured):
        return backward // 2
    frozen = [one or at == layer for at, one in enumerate(numbers.frozen)]
    trained = [0 if at == layer else one for at, one in enumerate(numbers.gradients)]
    alone, (server, work) = replace(numbers, frozen=frozen, gradients=trained), where
    return backward - ceil(passes_ns(alone, layer, server, *work)[1])
