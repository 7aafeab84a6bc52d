"""In how many bytes weights, gradients, activations and optimiser state are held, and what that makes of a graph.

A layer graph counts in elements of its own and for one sample; an instance in those of the training and for one
micro-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from pipecut.formulation.problem.units import ceil_div, ceil_fraction

if TYPE_CHECKING:
    from pipecut.formulation.problem.layers import Edge, Layer, Tie

MOST_FROZEN = 8
"""Bytes of the largest weight that is not trained."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes of one element of each kind, and what the optimiser keeps of a parameter beside weight and gradient.

    ``optimizer`` includes master weights, where the weights themselves are kept in less. ``frozen``: bytes of a
    weight that is not trained, which may be parts of one (4 bits: 1/2); None: as any other. Raises ValueError for
    a number below 1, below 0 for the optimiser, and for frozen weights not above 0 or above 8.
    """

    weights: int
    gradients: int
    activations: int
    optimizer: int
    frozen: Fraction | int | None = None

    @staticmethod
    def presets() -> dict[str, Precision]:
        """Return those that have a name, with Adam, which keeps two numbers for each parameter.

        ``amp``: weights in 32 bits, cast where they are used (torch.autocast). ``fp16-mixed``: 16 bytes a
        parameter, with a 32-bit copy of the weights (ZeRO, arXiv 1910.02054, §3.1). ``bf16-mixed``: gradients are
        summed in 32 bits, 18 bytes a parameter (Megatron-LM, the table of its distributed optimiser). ``bf16``:
        everything in 16 bits.
        """
        return {
            "fp32": Precision(weights=4, gradients=4, activations=4, optimizer=8),
            "amp": Precision(weights=4, gradients=4, activations=2, optimizer=8),
            "fp16-mixed": Precision(weights=2, gradients=2, activations=2, optimizer=12),
            "bf16-mixed": Precision(weights=2, gradients=4, activations=2, optimizer=12),
            "bf16": Precision(weights=2, gradients=2, activations=2, optimizer=4),
        }

    def __post_init__(self) -> None:
        for one in fields(self):
            value, least = getattr(self, one.name), 0 if one.name == "optimizer" else 1
            if one.name == "frozen":
                if value is not None and not 0 < value <= MOST_FROZEN:
                    raise ValueError(
                        f"precision.frozen is {value}, expected more than 0 and at most {MOST_FROZEN}"
                    )
            elif type(value) is not int or value < least:
                raise ValueError(f"precision.{one.name} is {value}, expected {least} or more, in whole bytes")

    def __str__(self) -> str:
        """Return it as a scenario writes it."""
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        return "{" + ", ".join(f"{key}: {value}" for key, value in said.items() if value is not None) + "}"

    def weight_bytes(self, size: int, trained: int, element_bytes: int) -> int:
        """Return the bytes of weights of ``size`` bytes in the graph's elements, of which so many are trained.

        Rounded up once.
        """
        kept, parts = (self.weights if self.frozen is None else self.frozen).as_integer_ratio()
        return ceil_div(trained * self.weights * parts + (size - trained) * kept, element_bytes * parts)


def lent_bytes(
    edges: Iterable[Edge], made: Sequence[int], kept: Sequence[int], again: Collection[int]
) -> tuple[int, ...]:
    """Return by layer what stays of its output for every micro-batch because layers ``again`` are computed again.

    Of a layer that is not: what those read that are. Of one that is: what others read that do not keep as much as
    they read, as a layer graph counts what several layers keep at the first of them alone (``kept``). Never more
    than the output (``made``).
    """
    flows, read = tuple(edges), [0] * len(made)
    for edge in flows:
        read[edge.consumer] += edge.size_bytes
    lent = [0] * len(made)
    for edge in flows:
        counted = edge.producer in again and kept[edge.consumer] >= read[edge.consumer]
        if (edge.producer in again) != (edge.consumer in again) and not counted:
            lent[edge.producer] += edge.size_bytes
    return tuple(map(min, lent, made))


def layer_sizes(
    layers: Sequence[Layer], element_bytes: int, elements: Precision, samples: int
) -> dict[str, tuple[int, ...]]:
    """Return the byte counts of every layer by the name of their field in ``Instance``.

    ``element_bytes`` is what the graph counts an element with. Frozen weights have neither gradient nor optimiser
    state; of a parameter the optimiser keeps as much whatever the weight takes.
    """
    weights, gradients = (Fraction(size, element_bytes) for size in (elements.weights, elements.gradients))
    active = partial(activation_sizes, element_bytes=element_bytes, elements=elements, samples=samples)
    return {
        "parameter_bytes": tuple(
            elements.weight_bytes(layer.parameter_bytes, layer.trained_bytes, element_bytes) for layer in layers
        ),
        "updated_bytes": _scaled((layer.trained_bytes for layer in layers), weights),
        "gradient_bytes": _scaled((layer.trained_bytes for layer in layers), gradients),
        "optimizer_bytes": tuple(
            ceil_div(layer.trained_bytes, element_bytes) * elements.optimizer for layer in layers
        ),
        "input_bytes": active(layer.input_bytes for layer in layers),
        "output_bytes": active(layer.output_bytes for layer in layers),
        "stash_bytes": active(layer.stash_bytes for layer in layers),
        "sent_bytes": active(layer.across.sent_bytes if layer.across else 0 for layer in layers),
    }


def activation_sizes(
    sizes: Iterable[int], element_bytes: int, elements: Precision, samples: int
) -> tuple[int, ...]:
    """Return activations of one sample as those of so many, in the elements of the training."""
    return _scaled(sizes, Fraction(elements.activations, element_bytes) * samples)


@dataclass(frozen=True, slots=True)
class Copy:
    """What a layer holds beside its own weights in a stage that starts behind layer ``earlier``: bytes, undivided.

    Whether a layer copies depends on where its stage starts and on nothing else, so prices stay local
    (docs/decisions/0011-tied-weights.md).

    ``earlier`` is the layer before it that uses the same weights last; ``updated_bytes`` are trained weights.
    """

    earlier: int
    parameter_bytes: int
    updated_bytes: int
    gradient_bytes: int
    optimizer_bytes: int


NOTHING_COPIED = Copy(0, 0, 0, 0, 0)


def copies_of(
    ties: Iterable[Tie], layers: int, element_bytes: int, elements: Precision
) -> tuple[Copy | None, ...]:
    """Return by layer what it copies; None where it shares nothing with an earlier layer.

    A layer that shares weights with several earlier layers copies all of them as soon as one of these is in an
    earlier stage.
    """
    found = list[Copy | None]([None] * layers)
    weights, gradients = (Fraction(size, element_bytes) for size in (elements.weights, elements.gradients))
    for tie in ties:
        for earlier, layer in itertools.pairwise(tie.layers):
            before = found[layer] or replace(NOTHING_COPIED, earlier=earlier)
            found[layer] = Copy(
                min(earlier, before.earlier),
                before.parameter_bytes
                + elements.weight_bytes(tie.parameter_bytes, tie.trained_bytes, element_bytes),
                before.updated_bytes + ceil_fraction(tie.trained_bytes * weights),
                before.gradient_bytes + ceil_fraction(tie.trained_bytes * gradients),
                before.optimizer_bytes + ceil_div(tie.trained_bytes, element_bytes) * elements.optimizer,
            )
    return tuple(found)


def backward_products(layers: Sequence[Layer], ties: Iterable[Tie]) -> list[int]:
    """Return by layer how many products its backward pass has for one of the forward pass.

    Two: for the gradient of the input and for that of the weights, or of the second input. One where it uses
    weights, its own or tied ones, and none of them is trained. None where no gradient is asked of it.
    """
    used = [(layer.parameter_bytes, layer.trained_bytes) for layer in layers]
    for tie in ties:
        for at in tie.layers[1:]:
            used[at] = (used[at][0] + tie.parameter_bytes, used[at][1] + tie.trained_bytes)
    return [
        0 if not layer.backward else 1 if size and not trained else 2
        for layer, (size, trained) in zip(layers, used, strict=True)
    ]


def _scaled(sizes: Iterable[int], factor: Fraction) -> tuple[int, ...]:
    times, parts = factor.numerator, factor.denominator
    return tuple(ceil_div(size * times, parts) for size in sizes)
