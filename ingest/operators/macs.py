"""Multiply-accumulates of the operators that multiply matrices, exactly, for the whole example batch.

Every function takes an :class:`~ingest.operators.operations.Operation` and returns a count. Additions of a bias
are not multiply-accumulates. Positions in the padding of a convolution count like any other, and causal attention
counts its full square, as the literature does (Megatron-LM, arXiv 2104.04473, appendix).
"""

from __future__ import annotations

import math

from ingest.errors import TraceError
from ingest.operators.operations import Operation, tensors_in


def none(operation: Operation) -> int:
    """Return 0: the operator multiplies no matrices."""
    del operation
    return 0


def convolution(operation: Operation) -> int:
    """Output elements x input channels of one group x kernel size."""
    return operation.output.elements * math.prod(operation.tensor("weight").shape[1:])


def transposed_convolution(operation: Operation) -> int:
    """Input elements x output channels of one group x kernel size."""
    return operation.tensor("input").elements * math.prod(operation.tensor("weight").shape[1:])


def linear(operation: Operation) -> int:
    """Output elements x input features."""
    return operation.output.elements * operation.tensor("input").shape[-1]


def product(operation: Operation) -> int:
    """Output elements x the last dimension of the left operand (``matmul``, ``mm``, ``bmm``)."""
    return operation.output.elements * operation.tensor("self").shape[-1]


def added_product(operation: Operation) -> int:
    """Output elements x the last dimension of the left factor (``addmm``, ``baddbmm``)."""
    factor = "mat1" if "mat1" in operation.arguments else "batch1"
    return operation.output.elements * operation.tensor(factor).shape[-1]


def grouped(operation: Operation) -> int:
    """Output elements x input features: every row is multiplied with the weights of one group (of one expert)."""
    return operation.output.elements * operation.operands[0].shape[-1]


def recurrent(operation: Operation) -> int:
    """Positions of all sequences x elements of the weight matrices, over all layers and directions."""
    data = operation.tensor("input")
    weights = sum(one.elements for one in tensors_in(operation.arguments["params"]) if one.rank == 2)
    return data.elements // data.shape[-1] * weights


def attention(operation: Operation) -> int:
    """Count two products per head: queries x keys over the head size, and weights x values over the keys."""
    keys = operation.tensor("key").shape[-2]
    return (operation.tensor("query").elements + operation.output.elements) * keys


def einsum_terms(operation: Operation) -> tuple[list[str], str]:
    """Split an einsum equation into the letters of its operands and of its output.

    Raises TraceError for more than two operands, an ellipsis or an implicit output, which have no one count.
    """
    equation = str(operation.arguments["equation"]).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or len(terms) > 2:
        raise TraceError(
            f"layer {operation.call.module or 'of the model itself'}: einsum {equation!r} cannot be costed, "
            "expected one or two operands, no ellipsis and an explicit output; write it as matmul"
        )
    return terms, right


def einsum(operation: Operation) -> int:
    """Product of the sizes of all letters; 0 with one operand (a sum or a permutation)."""
    terms, _ = einsum_terms(operation)
    if len(terms) < 2:
        return 0
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, tensors_in(operation.arguments["tensors"]), strict=True):
        sizes.update(zip(term, tensor.shape, strict=True))
    return math.prod(sizes.values())
