"""Operators and tensors of a traced model, as plain records: what is left of a torch graph once torch is gone.

The cost rules (``operator_macs``, ``operator_stash``, ``operator_columns``) read only these records, so they can
be tested and understood without PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


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
