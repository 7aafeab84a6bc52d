"""Where the output columns of a layer lie in each tensor, and which operators can work on a share of them.

Form 2 leaves the output of a matrix product cut by columns, the output channels or features. Operators behind it
keep working on such a share as long as they never look across the cut: ReLU and pooling do not, LayerNorm does.
A :class:`Columns` says where the cut runs: in a tensor of heads (batch, heads, sequence, head size) behind a
linear layer it is dimension 1. It survives reshapes that merge or split dimensions, in any order of the columns,
because the weights of the next product can be laid out in the same order.

Every rule returns a pair: can the operator work on a share of the columns, and where they lie in its output (None:
nowhere that is known). A rule that cannot tell says no, which forbids plans and never allows a wrong one. Example
inputs join anything, as every device can be given the share that it needs; only operators that look across
dimensions ask where their columns would lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipecut.ingest.operators.operations import Operation, Tensor, tensors_in


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns in a tensor: in dimension ``dimension``, index i belongs to column (i // ``minor``) % ``count``."""

    dimension: int
    minor: int
    count: int


Find = Callable[[Tensor], Columns | None]
Verdict = tuple[bool, Columns | None]
Rule = Callable[[Operation, Find], Verdict]


def whole(tensor: Tensor, dimension: int) -> Columns | None:
    """Return columns that fill one dimension, counted from the end if negative."""
    if not -tensor.rank <= dimension < tensor.rank:
        return None
    dimension %= tensor.rank
    return Columns(dimension, 1, tensor.shape[dimension])


def found_in(tensor: Tensor, find: Find) -> Columns | None:
    """Return the columns of a tensor; of an example input the channels of an image or the features of a vector."""
    if tensor.producer is not None or not tensor.batched or not tensor.floating or tensor.rank < 2:
        return find(tensor)
    return whole(tensor, 1 if tensor.rank >= 4 else -1)


