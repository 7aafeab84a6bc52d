"""Values that no plan exceeds: where a search may start from above, without any plan.

What no plan of an instance can undercut, from sums over layers and devices alone: no solver, no table.

Every exact search starts from it, and a search that is stopped early never claims less. It holds for every group,
replica, sharing and form, because it leaves out all communication and lets every device work all the time:

* *Work over devices.* With any price ``p_c`` for a device of class ``c``, a device of share ``s`` computes for at
  least ``s w_cl`` in layer ``l``, so a stage of time T pays ``p T >= s p w``. Shares add up to 1 in a stage, hence
  ``T sum of p over the devices used >= V = sum over l of min over c of p_c w_cl``.
* *The largest layer.* Layers that no stage may separate run on one group, at best the largest that is allowed.
* *One after another.* The times of all stages add up to at least every layer at its best.
* *Memory over devices.* A stage's weights, gradients and optimiser state are somewhere on its devices, so devices
  times the fullest one of them is at least their sum.

Limits on goals (rule 15) are used where they bound what a plan may take: time limits ask for devices, a budget
or a number of devices limits the work that is done at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.problem.constraints import Goal, OnHost, Recompute
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import FORBIDDEN, Instance, longest_run_ns, most_bytes
from pipecut.formulation.problem.modes import modes
from pipecut.formulation.problem.options import Combine, Sharing
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.problem.units import ceil_div, ceil_fraction


def _longest_ns(tables: Tables) -> int:
    """Return a time that no bottleneck exceeds: everything at its dearest, one after another."""
    real = np.where(tables.inside < FORBIDDEN, tables.inside, 0)
    return int(
        (tables.compute[:, :, None] + real).max(axis=(0, 2)).sum()
        + sum(int(copy.max()) for copy in tables.copies.values())
        + tables.between.max(axis=(0, 2, 3)).sum()
        + (tables.activation + tables.gradient).max(axis=0, initial=0).sum()
    )


def ceiling(tables: Tables, goal: Goal) -> int:
    """Return a value of a goal that no plan exceeds."""
    instance = tables.instance
    time, steps = _longest_ns(tables), instance.training.micro_batches
    devices = sum(server.devices for server in instance.servers)
    return {
        Goal.BOTTLENECK: time,
        Goal.ITERATION_TIME: steps * time,
        Goal.STEP_TIME: longest_run_ns(instance, steps),
        Goal.PERIOD: longest_run_ns(instance, 1),
        Goal.COST: sum(server.devices * server.device_class.price_per_hour for server in instance.servers),
        Goal.MEMORY: most_bytes(instance),
        Goal.DEVICES: devices,
        Goal.STAGES: min(instance.training.chunks * devices, len(instance.layers)),
    }[goal]


SCALE = 1 << 32
"""Prices of device classes are whole numbers up to about this; any prices give a lower limit."""


def lower_bound(instance: Instance) -> int:
    """Return a value, in the unit of the first goal, that no plan of the instance undercuts.

    Of an instance without a plan any number is one. Cost: linear in layers times device classes, and in devices.
    """
    return _BOUNDS[instance.goals[0]](_Offer.of(instance))


@dataclass(frozen=True, slots=True)
class _Device:
    """What a device costs an hour, and what it brings: work in a unit of time, bytes."""

    price: int
    work: int
    room: int


@dataclass(frozen=True, slots=True)
class _Offer:
    """The devices, how many a stage may have, and the limits on goals; ``work`` is V of the module docstring."""

    instance: Instance
    devices: tuple[_Device, ...]
    work: int
    largest_group: int
    smallest_group: int
    limits: Mapping[Goal, int]

    @classmethod
    def of(cls, instance: Instance) -> _Offer:
        limits = {limit.goal: limit.at_most for limit in instance.constraints.at_most}
        spent = _layer_ns(instance)
        totals = [sum(row) for row in spent]
        prices = [max(1, SCALE * min(totals) // total) if total else 1 for total in totals]
        limit = limits.get(Goal.MEMORY, _stored_bytes(instance))
        devices: list[_Device] = []
        for at, server in enumerate(instance.servers):
            one = server.device_class
            most = min(limit, one.memory_bytes) if instance.constraints.memory else limit
            devices += [_Device(one.price_per_hour, prices[instance.class_index(at)], most)] * server.devices
        by_layer = zip(*spent, strict=True)
        work = sum(min(price * ns for price, ns in zip(prices, row, strict=True)) for row in by_layer)
        sizes = _group_sizes(instance)
        return cls(instance, tuple(devices), work, max(sizes), min(sizes), MappingProxyType(limits))

    @property
    def most_devices(self) -> int:
        """How many devices a plan can take at most; one where limits leave none, and so no plan."""
        there = self.instance.devices
        return max(1, min(there, self.most_stages * self.largest_group, self.limits.get(Goal.DEVICES, there)))

    @property
    def most_stages(self) -> int:
        """How many stages a plan can have at most."""
        demands, most = self.instance.demands, CutSpace.of(self.instance).stops
        groups = self.instance.training.chunks * (self.instance.devices // self.smallest_group)
        return max(1, min(most, groups, demands.stages_at_most or most, self.limits.get(Goal.STAGES, most)))

    @property
    def stage_limit_ns(self) -> int | None:
        """What the limits on times leave for one stage: an iteration has a place for M of the slowest."""
        found = [self.limits[Goal.BOTTLENECK]] if Goal.BOTTLENECK in self.limits else []
        if Goal.ITERATION_TIME in self.limits:
            found.append(self.limits[Goal.ITERATION_TIME] // self.instance.training.micro_batches)
        return min(found, default=None)


def _layer_ns(instance: Instance) -> list[list[int]]:
    """Return by class and layer the least times of one device; twice forward if all recompute."""
    runs = _forwards(instance)
    return [
        [runs * one + other for one, other in zip(*pair, strict=True)]
        for pair in zip(instance.least_forward_ns, instance.least_backward_ns, strict=True)
    ]


def _forwards(instance: Instance) -> int:
    return 2 if instance.constraints.recompute is Recompute.ALWAYS else 1


def _group_sizes(instance: Instance) -> list[int]:
    """Return the numbers of devices that a stage may have; all of them where none is possible."""
    sizes = sorted((server.devices for server in instance.servers), reverse=True)
    most = sum(sizes[: instance.constraints.max_servers or len(sizes)])
    return [size for size in range(1, most + 1) if modes(instance, size)] or [1, most]


def _pace_ns(offer: _Offer) -> int:
    """Return a time that the slowest stage cannot undercut."""
    runs = CutSpace.of(offer.instance).atoms()
    floors = list(itertools.accumulate(_layer_floors_ns(offer), initial=0))
    alone = max(floors[stop] - floors[start] for start, stop in runs)
    working = sorted((one.work for one in offer.devices), reverse=True)
    at_once = Fraction(sum(working[: offer.most_devices]))
    if Goal.COST in offer.limits:
        at_once = min(at_once, _most_work(offer.devices, offer.limits[Goal.COST]))
    return max(alone, ceil_fraction(offer.work / at_once)) if at_once else alone


def _layer_floors_ns(offer: _Offer, *, backward: bool = True) -> list[int]:
    """Return what each layer computes at least on the largest group that a stage may have, or its way forward."""
    instance, most, runs = offer.instance, offer.largest_group, _forwards(offer.instance)
    share = [Fraction(1, most)] * len(instance.device_classes)
    if instance.cost.sharing is Sharing.PROPORTIONAL:
        speeds = [one.device_class.flops_per_second for one in instance.servers for _ in range(one.devices)]
        fastest = sum(sorted(speeds, reverse=True)[:most])
        share = [Fraction(one.flops_per_second, fastest) for one in instance.device_classes]
    pairs = zip(instance.least_forward_ns, instance.least_backward_ns, strict=True)
    there, back = (runs, 1) if backward else (1, 0)
    rows = [
        [there * ceil_fraction(f * part) + back * ceil_fraction(b * part) for f, b in zip(*pair, strict=True)]
        for part, pair in zip(share, pairs, strict=True)
    ]
    return [min(column) for column in zip(*rows, strict=True)]


def _bottleneck_ns(offer: _Offer) -> int:
    pace = _pace_ns(offer)
    return pace if offer.instance.cost.combine is Combine.MAX else max(pace, sum(_layer_floors_ns(offer)))


def _iteration_ns(offer: _Offer) -> int:
    training, pace = offer.instance.training, _pace_ns(offer)
    if not training.schedule.flushes:
        return training.micro_batches * pace
    latency = max(pace, sum(_layer_floors_ns(offer)))
    return latency + (training.micro_batches - 1) * (latency if training.schedule is Schedule.NAIVE else pace)


def _step_ns(offer: _Offer) -> int:
    """Every device works for all micro-batches, and one of these passes through all stages.

    Gradients of weights that may wait are done by several stages at once, so then only its way forward counts.
    Under 1F1B with classic warm-ups and more micro-batches M than stages p a step takes at least
    ``C (1 + (M - 1) / p)``, where C is what all stages take together, however they share it. With x_s the pair of
    passes of stage s, counted from 0, a way through the step takes
    ``C + x_s + ... + x_{p-1} + (M - p + s - 1) x_s``: the first micro-batch goes down and up, stage s does a pair
    for each further one up to the forward pass of the last, and that one goes down and up. In the mean of these
    with weights proportional to ``1 / ((M - p + s - 1) (M - p + s))`` every x_s stands as often. More stages only
    lower it.
    """
    training, pace = offer.instance.training, _pace_ns(offer)
    steps, stages = training.micro_batches, offer.most_stages
    latency = max(pace, sum(_layer_floors_ns(offer, backward=not training.schedule.in_halves)))
    filled = training.warms_up and training.warm_up == "classic" and steps > stages
    least = max(latency + ceil_div((steps - 1) * latency, stages) * filled, steps * pace)
    return steps * latency if training.schedule is Schedule.NAIVE else least


def _stages(offer: _Offer) -> int:
    """Return how many stages there are at least."""
    demands = offer.instance.demands
    asked = [1, demands.stages_at_least or 1, *(len(sets) for sets in demands.apart)]
    asked += [pin.stage + 1 if pin.stage >= 0 else -pin.stage for pin in demands.pins if pin.stage is not None]
    return max(*asked, ceil_div(_devices_needed(offer), offer.largest_group))


def _devices(offer: _Offer) -> int:
    groups = ceil_div(_stages(offer), offer.instance.training.chunks)
    return max(_devices_needed(offer), groups * offer.smallest_group)


def _devices_needed(offer: _Offer) -> int:
    """Return how many devices it takes for the memory, and for the work within the limits on times."""
    needed = [_fewest(_stored_bytes(offer.instance), (one.room for one in offer.devices))]
    if offer.stage_limit_ns:
        needed.append(_fewest(Fraction(offer.work, offer.stage_limit_ns), (one.work for one in offer.devices)))
    return max(needed)


def _cost(offer: _Offer) -> int:
    found = [sum(sorted(one.price for one in offer.devices)[: _devices(offer)])]
    found.append(_least_cost(offer.devices, Fraction(_stored_bytes(offer.instance)), lambda one: one.room))
    if offer.stage_limit_ns:
        found.append(_least_cost(offer.devices, Fraction(offer.work, offer.stage_limit_ns), lambda one: one.work))
    return max(found)


def _memory_bytes(offer: _Offer) -> int:
    instance, spread = offer.instance, ceil_div(_stored_bytes(offer.instance), offer.most_devices)
    # Weights that several layers use may count at another of them where the layers run in another order.
    shared = {tie.layers[0] for tie in instance.model.ties}
    held = (_layer_bytes(instance, layer) for layer in range(len(instance.layers)) if layer not in shared)
    return max(spread, ceil_div(max(held, default=0), offer.largest_group))


def _stored_bytes(instance: Instance) -> int:
    """Return what the devices of all stages hold together at least.

    Blocks that are computed again by themselves hold their activations one after another.
    """
    again = sum(instance.stash_bytes) if instance.constraints.recompute.by_blocks else 0
    return sum(_layer_bytes(instance, layer) for layer in range(len(instance.layers))) - again


def _layer_bytes(instance: Instance, layer: int) -> int:
    """Return the weights, gradients, optimiser state and activations of a layer, at their least."""
    training = instance.training
    copies = 2 if training.schedule is Schedule.DOUBLE_BUFFERED else 1
    whole = training.schedule is Schedule.GPIPE and instance.constraints.recompute is Recompute.NEVER
    on_device = instance.constraints.optimizer_on_host is OnHost.NEVER
    trained = instance.gradient_bytes[layer] + instance.optimizer_bytes[layer] * on_device
    weights = copies * instance.parameter_bytes[layer] + trained
    return weights + (training.micro_batches if whole else 1) * instance.stash_bytes[layer]


def _fewest(need: Fraction | int, offers: Iterable[int]) -> int:
    """Return how many of the largest offers reach what is needed; all of them where they do not."""
    largest = sorted(offers, reverse=True)
    enough = (number for number, so_far in enumerate(itertools.accumulate(largest), 1) if so_far >= need)
    return next(enough, len(largest))


def _least_cost(devices: tuple[_Device, ...], need: Fraction, brought: Callable[[_Device], int]) -> int:
    """Return the least price of devices, or of parts of them, that bring what is needed together."""
    paid = Fraction(0)
    for one in sorted((one for one in devices if brought(one)), key=lambda one: Fraction(one.price, brought(one))):
        part = min(Fraction(1), need / brought(one))
        paid, need = paid + part * one.price, need - part * brought(one)
        if need <= 0:
            break
    return ceil_fraction(paid)


def _most_work(devices: tuple[_Device, ...], budget: int) -> Fraction:
    """Return the most work at once of devices, or of parts of them, within a price."""
    left, found = Fraction(budget), Fraction(0)
    for one in sorted(devices, key=lambda one: Fraction(one.price, one.work)):
        part = min(Fraction(1), left / one.price) if one.price else Fraction(1)
        found, left = found + part * one.work, left - part * one.price
    return found


_BOUNDS: Mapping[Goal, Callable[[_Offer], int]] = MappingProxyType(
    {
        Goal.BOTTLENECK: _bottleneck_ns,
        Goal.ITERATION_TIME: _iteration_ns,
        Goal.STEP_TIME: _step_ns,
        Goal.PERIOD: _pace_ns,
        Goal.COST: _cost,
        Goal.MEMORY: _memory_bytes,
        Goal.DEVICES: _devices,
        Goal.STAGES: _stages,
    }
)
