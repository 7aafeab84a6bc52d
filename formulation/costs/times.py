"""The time formulas, one layer or one boundary at a time, in ns of one micro-batch (PipePar eqs. 3 and 4).

This is the specification. Solvers read the same numbers from tables (``formulation.costs.tables``) that are built
in bulk by other code; a test compares the two cell by cell.

What it costs that the devices which hold the same weights divide what they keep of them (ZeRO, FSDP).

The *holders* of a layer are the devices among which its gradients are summed: all devices of a stage by rows, one
of every replica by the other forms. Instead of a copy each, every holder keeps an equal part
(``formulation.problem.constraints.Sharded``), and sends what the others lack:

=========  ===========================================  ========================================================
divided    once a step                                  for every micro-batch
=========  ===========================================  ========================================================
nothing    gradients summed                             nothing
optimizer  gradients summed to parts, weights gathered  nothing
gradients  weights gathered                             gradients summed to parts: nobody can add them up whole
weights    nothing                                      weights gathered before every pass, forward or backward;
                                                        gradients summed to parts
=========  ===========================================  ========================================================

A sum to parts (reduce-scatter) and a gathering (all-gather) are the two halves of an all-reduce (ZeRO, arXiv
1910.02054, §7; PyTorch FSDP, arXiv 2304.11277, §3.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from pipecut.formulation.costs import forms
from pipecut.formulation.costs.forms import all_reduce, half_of_all_reduce
from pipecut.formulation.costs.once import once
from pipecut.formulation.predictor.layer_times import Share
from pipecut.formulation.problem.cluster import DeviceClass
from pipecut.formulation.problem.constraints import Sharded
from pipecut.formulation.problem.groups import GroupKind, layouts_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FormEdge, Split, into
from pipecut.formulation.problem.modes import forward_passes
from pipecut.formulation.problem.options import AllReduce, Boundary, Compute, StageTime, Synchronisation
from pipecut.formulation.problem.plan import Span
from pipecut.formulation.problem.precision import NOTHING_COPIED, Copy
from pipecut.formulation.problem.units import NOTHING, NS_PER_SECOND, Link, Volume, ceil_div, ceil_fraction


@dataclass(frozen=True, slots=True)
class Shared:
    """Bytes of one layer that so many ``holders`` each would hold alike; ``updated`` are the trained weights.

    Its methods return what a device sends, as the table of this module says.
    """

    holders: int
    weights: Fraction
    updated: Fraction
    gradients: Fraction
    kind: AllReduce

    def once(self, sharded: Sharded) -> Volume:
        """Return what is sent at the end of a step."""
        if sharded is Sharded.NONE:
            return all_reduce(self.gradients, self.holders, self.kind)
        if sharded is Sharded.WEIGHTS:
            return NOTHING
        gathered = self._half(self.updated)
        if sharded is Sharded.GRADIENTS:
            return gathered
        summed = self._half(self.gradients)
        return Volume(summed.amount_bytes + gathered.amount_bytes, summed.messages + gathered.messages)

    def gathered(self, sharded: Sharded) -> Volume:
        """Return what is sent before each pass of a micro-batch, forward or backward."""
        return self._half(self.weights) if sharded.divides_weights else NOTHING

    def scattered(self, sharded: Sharded) -> Volume:
        """Return what is sent after the backward pass of each micro-batch."""
        return self._half(self.gradients) if sharded.divides_gradients else NOTHING

    def through_host(self, sharded: Sharded) -> Volume:
        """Return what a device sends to and from its host in a step: its gradients there, new weights back.

        Who has a part of the optimiser's state sends and gets this part only.
        """
        parts = self.holders if sharded.divides_optimizer else 1
        messages = (self.gradients > 0) + (self.updated > 0)
        return Volume((self.gradients + self.updated) / parts, messages) if messages else NOTHING

    def _half(self, size_bytes: Fraction) -> Volume:
        return half_of_all_reduce(size_bytes, self.holders, self.kind)


def passes_of(instance: Instance, layer: int, form: int, kind: GroupKind) -> tuple[int, int]:
    """Forward and backward time of a layer in this form shared by a group, on the class that sets the pace.

    That is the one that is slowest in both passes together; the forward pass of a layer that is computed again
    runs twice.
    """
    return _paced(instance, layer, form, kind)[0]


def _paced(
    instance: Instance, layer: int, form: int, kind: GroupKind
) -> tuple[tuple[int, int], DeviceClass, Share]:
    """Return the passes of a layer on the class that sets the pace, that class, and the share that it does."""
    row, forwards = instance.layers[layer], forward_passes(instance, kind.mode, layer)
    devices = (instance.device_classes[one] for one in kind.classes)
    found = (
        (instance.predictor.passes_ns(row, device, form, share), device, share)
        for device, share in zip(devices, _shares(instance, form, kind), strict=True)
    )
    return max(found, key=lambda one: forwards * one[0][0] + one[0][1])


def waits(instance: Instance, layer: int) -> bool:
    """Tell whether a layer has a second half of its backward pass, for which the gradient of its output waits."""
    return instance.training.schedule.in_halves and instance.trains(layer)


def weight_gradient_ns(instance: Instance, layer: int, form: int, kind: GroupKind) -> int:
    """Return what of the backward time of :func:`passes_of` is for the gradient of the layer's weights.

    None of it where the layer trains no weights, its own or those that it shares with an earlier one.
    """
    if not instance.trains(layer):
        return 0
    _, device, share = _paced(instance, layer, form, kind)
    return instance.predictor.weight_gradient_ns(instance.layers[layer], device, form, share)


def _shares(instance: Instance, form: int, kind: GroupKind) -> Iterator[Share]:
    """Yield by class what a device does of a layer in this form: the fullest one, of tokens of experts."""
    whole, load, axes = kind.shares.replica, instance.cost.expert_load, kind.along(form)
    if len(axes) > 1:
        (one, size, _), (other, rest, _) = axes
        works = forms.Fullest(load, kind.shares.samples).works((one, other), (size, rest))
        pair = tuple(zip((one, other), works, strict=True))
        yield from [Share(whole * math.prod(part for _, part in pair), whole, pair)] * len(kind.classes)
        return
    for share in kind.shares.of(forms.SHARDINGS[Split.MATRIX][form].made).by_class:
        yield Share(min(whole, share * load) if forms.by_experts(form) else share, whole)


def compute_ns(instance: Instance, layer: int, form: int, kind: GroupKind) -> int:
    """Forward plus backward time of a layer in this form shared by a group (:func:`passes_of`)."""
    forward, backward = passes_of(instance, layer, form, kind)
    return forward_passes(instance, kind.mode, layer) * forward + backward


def least_compute_ns(instance: Instance, layer: int, kind: GroupKind) -> int:
    """Return what a layer computes at least on a group, in any form that it, or its layout, may have."""
    return min(compute_ns(instance, layer, form, kind) for form in layouts_on(instance, layer, kind))


def inside_ns(instance: Instance, layer: int, form: int, kind: GroupKind, copy: Copy | None = None) -> int:
    """Communication inside a layer of this form for one micro-batch.

    Gradients are summed once a step: 1/M of that per micro-batch. Where that is overlapped it counts as far as it
    takes longer than the backward pass of the layer (:func:`beside_ns`). ``copy`` is what the layer copies in its
    stage (``Instance.copied``).
    """
    steps = instance.training.micro_batches
    sync = ceil_div(synchronisation_ns(instance, layer, form, kind, copy), steps)
    sync += ceil_div(exchange_ns(instance, layer, form, kind, copy), steps)
    before, behind = _sharded(instance, layer, form, kind, copy)
    there, back = beside_ns(instance, layer, form, kind)
    forward, backward = passes_ns(instance, layer, form, kind)
    runs = forward_passes(instance, kind.mode, layer)
    return runs * (forward + max(0, before - there)) + backward + max(0, behind + sync - back)


def synchronisation_ns(
    instance: Instance, layer: int, form: int, kind: GroupKind, copy: Copy | None = None
) -> int:
    """Time to sum the gradients of a layer's weights over the devices that hold the same ones, once a step.

    What these divide among them is summed to its parts, or gathered from them, instead. The optimiser is a part of
    it: what it moves through memory under a roofline, or, on the host, the slowest way there and back. Copied
    weights are summed as the layer's own; :func:`exchange_ns` is what comes behind that.
    """
    sent, mode = shared(instance, layer, form, kind, copy), kind.mode
    among = 0 if kind.link is None else sent.once(mode.sharded).transfer_ns(kind.link)
    if not mode.optimizer_on_host:
        return among + update_ns(instance, layer, form, kind, copy)
    through = sent.through_host(mode.sharded)
    links = (instance.device_classes[one].host_link for one in kind.classes)
    return among + max((through.transfer_ns(link) for link in links if link is not None), default=0)


def update_ns(instance: Instance, layer: int, form: int, kind: GroupKind, copy: Copy | None) -> int:
    """Time of the optimiser for a layer, on the class with the slowest memory; 0 without a roofline.

    It reads gradients, and reads and writes weights and its own state, of what a device keeps of them, and that
    ``Roofline.update`` times.
    """
    if instance.cost.compute is not Compute.ROOFLINE:
        return 0
    sent, more = shared(instance, layer, form, kind, copy), copy or NOTHING_COPIED
    state = instance.optimizer_bytes[layer] + more.optimizer_bytes
    part = held(instance, layer, form, kind)
    moved = sent.gradients + 2 * (sent.updated + part * state)
    moved /= sent.holders if kind.mode.sharded.divides_optimizer else 1
    speeds = (instance.device_classes[one].memory_bytes_per_second for one in kind.classes)
    moved, share = instance.cost.roofline.update * moved, instance.cost.roofline.memory
    return max(ceil_fraction(moved * NS_PER_SECOND / (share * speed)) if speed else 0 for speed in speeds)


def exchange_ns(instance: Instance, layer: int, form: int, kind: GroupKind, copy: Copy | None) -> int:
    """Time to add the gradients of copied weights to those of the stage before that has them, once a step.

    Every device sends what it keeps of them over the slowest link of the cluster, as a stage does not know on
    which devices the other one runs.
    """
    link = instance.cluster.slowest
    if copy is None or link is None:
        return 0
    part = copy.gradient_bytes * held(instance, layer, form, kind)
    if kind.mode.sharded.divides_gradients:
        part /= holders(instance, layer, form, kind)
    return forms.all_reduce(part, 2, instance.cost.all_reduce).transfer_ns(link)


def sharded_ns(
    instance: Instance, layer: int, form: int, kind: GroupKind, copy: Copy | None = None
) -> tuple[int, int, int]:
    """Time that divided weights and gradients cost each forward pass, and the backward pass, of a micro-batch.

    And what of the latter is for the gradients of weights, where backward passes have two halves, else 0. Before a
    pass weights are gathered, after the backward pass gradients summed to their parts. Where that is overlapped it
    counts as far as it takes longer than the pass of the layer; each half of a backward pass hides its own.
    """
    before, behind = _sharded(instance, layer, form, kind, copy)
    there, back = beside_ns(instance, layer, form, kind)
    if not instance.training.schedule.in_halves:
        return max(0, before - there), max(0, behind - back), 0
    weights = min(back, weight_gradient_ns(instance, layer, form, kind))
    added = max(0, behind - before - weights)
    return max(0, before - there), max(0, before - back + weights) + added, added


def beside_ns(instance: Instance, layer: int, form: int, kind: GroupKind) -> tuple[int, int]:
    """Return for how long synchronisation is hidden: beside a forward pass of a layer, and its backward pass.

    Not at all where it is charged, and where all communication of a stage hides beside its computing. Of a
    backward pass half is taken where sums of a product's input hide beside that (:func:`passes_ns`).
    """
    cost = instance.cost
    if cost.synchronisation is Synchronisation.CHARGED or cost.stage_time is StageTime.OVERLAP:
        return 0, 0
    forward, backward = passes_of(instance, layer, form, kind)
    return forward, backward - (backward // 2 if cost.inside is Synchronisation.OVERLAPPED else 0)


def _sharded(instance: Instance, layer: int, form: int, kind: GroupKind, copy: Copy | None) -> tuple[int, int]:
    """Return what divided weights and gradients take before a pass, and before and behind the backward pass."""
    if kind.link is None:
        return 0, 0
    sent, sharded = shared(instance, layer, form, kind, copy), kind.mode.sharded
    gathered = sent.gathered(sharded).transfer_ns(kind.link)
    return gathered, gathered + sent.scattered(sharded).transfer_ns(kind.link)


def shared(instance: Instance, layer: int, form: int, kind: GroupKind, copy: Copy | None) -> Shared:
    """Return what several devices of a group hold alike of a layer, with what it copies."""
    part, more = held(instance, layer, form, kind), copy or NOTHING_COPIED
    return Shared(
        holders=holders(instance, layer, form, kind),
        weights=part * (instance.parameter_bytes[layer] + more.parameter_bytes),
        updated=part * (instance.updated_bytes[layer] + more.updated_bytes),
        gradients=part * (instance.gradient_bytes[layer] + more.gradient_bytes),
        kind=instance.cost.all_reduce,
    )


def held(instance: Instance, layer: int, form: int, kind: GroupKind) -> Fraction:
    """Return the part of a layer's weights that a device works with: of a pair, each form divides the rest."""
    split, axes = instance.layers[layer].split, kind.along(form)
    if len(axes) == 1:
        return forms.held(split, form, kind.shares.shard)
    return math.prod((forms.held(split, one, Fraction(1, size)) for one, size, _ in axes), start=Fraction(1))


