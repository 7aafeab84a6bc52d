"""What autograd keeps of each operator for its backward pass, as one rule per operator.

A rule yields the tensors that are kept (each storage is counted once for the whole model, by the caller) and, as
plain integers, bytes that exist for the backward pass only: dropout masks, pooling indices, normalisation
statistics. All for the whole example batch. The rules follow ``derivatives.yaml`` of PyTorch and the kernels
that run on GPUs: dropout keeps a mask of one byte per element, attention is fused and keeps its inputs, its
output and one number per query, never the square of scores. Tests compare them with what
``torch.autograd.graph.saved_tensors_hooks`` sees.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator

from pipecut.ingest.operators.operations import Operation, Tensor, tensors_in

Kept = Iterable[Tensor | int]
Keeps = Callable[[Operation], Kept]
_INDEX_BYTES = 8
_STATISTIC_BYTES = 4


def nothing(operation: Operation) -> Kept:
    """Keep nothing: the gradient needs shapes only."""
    del operation
    return ()


def first_input(operation: Operation) -> Kept:
    """Keep the first operand (GELU, SiLU, clamp, average pooling, ...)."""
    return operation.operands[:1]


def output(operation: Operation) -> Kept:
    """Keep the result, from which the gradient is computed (ReLU, sigmoid, softmax, ...)."""
    return operation.outputs[:1]


def _factors(left: Tensor, right: Tensor) -> Iterator[Tensor]:
    """Keep each factor of a product only if the other one needs a gradient."""
    if right.differentiable:
        yield left
    if left.differentiable:
        yield right


def weighted(operation: Operation) -> Kept:
    """Keep the input of a convolution or linear layer whose weights are trained."""
    return _factors(operation.tensor("input"), operation.tensor("weight"))


def rows_weighted(operation: Operation) -> Kept:
    """Keep the input of a linear layer with trained weights: as rows, so a copy where no view makes it rows."""
    data = operation.tensor("input")
    for kept in weighted(operation):
        yield kept if kept is not data or _lies_in_rows(data) else data.total_bytes


def _lies_in_rows(tensor: Tensor) -> bool:
    """Tell whether a view makes a tensor a matrix of all its rows; where strides are not known it is said to."""
    outer = [row for row in zip(tensor.shape[:-1], tensor.strides[:-1], strict=False) if row[0] > 1]
    return all(stride == size * inner for (_, stride), (size, inner) in itertools.pairwise(outer))


def two_factors(operation: Operation) -> Kept:
    """Keep the factors of a product of two tensors, where each is needed; a product with a number keeps none."""
    operands = operation.operands[-2:]
    return _factors(*operands) if len(operands) == 2 else ()


def matrices(operation: Operation) -> Kept:
    """Keep the factors of a product of matrices; of batches of more than one dimension a copy, where it takes one.

    Such batches are brought into one dimension first. Where heads were expanded (grouped-query attention), lie
    beside others in one tensor, or are one for several, no view does that, and what is kept is the copy.
    """
    batch = math.prod(operation.output.shape[:-2])
    for kept in two_factors(operation):
        if not isinstance(kept, Tensor) or min(one.rank for one in operation.operands[-2:]) < 3:
            yield kept
        elif (whole := batch * math.prod(kept.shape[-2:]) * kept.element_bytes) != kept.total_bytes:
            yield whole
        else:
            yield kept.total_bytes if kept.batched and kept.rank > 3 and whole != kept.storage_bytes else kept


def quotient(operation: Operation) -> Kept:
    """Keep the divisor, and the dividend if the divisor needs a gradient; division by a number keeps nothing."""
    operands = operation.operands
    if len(operands) < 2:
        return ()
    return operands[::-1] if operands[1].differentiable else operands[1:]


def inputs(operation: Operation) -> Kept:
    """Keep every operand (``maximum`` and ``minimum`` compare them again)."""
    return operation.operands


def whole_numbers(operation: Operation) -> Kept:
    """Keep the masks and indices (``where``, ``masked_fill``, ``embedding``, ``gather``), not the values."""
    return [tensor for tensor in operation.operands if not tensor.floating]


def chosen_indices(operation: Operation) -> Kept:
    """Keep the positions that were chosen, one 64-bit index per output element (sort, topk, max over a dim)."""
    return (operation.output.elements * _INDEX_BYTES,)


def max_pooling(operation: Operation) -> Kept:
    """Keep the input and one 64-bit index per output element."""
    return (operation.operands[0], operation.output.elements * _INDEX_BYTES)


def padding(operation: Operation) -> Kept:
    """Keep nothing when padding with a constant, else the input (reflected or repeated at the border)."""
    return () if operation.arguments.get("mode", "constant") == "constant" else operation.operands[:1]


def adaptive_average(operation: Operation) -> Kept:
    """Keep the input, except for pooling to a single position, which PyTorch computes as a mean."""
    positions = math.prod(operation.integers("output_size") or (1,))
    return () if positions == 1 else operation.operands[:1]


def dropout(operation: Operation) -> Kept:
    """Keep one byte per element (the mask of the fused kernel); nothing when dropout is off."""
    active = operation.arguments.get("train") and operation.arguments.get("p")
    return (operation.output.elements,) if active else ()


def feature_dropout(operation: Operation) -> Kept:
    """Keep one number per sample and channel; nothing when dropout is off."""
    active = operation.arguments.get("train") and operation.arguments.get("p")
    result = operation.output
    return (math.prod(result.shape[:2]) * result.element_bytes,) if active else ()


def batch_norm(operation: Operation) -> Kept:
    """Keep the input, and mean and inverse deviation per channel.

    The statistics exist once per batch. They are charged to every sample in full, so a stage is never charged
    too little: 8 bytes per channel and sample, 0.3 % of what ResNet-152 keeps.
    """
    data = operation.tensor("input")
    return (data, data.shape[0] * data.shape[1] * 2 * _STATISTIC_BYTES)


def layer_norm(operation: Operation) -> Kept:
    """Keep the input, and mean and inverse deviation per normalised row."""
    data = operation.tensor("input")
    row = math.prod(operation.integers("normalized_shape") or (1,))
    return (data, data.elements // row * 2 * _STATISTIC_BYTES)


def rms_norm(operation: Operation) -> Kept:
    """Keep the input and the inverse root mean square per normalised row, as the fused kernel does."""
    data = operation.tensor("input")
    row = math.prod(operation.integers("normalized_shape") or (1,))
    return (data, data.elements // row * _STATISTIC_BYTES)


def group_norm(operation: Operation) -> Kept:
    """Keep the input, and mean and inverse deviation per sample and group."""
    data = operation.tensor("input")
    return (data, data.shape[0] * operation.integer("num_groups", 1) * 2 * _STATISTIC_BYTES)


def instance_norm(operation: Operation) -> Kept:
    """Keep the input, and mean and inverse deviation per sample and channel."""
    data = operation.tensor("input")
    return (data, math.prod(data.shape[:2]) * 2 * _STATISTIC_BYTES)


def input_and_output(operation: Operation) -> Kept:
    """Keep the input and the result (norms, largest values, log of a sum of exponentials)."""
    return (*operation.operands[:1], *operation.outputs[:1])


def attention(operation: Operation) -> Kept:
    """Keep query, key, value, mask and output, and one log-sum per query; not the square of scores.

    Where keys are one for several heads without ``enable_gqa`` no kernel is fused: every factor is copied for
    every head, and the square of scores is kept.
    """
    query, key, value = (operation.tensor(name) for name in ("query", "key", "value"))
    queries = query.elements // query.shape[-1]
    if key.shape[:-2] == query.shape[:-2] or operation.arguments.get("enable_gqa"):
        return (*operation.operands, operation.output, queries * _STATISTIC_BYTES)
    heads = math.prod(query.shape[:-2])
    factors = sum(heads * math.prod(one.shape[-2:]) for one in (query, key, value))
    return ((factors + queries * key.shape[-2]) * query.element_bytes,)


def grouped(operation: Operation) -> Kept:
    """Keep the rows and the weights of the groups, each if the other needs a gradient."""
    return _factors(*operation.operands[:2])


def recurrent(operation: Operation) -> Kept:
    """Keep the input, the output, and what every gate and cell was at every position, as cuDNN's reserve does."""
    data = operation.tensor("input")
    matrices = (one for one in tensors_in(operation.arguments["params"]) if one.rank == 2)
    # Each gate has one matrix for the input and one for the state.
    gates = sum(one.shape[0] for one in matrices) // 2
    positions = data.elements // data.shape[-1]
    return (data, operation.output, positions * (gates + gates // 2) * data.element_bytes)


def cross_entropy(operation: Operation) -> Kept:
    """Keep the logarithms of the probabilities, and the classes."""
    scores, classes = operation.operands[:2]
    return (scores.total_bytes, classes)


def everything(operation: Operation) -> Kept:
    """Keep all operands and results: what is kept of an operator that is not known cannot be more."""
    return (*operation.operands, *operation.outputs)
