"""Products with weights that can be divided by input or output features, and which dimensions those are.

``C = A x B``: A the data, B the weights, C the output. Form 1 gives each device some of the features that the
product sums over, of A and of B; the parts of C are added up, and the bias comes behind that. Form 2 gives each
device some columns of B and C.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Factors:
    """Names of the arguments, and dimensions: of the features in data, weights (inner, outer) and output."""

    data: str
    weight: str
    bias: str
    data_dimension: int
    inner: int
    outer: int
    output_dimension: int


_CONVOLUTION = Factors("input", "weight", "bias", 1, 1, 0, 1)
_TRANSPOSED = Factors("input", "weight", "bias", 1, 0, 1, 1)
PRODUCTS: dict[str, Factors] = {
    "linear": Factors("input", "weight", "bias", -1, 1, 0, -1),
    "addmm": Factors("mat1", "mat2", "self", -1, 0, 1, -1),
    "mm": Factors("self", "mat2", "", -1, 0, 1, -1),
    "matmul": Factors("self", "other", "", -1, 0, 1, -1),
    "embedding": Factors("indices", "weight", "", 0, 0, 1, -1),
    **{f"conv{rank}d": _CONVOLUTION for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": _TRANSPOSED for rank in (1, 2, 3)},
}
"""By operator. Other products (einsum, weights on the left, grouped ones) run in form 0 only."""
