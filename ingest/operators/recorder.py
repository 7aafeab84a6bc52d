"""Operations written down one after the other, with what reads what: over in-place changes and conversions.

In-place operators stay in an exported graph, and later readers still name the tensor before the change. Every
write is therefore remembered by storage, and a reader of that storage depends on the last writer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ingest.errors import is_foreign
from ingest.operators.operations import Call, Operation, OwnGradient, Tensor, tensors_in

_CALL = re.compile(r'File "([^"]+)", line (\d+)')
_SAME_AS = {"max.other": "maximum", "min.other": "minimum"}
"""Overloads that are another operator in all but name."""
_CONVERSIONS = frozenset({"to", "type_as", "contiguous", "float", "double", "half", "bfloat16", "alias"})
"""Operators that return their operand itself where it is in the wanted format already."""
_DROPOUTS = frozenset({"dropout", "feature_dropout"})
_MERGES = frozenset({"reshape", "flatten", "contiguous", "clone"})


@dataclass(slots=True)
class Recorder:
    """Takes the calls of operators in order: ``operations`` fills up. ``own`` are a user's rules by name."""

    own: Mapping[str, Any] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    _writes: dict[int, Tensor] = field(default_factory=dict)
    _attended: dict[int, Tensor] = field(default_factory=dict)
    _moved: dict[int, int] = field(default_factory=dict)

    def current(self, tensor: Tensor) -> Tensor:
        """Return a tensor as a reader finds it now: produced by the last writer of its storage."""
        written = self._writes.get(tensor.storage)
        if written is None or written.producer is None:
            return tensor
        if tensor.producer is not None and tensor.producer >= written.producer:
            return tensor
        return replace(
            tensor,
            producer=written.producer,
            batched=tensor.batched or written.batched,
            differentiable=tensor.differentiable or written.differentiable,
            parameters=tensor.parameters | written.parameters,
        )

    def add(
        self,
        target: str,
        arguments: Mapping[str, object],
        results: Sequence[Tensor],
        call: Call,
        *,
        written: Iterable[str],
        differentiable: bool,
        source: str = "",
        checkpoint: int = 0,
        function: OwnGradient | None = None,
    ) -> tuple[Tensor, ...]:
        """Write a call down and return its outputs; ``results`` are they, but for what they depend on.

        ``target`` is the operator with namespace and overload (``aten.add_.Tensor``), ``written`` names the
        arguments that it changes; without ``differentiable`` the call stands in a region without gradients,
        ``source`` is its line in the model, ``checkpoint`` the number of its checkpointed region, ``function`` the
        call of a function with a gradient of its own that it is a part of.
        """
        position, name = len(self.operations), operator_name(target)
        operands = list(tensors_in(list(arguments.values())))
        if name in _DROPOUTS and not (arguments.get("train") and arguments.get("p")):
            self._moved[results[0].storage] = operands[0].storage  # it returns its operand, whatever a trace says
        first = self._moved.get(results[0].storage, results[0].storage)
        if name in _CONVERSIONS and operands and first == operands[0].storage:
            return (operands[0],)  # nothing to convert: the operator returned its operand
        batched = any(operand.batched for operand in operands)
        gradient = differentiable and name != "detach" and any(operand.differentiable for operand in operands)
        parameters = frozenset[str]().union(*(operand.parameters for operand in operands if not batched))
        outputs = tuple(
            replace(
                result,
                storage=self._moved.get(result.storage, result.storage),
                producer=position,
                batched=batched,
                differentiable=gradient and result.floating,
                parameters=parameters,
            )
            for result in results
        )
        outputs = self._attention_layout(name, operands, outputs)
        changed = [tensor for argument in written for tensor in tensors_in(arguments[argument])]
        self._writes |= {tensor.storage: outputs[0] for tensor in changed}
        known = (bool(changed), self.own.get(name), source, checkpoint, function)
        self.operations.append(Operation(position, name, target, arguments, outputs, call, *known))
        return outputs

    def _attention_layout(
        self, name: str, operands: list[Tensor], outputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Correct the storage behind attention: its kernels write their result in the memory order of the query.

        That is mostly (batch, sequence, heads, size), so that nothing is copied to bring the heads together; on
        the meta device the heads always lie outside.
        """
        if name == "scaled_dot_product_attention" and _sequence_outside(operands[0]):
            self._attended[outputs[0].storage] = outputs[0]
        source = self._attended.get(operands[0].storage) if operands and name in _MERGES else None
        if source is None or source.rank != 4:
            return outputs
        batch, heads, sequence, size = source.shape
        if operands[0].shape != (batch, sequence, heads, size):
            return outputs
        self._moved |= {output.storage: source.storage for output in outputs}
        return tuple(replace(output, storage=source.storage) for output in outputs)


def _sequence_outside(query: Tensor) -> bool:
    """Tell whether a tensor (batch, heads, sequence, size) lies in memory with the sequence outside the heads."""
    return len(query.strides) < 4 or query.strides[2] >= query.strides[1]


def source_line(stack: str | None) -> str:
    """Return ``file:line`` of the innermost call in a user's own code of a stack that torch wrote, or nothing."""
    calls = [(file, line) for file, line in _CALL.findall(stack or "") if not is_foreign(file)]
    return f"{calls[-1][0]}:{calls[-1][1]}" if calls else ""


def operator_name(target: str) -> str:
    """Return ``add`` for ``aten.add_.Tensor``; operators outside aten keep their namespace: ``mylib::spread``."""
    namespace, _, qualified = target.partition(".")
    bare, _, overload = qualified.rpartition(".")
    if namespace != "aten":
        return f"{namespace}::{bare}"
    same = _SAME_AS.get(f"{bare}.{overload}")
    return same or (bare if bare.startswith("__") else bare.rstrip("_"))
