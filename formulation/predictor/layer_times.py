"""The one place that says what a device takes for its part of a layer, forward and backward.

* *Measured*: where a layer has times measured on the device's class, these count
  (``formulation.predictor.curves``).
* *Peak* (``cost.compute: peak``): multiply-accumulates over the peak, eq. (3) of the PipePar paper.
* *Roofline*: products, bytes and kernels (``formulation.predictor.roofline``).

The form of a layer says which part of it a device does. By the paper, and of one measured row, a part takes its
share of the time of the whole; a roofline and a curve see the sizes that the part has. With
``stage_time: overlap`` all forms of a layer compute the same share, also on whole data: no search weighs computing
against communicating.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from pipecut.formulation.predictor import curves, roofline
from pipecut.formulation.predictor.roofline import Bytes, LayerPart, Speeds

if TYPE_CHECKING:
    from pipecut.formulation.problem.cluster import DeviceClass
    from pipecut.formulation.problem.layers import Layer
    from pipecut.formulation.problem.options import CostModel
    from pipecut.formulation.problem.training import Training

NS_PER_SECOND = 10**9
# Products of a backward pass for one of the forward pass: for the input, and for the weights.
BOTH_GRADIENTS = 2
Passes = tuple[int, int]
"""Forward and backward pass in ns, each rounded up."""


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a stage's work that a device does, and that of its whole replica.

    Where two forms divide a layer, ``pair`` are these, each with the part that a device does of what the other
    leaves.
    """

    device: Fraction = Fraction(1)
    replica: Fraction = Fraction(1)
    pair: tuple[tuple[int, Fraction], ...] = ()


WHOLE = Share()


