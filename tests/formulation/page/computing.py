"""docs/formulation.md, "Computation": what a device takes for its part of a layer, unrounded."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from pipecut.formulation.problem.layers import Layer, Split
from pipecut.formulation.problem.options import Compute, Count, StageTime, Synchronisation
from pipecut.formulation.problem.training import Schedule
from tests.formulation.page.numbers import Numbers

if TYPE_CHECKING:
    from tests.formulation.page.stages import PricedStage

Pair = tuple[Fraction, Fraction]
Part = tuple[Fraction, Fraction, Fraction]
GIGA = 10**9


def passes_ns(numbers: Numbers, layer: int, server: int, sigma: Fraction, own: Part) -> Pair:
    """F and G of a layer on a device of a server that does sigma of the stage; x over m, a and b of it."""
    row, device = numbers.layers[layer], numbers.servers[server].device_class
    samples = Fraction(numbers.training.global_batch, numbers.training.micro_batches)
    sizes = [
        (one.samples, Fraction(1, one.width), one.forward_ns, one.backward_ns)
        for one in row.measured
        if one.device_class == device.name
    ]
    shared = numbers.cost.stage_time is StageTime.OVERLAP
    x, a, b = (sigma, Fraction(1), Fraction(1)) if shared else own
    if len(sizes) == 1:
        count, shard, *both = sizes[0]
        forward, backward = (ceil(time / shard * samples / count) for time in both)
        return x * a * b * forward, x * a * b * backward
    if not sizes and numbers.cost.compute is Compute.PEAK:
        forward, backward = at_peak(numbers, layer, samples / device.flops_per_second)
        return x * a * b * forward, x * a * b * backward
    if sizes:
        each = ([(size[:2], size[which]) for size in sizes] for which in (2, 3))
        return on_curves(next(each), x * samples, a * b), on_curves(next(each), x * samples, a * b)
    return Roof(numbers, layer, server, (x * samples, a, b)).passes()


def at_peak(numbers: Numbers, layer: int, samples_by_speed: Fraction) -> tuple[int, int]:
    """f and g."""
    cost, row = numbers.cost, numbers.layers[layer]
    counted = row.macs if cost.count is Count.MACS else row.torchstat_flops
    work = GIGA * cost.flops_per_mac * counted * samples_by_speed
    products = max(0, cost.backward_factor - numbers.frozen[layer]) if row.backward else 0
    return ceil(work), ceil(work * products)


def part(row: Layer, form: int, sigma: Fraction, replica: Fraction) -> tuple[Fraction, Fraction, Fraction]:
    """The table of samples (over m), a and b."""
    one, matrix = Fraction(1), row.split is Split.MATRIX
    table = {
        0: (sigma, one, one),
        1: (replica, sigma / replica if matrix else one, one),
        2: (replica, one, sigma / replica),
    }
    table |= {3: table[1] if matrix else table[0], 4: table[2], 5: table[0], 6: table[2]}
    table |= {7: table[2] if row.split is Split.JOIN else table[1]}
    return table[form]


def on_curves(points: list, samples: Fraction, shard: Fraction) -> Fraction:
    """Between the measured shards the line through the times that lie between the measured samples."""
    shards = {one: {} for (_, one), _ in points}
    for (count, one), time in points:
        shards[one][Fraction(count)] = time
    return line({one: line(times, samples) for one, times in shards.items()}, shard)


def line(times: dict, at: Fraction) -> Fraction:
    """The line through the nearest on both sides; in proportion to the nearest beyond all of them."""
    if at in times:
        return Fraction(times[at])
    low, high = [one for one in times if one < at], [one for one in times if one > at]
    if not low or not high:
        nearest = max(low, default=None) or min(high)
        return times[nearest] * at / nearest
    before, after = max(low), min(high)
    weight = (at - before) / (after - before)
    return (1 - weight) * times[before] + weight * times[after]


class Roof:
    """The roofline for one layer, one device and one part."""

    def __init__(
        self, numbers: Numbers, layer: int, server: int, part: tuple[Fraction, Fraction, Fraction]
    ) -> None:
        self.row, self.constants = numbers.layers[layer], numbers.cost.roofline
        self.device = numbers.servers[server].device_class
        self.frozen, self.steps = numbers.frozen[layer], numbers.training.micro_batches
        self.x, self.a, self.b = part
        self.q, self.weights, self.gradients = (
            numbers.activation_ratio,
            numbers.weights[layer],
            numbers.gradients[layer],
        )

    def gemm(self, p: Fraction, k: Fraction, s: Fraction, copies: Fraction) -> Fraction:
        one = self.constants
        flops = 2 * copies * (p + one.outer) * (k + one.inner) * (s + one.outer)
        return GIGA * flops / (one.largest * self.device.flops_per_second)

    def moved(self, size: Fraction) -> Fraction:
        bandwidth = self.device.memory_bytes_per_second
        return GIGA * size / (self.constants.memory * bandwidth) if bandwidth else Fraction(0)

    def kernel(self, time: Fraction, size: Fraction) -> Fraction:
        return max(time, self.moved(size), Fraction(self.constants.kernel_ns))

    def passes(self) -> Pair:
        work, x, a, b, q = self.row.work, self.x, self.a, self.b, self.q
        if work is None:
            return self.unsized()
        forward = backward = Fraction(0)
        seen = False
        for one in work.products:
            weights = gradients = Fraction(0)
            if one.weighted:
                p, k, s, copies = x * one.rows, a * one.inner, b * one.columns, Fraction(one.copies)
                size = q * x * (a * one.read_bytes + b * one.written_bytes)
                if not seen:
                    weights, gradients = a * b * self.weights, a * b * self.gradients
                seen = True
            else:
                p, k, s, copies = (
                    Fraction(one.rows),
                    Fraction(one.inner),
                    Fraction(one.columns),
                    one.copies * x * a * b,
                )
                size = q * x * (a * b * one.read_bytes + b * one.written_bytes)
            forward += self.kernel(self.gemm(p, k, s, copies), size + weights)
            backward += self.kernel(self.gemm(p, s, k, copies), size + weights)
            if not self.frozen or not one.weighted:
                backward += self.kernel(self.gemm(k, p, s, copies), size + gradients)
        least = Fraction(self.constants.kernel_ns * work.kernels)
        read, written = q * x * b * work.read_bytes, q * x * b * work.written_bytes
        backward += max(self.moved(2 * read + written), least) + self.added()
        return forward + max(self.moved(read + written), least), backward if self.row.backward else Fraction(0)

    def unsized(self) -> Pair:
        row, part = self.row, self.x * self.a * self.b
        speed = self.constants.unsized * self.device.flops_per_second
        size = self.q * part * (row.input_bytes + row.output_bytes)
        size += self.a * self.b * self.weights if row.macs else 0
        once = self.kernel(2 * GIGA * part * row.macs / speed, size)
        return once, row.backward * (once * (1 if self.frozen or not row.macs else 2) + self.added())

    def added(self) -> Fraction:
        return (1 - Fraction(1, self.steps)) * self.moved(3 * self.a * self.b * self.gradients)


def updating_ns(numbers: Numbers, servers: list[int], size: Fraction) -> int:
    """update_l: the optimiser moves so many bytes through the memory of each of the devices."""
    if numbers.cost.compute is not Compute.ROOFLINE:
        return 0
    speeds = [numbers.servers[server].device_class.memory_bytes_per_second for server in servers]
    size *= numbers.cost.roofline.update
    return max((ceil(GIGA * size / (numbers.cost.roofline.memory * one)) for one in speeds if one), default=0)


def hidden_ns(stage: PricedStage, layer: int) -> int:
    """hidden_l: half of the shortest backward pass of any device, beside which the input's gradient is summed."""
    numbers, row = stage.numbers, stage.numbers.layers[layer]
    if numbers.cost.inside is Synchronisation.CHARGED or numbers.frozen[layer] or not row.backward:
        return 0
    if numbers.training.schedule in (Schedule.ZERO_BUBBLE_H1, Schedule.ZERO_BUBBLE_V):
        return 0
    each = zip(stage.servers, stage.work(layer), strict=True)
    return min(ceil(passes_ns(numbers, layer, one, *work)[1]) // 2 for one, work in each)