def holders(instance: Instance, layer: int, form: int, kind: GroupKind) -> int:
    """Return how many devices of a group hold the same weights of a layer, and sum their gradients."""
    split = instance.layers[layer].split
    alike = (forms.holders(split, one, size, 1) for one, size, _ in kind.along(form))
    return kind.replicas * math.prod(alike)


def passes_ns(instance: Instance, layer: int, form: int, kind: GroupKind) -> tuple[int, int]:
    """Communication inside a layer for one micro-batch: in a forward pass, and in the backward pass.

    Each form of a pair sends what the other leaves of a tensor, over its own link, one after the other. Under
    ``inside: overlapped`` the gradient of an input is sent while that of the weights is computed, on the class
    that is over it first.
    """
    split, sent, axes = instance.layers[layer].split, instance.sent_bytes[layer], kind.along(form)
    times, beside = [0, 0], 0
    for at, (one, degree, link) in enumerate(axes):
        replica, gather = kind.shares.replica, kind.shares.columns.gather
        if len(axes) > 1:
            (other, rest, _), load = axes[1 - at], instance.cost.expert_load
            replica *= forms.Fullest(load, kind.shares.samples).has(forms.SHARDINGS[split][other].made, rest)
            gather = replica * Fraction(degree - 1, degree)
        sizes = instance.output_bytes[layer] * replica, instance.input_bytes[layer] * replica
        own = sent * gather, sent * replica
        volumes = forms.inside(split, one, degree, sizes=sizes, own=own, kind=instance.cost.all_reduce)
        taken = [0 if link is None else volume.transfer_ns(link) for volume in volumes]
        times = [sum(pair) for pair in zip(times, taken, strict=True)]
        beside += taken[1] if forms.sums_input(split, one) else 0
    if beside:
        shares, row = zip(kind.classes, _shares(instance, form, kind), strict=True), instance.layers[layer]
        classes, predictor = instance.device_classes, instance.predictor
        beside = min(beside, *(predictor.beside_ns(row, classes[one], form, share) for one, share in shares))
    return times[0], times[1] - beside


