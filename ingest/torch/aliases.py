"""Which results of an operator lie in the memory of its operand, told from shapes and strides as torch does.

A file of an exported model says how a tensor is laid out, but not which tensors share memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_VIEWS = {
    *(
        "view",
        "_unsafe_view",
        "view_as",
        "unflatten",
        "unsqueeze",
        "squeeze",
        "expand",
        "expand_as",
        "broadcast_to",
    ),
    *("transpose", "permute", "t", "numpy_T", "movedim", "moveaxis", "swapaxes", "swapdims", "diagonal"),
    *("chunk", "split", "split_with_sizes", "tensor_split", "slice", "narrow", "select", "unbind", "unfold"),
    *("detach", "alias", "broadcast_to"),
}
_RESHAPES = frozenset({"reshape", "flatten", "reshape_as"})
_CONVERSIONS = frozenset({"to", "type_as", "float", "double", "half", "bfloat16"})


@dataclass(frozen=True, slots=True)
class Strided:
    """How a tensor lies in memory: its number format, sizes and strides in elements."""

    format: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def contiguous(self) -> bool:
        """Tell whether its elements follow one another in order."""
        step = 1
        for length, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if length != 1 and stride != step:
                return False
            step *= length
        return True


def shares(name: str, arguments: Mapping[str, object], operand: Strided, result: Strided) -> bool:
    """Tell whether a result lies in the memory of the first operand. In-place operators are not asked about."""
    if name in _RESHAPES:
        return viewable(operand, result.shape)
    if name == "contiguous":
        return operand.contiguous
    if name in _CONVERSIONS:
        return operand.format == result.format and not arguments.get("copy")
    return name in _VIEWS


def viewable(old: Strided, shape: Sequence[int]) -> bool:
    """Tell whether a tensor can be seen in another shape without a copy (``computeStride`` of torch)."""
    if math.prod(old.shape) == 0 or not old.shape:
        return True
    at, base = len(shape) - 1, old.strides[-1]
    elements = seen = 1
    for dimension in range(len(old.shape) - 1, -1, -1):
        elements *= old.shape[dimension]
        ends = dimension == 0 or (old.shape[dimension - 1] != 1 and old.strides[dimension - 1] != elements * base)
        if not ends:
            continue
        while at >= 0 and (seen < elements or shape[at] == 1):
            seen *= shape[at]
            at -= 1
        if seen != elements:
            return False
        if dimension:
            base, elements, seen = old.strides[dimension - 1], 1, 1
    return at == -1
