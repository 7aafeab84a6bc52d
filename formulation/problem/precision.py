"""In how many bytes weights, gradients, activations and optimiser state are held, and what that makes of a graph.

A layer graph counts in elements of its own and for one sample; an instance in those of the training and for one
micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING

from formulation.problem.units import ceil_div

if TYPE_CHECKING:
    from formulation.problem.layers import Layer
    from formulation.problem.options import Training

__all__ = ["PRESETS", "Precision"]


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes of one element of each kind, and what the optimiser keeps of a parameter beside weight and gradient.

    ``optimizer`` includes master weights, where the weights themselves are kept in less. Raises ValueError for a
    number below 1, and below 0 for the optimiser.
    """

    weights: int
    gradients: int
    activations: int
    optimizer: int

    def __post_init__(self) -> None:
        for one in fields(self):
            value, least = getattr(self, one.name), 0 if one.name == "optimizer" else 1
            if type(value) is not int or value < least:
                raise ValueError(f"precision.{one.name} is {value!r}, expected {least} bytes or more")


PRESETS: Mapping[str, Precision] = MappingProxyType(
    {
        "fp32": Precision(weights=4, gradients=4, activations=4, optimizer=8),
        "amp": Precision(weights=4, gradients=4, activations=2, optimizer=8),
        "fp16-mixed": Precision(weights=2, gradients=2, activations=2, optimizer=12),
        "bf16-mixed": Precision(weights=2, gradients=4, activations=2, optimizer=12),
        "bf16": Precision(weights=2, gradients=2, activations=2, optimizer=4),
    }
)
"""By name, with Adam, which keeps two numbers for each parameter.

``amp``: weights in 32 bits, cast where they are used (torch.autocast). ``fp16-mixed``: 16 bytes a parameter, with
a 32-bit copy of the weights (ZeRO, arXiv 1910.02054, §3.1). ``bf16-mixed``: gradients are summed in 32 bits, 18
bytes a parameter (Megatron-LM, the table of its distributed optimiser). ``bf16``: everything in 16 bits.
"""


def layer_sizes(layers: Sequence[Layer], element_bytes: int, training: Training) -> dict[str, tuple[int, ...]]:
    """Return the byte counts of every layer by the name of their field in ``Instance``.

    ``element_bytes`` is what the graph counts an element with. Frozen weights have neither gradient nor optimiser
    state; of a parameter the optimiser keeps as much whatever the weight takes.
    """
    elements = training.elements
    weights, gradients = (Fraction(size, element_bytes) for size in (elements.weights, elements.gradients))
    return {
        "parameter_bytes": _scaled((layer.parameter_bytes for layer in layers), weights),
        "gradient_bytes": _scaled((layer.trained_bytes for layer in layers), gradients),
        "optimizer_bytes": tuple(
            ceil_div(layer.trained_bytes, element_bytes) * elements.optimizer for layer in layers
        ),
        "input_bytes": activation_sizes((layer.input_bytes for layer in layers), element_bytes, training),
        "output_bytes": activation_sizes((layer.output_bytes for layer in layers), element_bytes, training),
        "stash_bytes": activation_sizes((layer.stash_bytes for layer in layers), element_bytes, training),
    }


def activation_sizes(sizes: Iterable[int], element_bytes: int, training: Training) -> tuple[int, ...]:
    """Return activations of one sample as those of one micro-batch, in the elements of the training."""
    return _scaled(sizes, Fraction(training.elements.activations, element_bytes) * training.micro_batch)


def _scaled(sizes: Iterable[int], factor: Fraction) -> tuple[int, ...]:
    times, parts = factor.numerator, factor.denominator
    return tuple(ceil_div(size * times, parts) for size in sizes)