def between_ns(instance: Instance, edge: FormEdge, source: int, form: int, kind: GroupKind) -> int:
    """Communication to change a layout from form ``source`` to ``form`` at an edge inside a stage: all passes."""
    forward, backward = change_ns(instance, edge, source, form, kind)
    return forward_passes(instance, kind.mode, edge.consumer) * forward + backward


def change_ns(instance: Instance, edge: FormEdge, source: int, form: int, kind: GroupKind) -> tuple[int, int]:
    """Return what a change of layout at an edge takes in a forward and in a backward pass.

    What becomes whole does so in the forward pass, and what was whole in the backward pass; between others it is
    half and half, the odd nanosecond forward. Along two axes of a grid each change by itself.
    """
    forward = backward = 0
    for have, want, spent in changes_ns(instance, edge, source, form, kind):
        first = spent * (want == forms.WHOLE) if forms.WHOLE in (have, want) else spent - spent // 2
        forward, backward = forward + first, backward + spent - first
    return forward, backward


def changes_ns(
    instance: Instance, edge: FormEdge, source: int, form: int, kind: GroupKind
) -> tuple[tuple[str, str, int], ...]:
    """Return how a tensor lies, how it is wanted, and the time of the change and of that of its gradient back.

    One of all devices of a replica; two where one of the forms is a pair, inside the rows of a grid and across.
    """
    if kind.inner is None:
        return ()
    consumer, size, load = instance.layers[edge.consumer].split, edge.size_bytes, instance.cost.expert_load
    have, want = forms.layouts(consumer, source, form)
    if kind.axes is None or len(have) == len(want) == 1:
        of = kind.shares.of(forms.ROWS if forms.ROWS in (*have, *want) else forms.COLUMNS)
        parts = size * of.gather, size * of.turn, size * of.turn * load
        volume = forms.between(have[0], want[0], kind.tensor_parallel_degree, parts=parts)
        return ((have[0], want[0], volume.transfer_ns(kind.inner)),)
    fullest, whole = forms.Fullest(load, kind.shares.samples), size * kind.shares.replica
    have, want = (have * 2)[:2], (want * 2)[:2]
    volumes = forms.between_on_grid(have, want, kind.grid, whole=whole, fullest=fullest)
    found = zip(have, want, volumes, kind.axes, strict=True)
    return tuple((a, b, 0 if link is None else volume.transfer_ns(link)) for a, b, volume, link in found)