@dataclass(frozen=True)
class Predictor:
    """Times of layers of a graph with elements of ``element_bytes``, for one micro-batch of a training.

    ``products`` says by name of a layer how many products its backward pass has for one of the forward pass
    (``formulation.problem.precision.backward_products``); two where it is not said.
    """

    training: Training
    cost: CostModel
    element_bytes: int
    products: Mapping[str, int] = field(default_factory=dict)

    def passes_ns(self, layer: Layer, device: DeviceClass, form: int = 0, share: Share = WHOLE) -> Passes:
        """Return the forward and the backward pass in ns of what one device of a class does of a layer.

        ``form`` is how the layer, or the one whose layout it keeps, is split.
        """
        curve = layer.measured and layer.measured_on(device.name)
        part = part_of(layer, form, share) if self._weighs_forms else LayerPart(share.device)
        if not curve and self.cost.compute == "peak":
            return _shared(self._by_peak(layer, device), part)
        if curve and len(curve) == 1:
            row, times = curve[0], self.training.micro_batch * curve[0].width
            forward = -(-row.forward_ns * times // row.samples)
            backward = -(-row.backward_ns * times // row.samples)
            return _shared((forward, backward), part)
        if curve:
            shard = part.inner * part.columns
            found = curves.at(curve, self.training.micro_batch * part.samples, shard)
            return _up(found[0]), _up(found[1])
        # Deep models repeat themselves: alike layers are predicted once.
        sizes = (layer.macs, layer.input_bytes, layer.output_bytes, layer.parameter_bytes, layer.trained_bytes)
        speeds = device.flops_per_second, device.memory_bytes_per_second
        key = layer.work, sizes, self._products(layer), speeds, part
        if key not in self._known:
            found = self._by_roofline(layer, device, part)
            self._known[key] = _up(found[0]), _up(found[1])
        return self._known[key]

    def beside_ns(self, layer: Layer, device: DeviceClass, form: int, share: Share) -> int:
        """Return for how long the gradient of a product's weights is computed: half of a backward pass.

        Meanwhile devices that work on the whole input can sum its gradient, or send the sums to the rows
        (Megatron-LM since 2022, ``async_tensor_model_parallel_allreduce``). 0 where weights are frozen, where
        ``cost.inside`` says that nobody does, and where the gradient of the weights is a pass of its own.
        """
        if self.cost.inside == "charged" or self._products(layer) < BOTH_GRADIENTS:
            return 0
        if self.training.schedule.in_halves:
            return 0
        return self.passes_ns(layer, device, form, share)[1] // BOTH_GRADIENTS

    def weight_gradient_ns(self, layer: Layer, device: DeviceClass, form: int = 0, share: Share = WHOLE) -> int:
        """Return what of the backward pass in ns is for the gradient of weights, of a layer that trains some.

        By so much the pass is shorter where the weights are frozen; of times that were measured it is half.
        """
        backward = self.passes_ns(layer, device, form, share)[1]
        if layer.measured and layer.measured_on(device.name):
            return backward // 2
        alone = replace(self, products={layer.name: min(1, self._products(layer))})
        return backward - alone.passes_ns(replace(layer, trainable_bytes=0), device, form, share)[1]

    def least_ns(self, layer: Layer, device: DeviceClass) -> Passes:
        """Return times of which a device never takes less than its share, whatever the form: for lower bounds.

        By the peak these are those of the whole layer. A roofline never gains by smaller sizes, so it is those
        of the whole layer before they were rounded up; of a curve it is the best rate that was measured.
        """
        curve = layer.measured and layer.measured_on(device.name)
        whole = self.passes_ns(layer, device)
        if curve and len(curve) > 1:
            return curves.least(curve, self.training.micro_batch)
        if curve or self.cost.compute == "peak":
            return whole
        return max(0, whole[0] - 1), max(0, whole[1] - 1)

    def most_ns(self, layer: Layer, device: DeviceClass) -> Passes:
        """Return times that no part of a layer exceeds on a device."""
        curve = layer.measured and layer.measured_on(device.name)
        if curve and len(curve) > 1:
            return curves.most(curve, self.training.micro_batch)
        return self.passes_ns(layer, device)

    def takes_its_share(self, layer: Layer, device: DeviceClass) -> bool:
        """Tell whether a part of a layer takes its share (:meth:`share`) of the time of the whole, rounded up."""
        curve = layer.measured and layer.measured_on(device.name)
        return len(curve) == 1 or (not curve and self.cost.compute == "peak")

    def share(self, layer: Layer, form: int, share: Share) -> Fraction:
        """Return what part of the whole layer a device does, which counts as :meth:`takes_its_share` says."""
        part = part_of(layer, form, share) if self._weighs_forms else LayerPart(share.device)
        return part.samples * part.inner * part.columns

    @property
    def _weighs_forms(self) -> bool:
        return self.cost.stage_time != "overlap"

    def _by_peak(self, layer: Layer, device: DeviceClass) -> Passes:
        """Return ``Size_o x P / d`` of eq. (3) for the whole layer.

        A product with frozen weights is computed backward for its input only: once less than for input and
        weights.
        """
        cost, factor = self.cost, self.cost.backward_factor
        counted = layer.macs if cost.count == "macs" else layer.torchstat_flops
        work = cost.flops_per_mac * self.training.micro_batch * NS_PER_SECOND * counted
        again = (0, max(0, factor.numerator - factor.denominator), factor.numerator)[self._products(layer)]
        speed = device.flops_per_second
        return -(-work // speed), -(-work * again // (factor.denominator * speed))

    def _products(self, layer: Layer) -> int:
        return self.products.get(layer.name, 2)

    def _by_roofline(self, layer: Layer, device: DeviceClass, part: LayerPart) -> tuple[Fraction, Fraction]:
        speeds = Speeds(device.flops_per_second, device.memory_bytes_per_second)
        samples = LayerPart(part.samples * self.training.micro_batch, part.inner, part.columns)
        gradients, activation = self._element_ratios
        of, same = self.training.precision, Fraction(self.training.bytes_per_element, self.element_bytes)
        size, trained = layer.parameter_bytes, layer.trained_bytes
        weights = of.weight_bytes(size, trained, self.element_bytes) if of else _up(same * size)
        held = weights, _up(gradients * trained)
        sizes = Bytes(activation, *held, self._products(layer))
        of_device, moved = (samples, sizes, speeds, self.cost.roofline), layer.input_bytes + layer.output_bytes
        if layer.work is not None:  # these are the same with other numbers of micro-batches
            there, back = roofline.passes(layer.work, *of_device)
        else:
            there, back = roofline.unsized(layer.macs, moved, *of_device)
        steps = self.training.micro_batches
        return there, back + Fraction(steps - 1, steps) * roofline.adding(*of_device)

    @cached_property
    def _known(self) -> dict[tuple[object, ...], Passes]:
        """Return what was predicted by a roofline, by all that it depends on."""
        return {}

    @cached_property
    def _element_ratios(self) -> tuple[Fraction, Fraction]:
        of, same = self.training.precision, self.training.bytes_per_element
        found = (of.gradients, of.activations) if of else (same, same)
        return Fraction(found[0], self.element_bytes), Fraction(found[1], self.element_bytes)


def part_of(layer: Layer, form: int, share: Share) -> LayerPart:
    """Return what a device does of a layer by the form that the layer, or its layout, has.

    By rows (forms 0 and 5; behind form 3) a device has its own samples. Else a replica's samples are on all its
    devices: a matrix product has a part of its input (1, 3) or of its columns (2, 4), any other layer a part of
    its columns (2, 4) or all of it (1). A part of the experts (6) is one of columns, and so is one of a loss (7).
    Of two forms each divides what the other leaves.
    """
    if share.pair:
        found = LayerPart(share.replica)
        for part in (part_of(layer, one, Share(of)) for one, of in share.pair):
            found = LayerPart(found.samples * part.samples, found.inner * part.inner, found.columns * part.columns)
        return found
    if form in (0, 5) or (form == 3 and not layer.is_matrix):
        return LayerPart(share.device)
    width = share.device / share.replica
    if form in (2, 4, 6) or (form == 7 and layer.split == "join"):
        return LayerPart(share.replica, columns=width)
    return LayerPart(share.replica, inner=width if layer.is_matrix else Fraction(1))


def _shared(whole: Passes, part: LayerPart) -> Passes:
    share = part.samples * part.inner * part.columns
    forward, backward = (-(-one * share.numerator // share.denominator) for one in whole)
    return forward, backward


def _up(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
