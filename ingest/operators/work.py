"""The sizes of what a layer computes: the matrix products among its operations, and what its other kernels move.

Sizes are only said where they multiply to the multiply-accumulates of the operator
(``ingest.operators.products``); a layer with an operator whose sizes are not known (an einsum, a recurrent
layer, experts) has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from pipecut.formulation.predictor.roofline import Product, Work
from pipecut.ingest.operators.costs import rules_of
from pipecut.ingest.operators.operations import Operation, Tensor
from pipecut.ingest.operators.products import added_product, factors, is_weighted, product

Sizes = tuple[int, int, int, int]
"""Rows, inner, columns and copies for the whole example batch (of products with weights: copies are those of
all)."""


def work_of(operations: Sequence[Operation], batch: int) -> Work | None:
    """Return the work of a layer for one sample; None where the sizes of a product are not known."""
    products: list[Product] = []
    kernels = read = written = 0
    for operation in operations:
        rules = rules_of(operation)
        taken, made = _bytes(operation.batched), _bytes(operation.outputs)
        if macs := rules.macs(operation):
            found = _products(operation, batch)
            if found is None or sum(one.macs for one in found) * batch != macs:
                return None
            products += found
        elif not rules.is_view:
            kernels, read, written = kernels + 1, read + taken, written + made
    return Work(tuple(products), kernels, _share(read, batch), _share(written, batch))


def _products(operation: Operation, batch: int) -> list[Product] | None:
    """Return the products of an operator for one sample."""
    if operation.name == "scaled_dot_product_attention":
        return _attention(operation, batch)
    sizes = _SIZES.get(operation.name)
    if sizes is None:
        return None
    rows, inner, columns, copies = sizes(operation)
    weighted = is_weighted(operation)
    rows, copies = (rows // batch, copies) if weighted else (rows, copies // batch)
    if min(rows, inner, columns, copies) < 1:
        return None
    read, written = _share(_bytes(operation.batched), batch), _share(_bytes(operation.outputs), batch)
    return [Product(rows, inner, columns, copies, weighted, read, written)]


def _attention(operation: Operation, batch: int) -> list[Product] | None:
    """Return queries by keys, and weights by values; one fused kernel, whose scores stay on the chip."""
    queries, keys, values = (operation.tensor(name) for name in ("query", "key", "value"))
    copies = math.prod(queries.shape[:-2]) // batch
    if copies < 1:
        return None
    rows, length = queries.shape[-2], keys.shape[-2]
    read, written = _share(_bytes((queries, keys, values)), batch), _share(_bytes(operation.outputs[:1]), batch)
    return [
        Product(rows, queries.shape[-1], length, copies, weighted=False, read_bytes=read),
        Product(rows, length, values.shape[-1], copies, weighted=False, written_bytes=written),
    ]


def _convolution(operation: Operation) -> Sizes:
    weight, groups = operation.tensor("weight"), operation.integer("groups", 1)
    channels = weight.shape[0]
    return operation.output.elements // channels, math.prod(weight.shape[1:]), channels // groups, groups


def _linear(operation: Operation) -> Sizes:
    inner, columns = operation.tensor("input").shape[-1], operation.output.shape[-1]
    return operation.output.elements // columns, inner, columns, 1


def _matmul(operation: Operation, inner: int) -> Sizes:
    """Products with weights have all their rows together; of two activations each matrix is a product."""
    result = operation.output
    pair = factors(operation)
    columns = result.shape[-1]
    if is_weighted(operation) and pair is not None and not pair[1].batched:
        return result.elements // columns, inner, columns, 1
    rows = result.shape[-2] if result.rank > 1 else 1
    return rows, inner, columns, result.elements // (rows * columns)


def _plain(operation: Operation) -> Sizes:
    return _matmul(operation, product(operation) // operation.output.elements)


def _added(operation: Operation) -> Sizes:
    return _matmul(operation, added_product(operation) // operation.output.elements)


_SIZES: Mapping[str, Callable[[Operation], Sizes]] = MappingProxyType(
    {
        **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
        "linear": _linear,
        **dict.fromkeys(("matmul", "mm", "bmm"), _plain),
        **dict.fromkeys(("addmm", "baddbmm"), _added),
    }
)


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.total_bytes for tensor in tensors)


def _share(total: int, batch: int) -> int:
    return -(-total // batch)