def layout_form(instance: Instance, span: Span, layer: int) -> int | None:
    """Return the layer of this stage whose form is the layout of ``layer``; None if it came over a boundary."""
    source = instance.sources[layer]
    return source if source is not None and source in span else None


@once(1 << 16)
def cut_bytes(instance: Instance, cut: int) -> int:
    """Bytes of activations that cross a cut point (the index of the first layer after it), one way.

    Every tensor that is made before and used after the cut crosses it, also when it skips stages, and crosses
    it once however many layers use it: what a producer sends is at most its whole output.
    """
    sent: dict[int, int] = {}
    for edge in into(instance.edges, range(cut, len(instance.layers))):
        if edge.producer < cut:
            sent[edge.producer] = sent.get(edge.producer, 0) + edge.size_bytes
    return sum(map(min, sent.values(), map(instance.output_bytes.__getitem__, sent)))


def activation_ns(instance: Instance, cut: int, link: Link | None) -> int:
    """Time of the activations that cross ``cut`` forward; 0 where they are not charged, or stay on a device."""
    if link is None or instance.cost.boundary is Boundary.NONE:
        return 0
    return Volume(Fraction(cut_bytes(instance, cut)), 1).transfer_ns(link)


def gradient_ns(instance: Instance, cut: int, link: Link | None) -> int:
    """Time of the gradients that cross ``cut`` backward; 0 where they are not charged, or stay on a device."""
    if link is None or instance.cost.boundary is not Boundary.BOTH:
        return 0
    return Volume(Fraction(cut_bytes(instance, cut)), 1).transfer_ns(link)
