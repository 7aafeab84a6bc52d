"""Operators and tensors of a traced model, as plain records: what is left of a torch graph once torch is gone.

The cost rules (``operator_macs``, ``operator_stash``, ``operator_columns``) read only these records, so they can
be tested and understood without PyTorch.

Operations written down one after the other, with what reads what: over in-place changes and conversions.

In-place operators stay in an exported graph, and later readers still name the tensor before the change. Every
write is therefore remembered by storage, and a reader of that storage depends on the last writer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipecut.ingest.errors import is_foreign


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a traced model, for the whole example batch.

    ``key`` names it; ``storage`` is the memory it lies in, which views and in-place results share;
    ``producer`` is the position of the operation that last wrote it (None: an example input, a parameter or a
    constant). ``batched`` says that it depends on the example inputs and so grows with the batch;
    ``differentiable`` that a gradient flows through it. A tensor that is not batched depends on ``parameters``
    only (none of them: a constant). ``strides`` are in elements, empty where they are not known.
    """

    key: str
    shape: tuple[int, ...]
    element_bytes: int
    floating: bool
    storage: int
    storage_bytes: int
    producer: int | None
    batched: bool
    differentiable: bool
    parameters: frozenset[str] = frozenset()
    strides: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def total_bytes(self) -> int:
        """Bytes of all elements; a view of a larger storage counts its own elements only."""
        return self.elements * self.element_bytes


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one module: ``key`` is unique to the call, ``module`` the fully qualified name ("" is the root).

    ``outer`` holds the keys of the calls that this one happened inside, the root first, ``around`` the names of
    their modules.
    """

    key: str
    module: str
    outer: tuple[str, ...]
    around: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnGradient:
    """A call of a function with a gradient of its own, by ``number``, and what it says that it keeps.

    Of each tensor: where it is from (``given``: an argument; ``returned``; ``made``: neither), its shape, and the
    bytes of an element.
    """

    number: int
    kept: tuple[tuple[str, tuple[int, ...], int], ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of one aten operator.

    ``name`` is the operator without namespace, overload and in-place underscore (``add`` for
    ``aten.add_.Tensor``); operators of other namespaces keep it (``mylib::spread``). ``arguments`` maps the names
    of the operator's schema to values, with :class:`Tensor` (or lists of them) for tensors. ``in_place`` says
    that the operator wrote into its first operand. ``rules`` are a user's own (an ``Operator`` of
    ``ingest.operators.costs``), ``source`` is the line of the model that made the call, where that is known;
    ``checkpoint`` the number of the checkpointed region that it stands in, 0 for none; ``function`` the call of an
    ``autograd.Function`` that it is a part of.
    """

    position: int
    name: str
    target: str
    arguments: Mapping[str, object]
    outputs: tuple[Tensor, ...]
    call: Call
    in_place: bool = False
    rules: Any = None
    source: str = ""
    checkpoint: int = 0
    function: OwnGradient | None = None

    @property
    def output(self) -> Tensor:
        """The first output."""
        return self.outputs[0]

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """Every tensor among the arguments, in order."""
        return tuple(tensor for value in self.arguments.values() for tensor in tensors_in(value))

    @property
    def batched(self) -> tuple[Tensor, ...]:
        """The operands that depend on the example inputs."""
        return tuple(tensor for tensor in self.operands if tensor.batched)

    @property
    def computed(self) -> tuple[Tensor, ...]:
        """The operands that other operations computed from the example inputs."""
        return tuple(tensor for tensor in self.operands if tensor.batched and tensor.producer is not None)

    def tensor(self, name: str) -> Tensor:
        """Return the tensor given for an argument. Raises TypeError when there is none."""
        value = self.arguments.get(name)
        if not isinstance(value, Tensor):
            raise TypeError(f"{self.target}: argument {name} is {value!r}, expected a tensor")
        return value

    def integer(self, name: str, default: int = 0) -> int:
        """Return a whole-number argument, or the default when it was not given."""
        value = self.arguments.get(name)
        return value if isinstance(value, int) else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return a list-of-integers argument (a lone integer counts as a list of one), or None."""
        value = self.arguments.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return (value,)
        if isinstance(value, (list, tuple)) and all(isinstance(entry, int) for entry in value):
            return tuple(value)
        return None


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yield the tensors in an argument: itself, or those in (nested) lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from tensors_in(entry)


@dataclass(frozen=True, slots=True)
class ModuleKind:
    """The class of a module, and the first of its base classes that torch itself defines ("" without one)."""

    name: str
    torch_name: str


@dataclass(frozen=True, slots=True)
class Recording:
    """A traced model: live operations in execution order, and what is needed to cost them.

    ``operations`` holds the operations that depend on the inputs and reach an output, ``outputs`` the tensors
    that the model returns, ``parameter_bytes`` every parameter by its first registered name, ``frozen`` those of
    them that are not trained, ``batch`` dimension 0 of the example inputs, ``element_bytes`` the size of the
    model's number format.
    """

    operations: tuple[Operation, ...]
    outputs: tuple[Tensor, ...]
    parameter_bytes: Mapping[str, int]
    frozen: frozenset[str]
    modules: Mapping[str, ModuleKind]
    batch: int
    element_bytes: int


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