def reshaped(columns: Columns | None, old: tuple[int, ...], new: tuple[int, ...]) -> Columns | None:
    """Return where columns lie after a reshape, or None where they no longer fill part of one dimension.

    Seen as a flat array, columns are a factor of the index that begins at stride ``low`` and ends at ``high``.
    """
    if columns is None or math.prod(old) != math.prod(new):
        return None
    low = columns.minor * math.prod(old[columns.dimension + 1 :])
    high = low * columns.count
    stride = math.prod(new)
    for dimension, length in enumerate(new):
        top, stride = stride, stride // length if length else 0
        if stride < high <= top:
            start = max(low, stride)
            if start % low or start % stride or high % start or top % high:
                return None
            return Columns(dimension, start // stride, high // start)
    return None


def _fits(one: Columns, one_length: int, other: Columns, other_length: int) -> bool:
    """Tell whether two cuts agree: the same, or both the major part of a dimension (heads shared by queries)."""
    major = one.minor * one.count == one_length and other.minor * other.count == other_length
    return one.dimension == other.dimension and (major or one == other)


def element_wise(operation: Operation, find: Find) -> Verdict:
    """Follow columns through an operator that works element by element, with broadcasting."""
    result = operation.output
    found: list[Columns] = []
    missing = False
    for tensor in operation.computed:
        columns = find(tensor)
        shift = result.rank - tensor.rank
        moved = replace(columns, dimension=columns.dimension + shift) if columns else None
        if moved is None or tensor.shape[moved.dimension - shift] != result.shape[moved.dimension]:
            missing = True  # an operand without columns, or one that broadcasts along them
        else:
            found.append(moved)
    if not found:
        return True, None
    length = result.shape[found[0].dimension]
    agree = all(_fits(found[0], length, other, length) for other in found[1:])
    return agree and not missing, min(found, key=lambda columns: columns.count) if agree else None


def view(operation: Operation, find: Find) -> Verdict:
    """Follow columns through a reshape of the first operand."""
    data = operation.operands[0]
    columns = find(data)
    moved = reshaped(columns, data.shape, operation.output.shape)
    return columns is None or moved is not None, moved


def expand(operation: Operation, find: Find) -> Verdict:
    """Follow columns through broadcasting to a larger shape."""
    data, result = operation.operands[0], operation.output
    columns = find(data)
    if columns is None:
        return True, None
    moved = replace(columns, dimension=columns.dimension + result.rank - data.rank)
    legal = result.shape[moved.dimension] == data.shape[columns.dimension]
    return legal, moved if legal else None


def permutation(operation: Operation, find: Find) -> Verdict:
    """Follow columns through ``permute``, ``transpose`` and ``t``."""
    data = operation.operands[0]
    columns = find(data)
    if columns is None:
        return True, None
    order = list(operation.integers("dims") or range(data.rank))
    if "dim0" in operation.arguments:
        first, second = (operation.integer(name) % data.rank for name in ("dim0", "dim1"))
        order[first], order[second] = order[second], order[first]
    elif "dims" not in operation.arguments:
        order.reverse()
    order = [dimension % data.rank for dimension in order]
    return True, replace(columns, dimension=order.index(columns.dimension))


def along(*names: str, last: int = 0, default: tuple[int, ...] | None = None) -> Rule:
    """Make the rule for an operator that looks across some dimensions and keeps or drops them.

    The dimensions are those in the first of the arguments ``names`` that is given, else ``default``, else all;
    or, with ``last``, the last so many.
    """

    def rule(operation: Operation, find: Find) -> Verdict:
        data = operation.operands[0]
        given = next((dims for name in names if (dims := operation.integers(name))), default)
        dimensions = set(range(data.rank)) if given is None else {dim % data.rank for dim in given}
        if last:
            dimensions = set(range(data.rank - last, data.rank))
        columns = found_in(data, find)
        if columns is None:
            return True, None
        result = operation.output
        if columns.dimension in dimensions:
            return False, columns if result.shape == data.shape else None
        dropped = 0 if result.rank == data.rank else sum(dim < columns.dimension for dim in dimensions)
        return True, replace(columns, dimension=columns.dimension - dropped)

    return rule


def normalised_rows(operation: Operation, find: Find) -> Verdict:
    """LayerNorm and RMSNorm look across the last dimensions, as many as ``normalized_shape`` has."""
    return along(last=len(operation.integers("normalized_shape") or (1,)))(operation, find)


def per_channel(operation: Operation, find: Find) -> Verdict:
    """Batch and instance normalisation treat the channels in dimension 1 apart, and mix everything else."""
    columns = found_in(operation.tensor("input"), find)
    return columns is None or columns.dimension == 1, columns


def per_group(operation: Operation, find: Find) -> Verdict:
    """Group normalisation mixes the channels of a group, and groups need not end where a cut does."""
    columns = found_in(operation.tensor("input"), find)
    return columns is None, columns


def slicing(operation: Operation, find: Find) -> Verdict:
    """``slice``, ``narrow`` and the like may take a part of any dimension but the one that holds the columns."""
    data = operation.operands[0]
    columns = find(data)
    legal = columns is None or operation.output.shape[columns.dimension] == data.shape[columns.dimension]
    return legal, columns if legal else None


def splitting(operation: Operation, find: Find) -> Verdict:
    """``chunk`` and ``split`` may cut the columns themselves: every device takes its share of each piece."""
    data = operation.operands[0]
    columns = find(data)
    if columns is None or columns.dimension != operation.integer("dim") % data.rank:
        return True, columns
    if columns != whole(data, columns.dimension):
        return False, None
    return True, whole(operation.output, columns.dimension)


def concatenation(operation: Operation, find: Find) -> Verdict:
    """``cat`` along the columns joins every device's shares; along another dimension the cuts have to agree."""
    parts = [tensor for tensor in tensors_in(operation.arguments["tensors"]) if tensor.batched]
    found = [find(tensor) for tensor in parts]
    dimension = operation.integer("dim") % operation.output.rank
    first = found[0]
    if first is None:
        return not any(found), None
    if first.dimension == dimension:
        filled = all(columns == whole(part, dimension) for part, columns in zip(parts, found, strict=True))
        return filled, whole(operation.output, dimension)
    return all(columns == first for columns in found), first


def never(operation: Operation, find: Find) -> Verdict:
    """Say that the operator cannot work on a share of the columns."""
    return all(find(tensor) is None for tensor in operation.batched), None


def attention(operation: Operation, find: Find) -> Verdict:
    """Attention works head by head: columns have to lie outside the sequence and the head size."""
    parts = [operation.tensor(name) for name in ("query", "key", "value")]
    mask = operation.arguments.get("attn_mask")
    found = [columns for part in parts if (columns := find(part))]
    heads = len(found) == len(parts) and all(
        columns.dimension < part.rank - 2
        and _fits(found[0], parts[0].shape[found[0].dimension], columns, part.shape[columns.dimension])
        for part, columns in zip(parts, found, strict=True)
    )
    masked = isinstance(mask, Tensor) and mask.batched
    return heads and not masked, found[0] if heads else None


def padding(operation: Operation, find: Find) -> Verdict:
    """Pad dimensions, one per pair of numbers in ``pad``, the last first, but not the one with the columns."""
    data = operation.operands[0]
    columns = find(data)
    pad = operation.integers("pad") or ()
    touched = {data.rank - 1 - place // 2 for place, width in enumerate(pad) if width}
    return columns is None or columns.dimension not in touched, columns
