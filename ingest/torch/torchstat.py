"""The operation count behind PipePar's Table I ("Total Flops (G)"), reproduced for comparison only.

It is the count of the tool torchstat: one per multiply-accumulate and per bias addition of a convolution, input
features x output features for a linear layer (no bias), one per element for ReLU and its kin, one per input
element for pooling with a window, two per element for batch normalisation. It counts modules only (a functional
ReLU is free), only of the classes listed here, and a module that is called several times counts its last call.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingest.operators.costs import rules_of
from ingest.operators.operations import Operation, Tensor

_PER_ELEMENT = frozenset(
    {"ReLU", "ReLU6", "PReLU", "ELU", "LeakyReLU", "MaxPool2d", "MaxPool3d", "AvgPool2d", "AvgPool3d"}
)


def total(kind: str, operations: Sequence[Operation]) -> int:
    """Return the count for one call of a module of class ``kind``, for the whole example batch."""
    products = sum(rules_of(operation).macs(operation) for operation in operations)
    first, last = operations[0], operations[-1]
    if kind in ("Conv2d", "Conv3d"):
        bias = isinstance(first.arguments.get("bias"), Tensor)
        return products + (last.output.elements if bias else 0)
    if kind == "Linear":
        return products
    if kind in ("BatchNorm2d", "BatchNorm3d"):
        affine = isinstance(last.arguments.get("weight"), Tensor)
        return last.output.elements * (2 if affine else 1)
    if kind in _PER_ELEMENT:
        return first.operands[0].elements
    return last.output.elements if kind == "Upsample" else 0
