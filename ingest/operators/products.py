"""Matrix products: which are products with weights, which parallel forms those can take, where the columns go.

The forms are PipePar's (Fig. 1): form 0 splits the rows of the input, form 1 the sum over input features (every
device holds a share of the input's columns), form 2 the output columns.

Multiply-accumulates of the operators that multiply matrices, exactly, for the whole example batch.

Every function takes an :class:`~ingest.operators.operations.Operation` and returns a count. Additions of a bias
are not multiply-accumulates. Positions in the padding of a convolution count like any other, and causal attention
counts its full square, as the literature does (Megatron-LM, arXiv 2104.04473, appendix).
"""

from __future__ import annotations

import math

from pipecut.formulation.problem.layers import Across, Axis
from pipecut.ingest.errors import TraceError
from pipecut.ingest.operators.columns import Columns, Find, Verdict, whole
from pipecut.ingest.operators.operations import Operation, Tensor, tensors_in


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


FACTORS = {
    "conv1d": ("input", "weight"),
    "conv2d": ("input", "weight"),
    "conv3d": ("input", "weight"),
    "conv_transpose1d": ("input", "weight"),
    "conv_transpose2d": ("input", "weight"),
    "conv_transpose3d": ("input", "weight"),
    "linear": ("input", "weight"),
    "embedding": ("indices", "weight"),
    "matmul": ("self", "other"),
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "_grouped_mm": ("self", "mat2"),
    "transformers::grouped_mm_fallback": ("input", "weight"),
}
"""The two factors of every product by operator; an einsum lists them itself."""


def factors(operation: Operation) -> tuple[Tensor, Tensor] | None:
    """Return the two tensors that an operator multiplies as matrices, or None when it multiplies none."""
    if operation.name == "einsum":
        operands = tuple(tensors_in(operation.arguments["tensors"]))
        return (operands[0], operands[1]) if len(operands) == 2 else None
    names = FACTORS.get(operation.name)
    return (operation.tensor(names[0]), operation.tensor(names[1])) if names else None


def is_weighted(operation: Operation) -> bool:
    """Tell whether an operator multiplies by a matrix that does not depend on the inputs."""
    pair = factors(operation)
    return pair is not None and pair[0].batched != pair[1].batched


def is_product(operation: Operation) -> bool:
    """Tell whether an operator multiplies activations with each other (attention, ``matmul`` of two inputs)."""
    pair = factors(operation)
    both = pair is not None and pair[0].batched and pair[1].batched
    return both or operation.name == "scaled_dot_product_attention"


def forms(operation: Operation, find: Find) -> tuple[int, ...]:
    """Return the forms that a product with weights can take.

    Form 1 needs the input's columns to be what the product sums over. They are not where a linear layer works
    across tokens or pixels, and not in a grouped convolution, which sums inside a group only: devices that hold
    different channels would hold different groups, with nothing to add up. An input without columns is whole or
    cut by rows, from which every device can take its share.
    """
    pair = factors(operation)
    if operation.integer("groups", 1) > 1:
        return (0, 2)
    if pair is None or operation.name == "embedding":
        return (0, 1, 2)
    data = pair[0] if pair[0].batched else pair[1]
    placed = find(data)
    return (0, 1, 2) if placed is None or placed.dimension in summed(operation, data) else (0, 2)


def summed(operation: Operation, data: Tensor) -> set[int]:
    """Return the dimensions of the input that a product with weights sums over."""
    if operation.name.startswith("conv"):
        return {1}
    if operation.name == "einsum":
        terms, result = einsum_terms(operation)
        own = terms[0] if next(tensors_in(operation.arguments["tensors"])).batched else terms[1]
        return {dimension for dimension, letter in enumerate(own) if letter not in result}
    pair = factors(operation)
    on_the_right = pair is not None and pair[1].batched
    return {max(data.rank - 2, 0)} if on_the_right else {data.rank - 1}


def _weighted_columns(operation: Operation) -> Verdict:
    """Return the output columns of a product with weights: channels of a convolution, else the last dimension."""
    result = operation.output
    if operation.name.startswith("conv"):
        return True, whole(result, 1)
    pair = factors(operation)
    left_weights = pair is not None and not pair[0].batched and operation.name != "embedding"
    return True, whole(result, -2 if left_weights else -1)


def columns(operation: Operation, find: Find) -> Verdict:
    """Follow columns through a product of two activations: they have to lie in a common leading dimension."""
    if is_weighted(operation):
        return _weighted_columns(operation)
    pair = factors(operation)
    if pair is None:
        return False, None
    left, right = find(pair[0]), find(pair[1])
    legal = (
        left is not None and left == right and pair[0].rank == pair[1].rank and left.dimension < pair[0].rank - 2
    )
    return legal, left if legal else None


def einsum_columns(operation: Operation, find: Find) -> Verdict:
    """Follow columns through an einsum by their letter."""
    terms, result = einsum_terms(operation)
    tensors = tuple(tensors_in(operation.arguments["tensors"]))
    if is_weighted(operation):
        weights, data = (1, 0) if tensors[0].batched else (0, 1)
        fresh = [letter for letter in result if letter in terms[weights] and letter not in terms[data]]
        return bool(fresh), whole(operation.output, result.index(fresh[0])) if fresh else None
    placed = {
        (term[found.dimension], found.minor, found.count) if (found := find(tensor)) else None
        for term, tensor in zip(terms, tensors, strict=True)
    }
    common = placed.pop() if len(placed) == 1 else None
    if common is None or common[0] not in result:
        return not placed and common is None, None
    letter, minor, count = common
    return True, Columns(result.index(letter), minor, count)


BY_EXPERTS = ("_grouped_mm", "transformers::grouped_mm_fallback")
"""Products of tokens that are sorted by expert with the weights of all experts."""
NUMBER_BYTES = 4
"""A loss adds up in 32 bits."""


def across(operation: Operation, find: Find) -> Across | None:
    """Return what an operator does across rows or columns, or None.

    A product of activations, attention among them, needs the rows of all but its first factor; its heads are the
    columns that its factors have in common, so of grouped queries those of keys and values.
    """
    pair = factors(operation)
    if operation.name in BY_EXPERTS and pair is not None:
        return Across(Axis.EXPERTS, pair[1].shape[0])
    if is_product(operation):
        names = ("query", "key", "value")
        parts = [operation.tensor(name) for name in names] if pair is None else list(pair)
        heads = [find(part) for part in parts]
        # Keys and values that were repeated for their queries are sent once.
        sent = [part.total_bytes // (one.minor if one else 1) for part, one in zip(parts, heads, strict=True)]
        return Across(Axis.CONTEXT, math.gcd(*(one.count for one in heads if one)), sum(sent[1:]))
    if operation.name == "cross_entropy_loss":
        scores = operation.operands[0]
        classes = scores.shape[1 if scores.rank > 1 else 0]
        return Across(Axis.VOCABULARY, sent_bytes=NUMBER_BYTES * (scores.elements // max(1, classes)))
    return None
