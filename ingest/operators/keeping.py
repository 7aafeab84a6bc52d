"""What is kept for the backward pass, layer by layer: every storage once, at the first layer that keeps it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pipecut.ingest.operators.costs import rules_of
from pipecut.ingest.operators.operations import Operation, OwnGradient, Recording, Tensor

_RESULT_KEPT_IN_PLACE = frozenset({"leaky_relu", "elu", "celu", "selu", "hardtanh", "relu6", "threshold"})
"""Activations whose in-place version computes its gradient from the result; others keep a copy of the input."""


class Keeping:
    """Adds up what operations keep, in their order; what an earlier one keeps already counts no more."""

    def __init__(self, recording: Recording) -> None:
        self._stored: set[int] = set()
        self._repeated = _repeated(recording.operations)
        self._regions = {one.position: one.checkpoint for one in recording.operations}
        self._functions = _by_function(recording.operations)

    def add(self, operations: Iterable[Operation]) -> int:
        """Return the bytes that these operations keep and none before them, of the whole example batch."""
        differentiable = (one for one in operations if any(output.differentiable for output in one.outputs))
        return sum(map(self._of, differentiable))

    def _of(self, operation: Operation) -> int:
        if operation.checkpoint:
            return self._new(self._from_outside(operation))
        if operation.function is not None:
            return self._by_its_word(operation.function)
        total, copied = 0, operation.in_place and operation.name not in _RESULT_KEPT_IN_PLACE
        fused = operation.name == "scaled_dot_product_attention"
        for kept in rules_of(operation).kept(operation):
            if isinstance(kept, int):
                total += kept
            elif copied and kept.key == operation.operands[0].key:
                total += kept.total_bytes
            else:
                total += self._new([self._repeated.get(kept.storage, kept) if fused else kept])
        return total

    def _new(self, tensors: Iterable[Tensor]) -> int:
        """Return the bytes of the storages that nobody kept so far, and note that they are kept."""
        total = 0
        for kept in tensors:
            if kept.batched and kept.storage not in self._stored:
                self._stored.add(kept.storage)
                total += kept.storage_bytes
        return total

    def _by_its_word(self, function: OwnGradient) -> int:
        """Return what a call of a function with a gradient of its own keeps, at the first of its operations."""
        calls, total = self._functions.pop(function.number, []), 0
        made = {output.key for one in calls for output in one.outputs}
        given = [tensor for one in calls for tensor in one.operands if tensor.key not in made]
        results = [output for one in reversed(calls) for output in one.outputs]
        for source, shape, element_bytes in function.kept if calls else ():
            size = math.prod(shape) * element_bytes
            alike = [
                one for one in {"given": given, "returned": results}.get(source, []) if one.total_bytes == size
            ]
            # A weight may have been turned before its first product: then a view of it stands in its place.
            alike.sort(key=lambda one: one.shape != shape)
            total += self._new(alike[:1]) if alike else size
        return total

    def _from_outside(self, operation: Operation) -> list[Tensor]:
        """Return what an operation of a checkpointed region reads from outside it: all that the region keeps."""
        return [
            tensor
            for tensor in operation.batched
            if tensor.producer is None or self._regions.get(tensor.producer, 0) != operation.checkpoint
        ]


def _by_function(operations: Iterable[Operation]) -> dict[int, list[Operation]]:
    """Return the operations of every call of a function with a gradient of its own, by its number."""
    found: dict[int, list[Operation]] = {}
    for operation in operations:
        if operation.function is not None:
            found.setdefault(operation.function.number, []).append(operation)
    return found


def _repeated(operations: Iterable[Operation]) -> dict[int, Tensor]:
    """Return by storage of what it was copied from, for tensors that repeat others: heads of grouped queries.

    Fused attention takes the heads of keys and values as they are, and keeps them unrepeated.
    """
    found: dict[int, Tensor] = {}
    for operation in operations:
        given, made = operation.operands[0], operation.output
        repeats = given.total_bytes > given.storage_bytes and made.total_bytes == given.total_bytes
        if repeats and made.storage != given.storage:
            found[made.storage] = given
    return found
