"""Walk over the nodes of an exported torch graph and write down every operator call as a plain record.

What depends on what over in-place changes is kept in ``ingest.operators.operations``.

Here, too, is what every way of reading a model shares: how arguments are named, and what is kept of a tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipecut.ingest.errors import TraceError
from pipecut.ingest.operators.operations import (
    Call,
    Operation,
    OwnGradient,
    Recorder,
    Tensor,
    source_line,
    tensors_in,
)
from pipecut.ingest.torch.export import CHECKPOINT, FUNCTION

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportedProgram

_INLINED = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
"""Higher-order operators that torch.export puts around ``no_grad`` and ``autocast`` regions."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What an operator takes: ``names`` of its arguments in order, ``defaults``, and those that it writes into."""

    names: tuple[str, ...]
    defaults: Mapping[str, object]
    written: tuple[str, ...]

    @staticmethod
    def of(target: Any) -> Signature:  # noqa: ANN401 (an operator of torch)
        """Return what an operator's schema says."""
        given = target._schema.arguments
        return Signature(
            tuple(one.name for one in given),
            {one.name: one.default_value if one.has_default_value() else None for one in given},
            tuple(one.name for one in given if one.alias_info and one.alias_info.is_write),
        )

    def named(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any], value: Callable[[Any], object]
    ) -> dict[str, object]:
        """Name the arguments of a call, each as ``value`` gives it."""
        positional = dict(zip(self.names, map(value, arguments), strict=False))
        return {**self.defaults, **positional, **{key: value(one) for key, one in keywords.items()}}


def tensor_of(key: str, value: Any, where: str) -> Tensor:  # noqa: ANN401 (a tensor of torch)
    """Return what is kept of a tensor. Raises TraceError, which names the layer, for one without a fixed size."""
    if not all(type(length) is int for length in value.shape):
        raise TraceError(
            f"layer {where}: the shape of {key} depends on the values of tensors; "
            "a plan needs fixed shapes, so use masks instead of selecting elements"
        )
    try:
        storage = value.untyped_storage()
    except NotImplementedError as error:
        raise TraceError(
            f"layer {where}: {key} is laid out as {value.layout}; a plan needs dense tensors"
        ) from error
    return Tensor(
        key=key,
        shape=tuple(value.shape),
        element_bytes=value.element_size(),
        floating=value.is_floating_point() or value.is_complex(),
        storage=storage._cdata,
        storage_bytes=storage.nbytes(),
        producer=None,
        batched=False,
        differentiable=False,
        strides=tuple(value.stride()),
    )


@dataclass(slots=True)
class Walk:
    """One pass over an exported graph: ``operations`` fills up in execution order, with the ``nodes`` they were.

    ``model`` is the name for messages, ``canonical`` maps each parameter name to the first name of the same
    parameter.
    """

    model: str
    canonical: Mapping[str, str]
    recorder: Recorder = field(default_factory=Recorder)
    nodes: list[fx.Node] = field(default_factory=list)
    _values: dict[fx.Node, Any] = field(default_factory=dict)

    @property
    def operations(self) -> list[Operation]:
        """What was recorded so far, in execution order."""
        return self.recorder.operations

    def program(self, program: ExportedProgram) -> object:
        """Record a whole program and return its outputs, with a :class:`Tensor` for every tensor."""
        specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        for node in program.graph.nodes:
            if node.op == "placeholder":
                spec = specs[node.name]
                self._values[node] = self._source(node, spec.kind.name, spec.target)
        return self._graph(program.graph_module, program.graph.nodes, differentiable=True)

    def current(self, tensor: Tensor) -> Tensor:
        """Return a tensor as a reader finds it now: produced by the last writer of its storage."""
        return self.recorder.current(tensor)

    def _source(self, node: fx.Node, kind: str, target: str | None) -> object:
        """Return the value of a graph input: a parameter, a constant or an example input."""
        value: Any = node.meta.get("val")
        if not hasattr(value, "untyped_storage"):
            return value
        trained = kind == "PARAMETER" and bool(value.requires_grad)
        names = frozenset({self.canonical[target]}) if kind == "PARAMETER" and target else frozenset[str]()
        tensor = self._tensor(node.name, value, _call_of(node))
        return replace(tensor, batched=kind == "USER_INPUT", differentiable=trained, parameters=names)

    def _graph(self, owner: object, nodes: Iterable[fx.Node], differentiable: bool) -> object:
        """Record the operations of a (sub)graph and return its outputs."""
        result: object = ()
        for node in nodes:
            if node.op == "get_attr":
                found = operator.attrgetter(str(node.target))(owner)
                constant = hasattr(found, "untyped_storage")
                self._values[node] = self._tensor(node.name, found, _call_of(node)) if constant else found
            elif node.op == "output":
                result = self._resolve(node.args[0])
            elif node.op == "call_function":
                self._values[node] = self._called(node, differentiable)
        return result

    def _resolve(self, argument: Any) -> Any:  # noqa: ANN401
        """Replace nodes by their values in an argument and in the lists and mappings inside it."""
        if hasattr(argument, "op") and argument in self._values:
            argument = self._values[argument]
        if isinstance(argument, Tensor):
            return self.current(argument)
        if isinstance(argument, (list, tuple)):
            return [self._resolve(entry) for entry in argument]
        if isinstance(argument, Mapping):
            return [self._resolve(entry) for entry in argument.values()]
        return argument

    def _called(self, node: fx.Node, differentiable: bool) -> object:
        target: Any = node.target
        name = getattr(target, "__name__", str(target))
        if name == "getitem":
            source, index = (self._resolve(argument) for argument in node.args)
            return source[index]
        if name in _INLINED:
            return self._inlined(node, differentiable)
        if hasattr(target, "_schema"):
            return self._operation(node, differentiable)
        if self._reads_inputs(node):
            raise TraceError(
                f"layer {self._layer(_call_of(node))}: operator {name} cannot be costed; "
                "replace it or take it out of forward"
            )
        return None  # arithmetic on sizes

    def _inlined(self, node: fx.Node, differentiable: bool) -> object:
        """Walk into a region, whose graph stands among the arguments with its inputs behind it."""
        given = [self._resolve(argument) for argument in node.args]
        at = next(index for index, value in enumerate(given) if hasattr(value, "graph"))
        inputs = iter(given[at + 1 :])
        nodes = given[at].graph.nodes
        for inner in nodes:
            if inner.op == "placeholder":
                self._values[inner] = next(inputs)
        enabled = differentiable and given[0] is not False  # the first argument of a no_grad region
        return self._graph(given[at], nodes, enabled)

    def _operation(self, node: fx.Node, differentiable: bool) -> object:
        results: Any = node.meta.get("val")
        several = isinstance(results, (list, tuple))
        kept = [result for result in (results if several else [results]) if hasattr(result, "untyped_storage")]
        if not kept:
            return self._number(node, results)
        signature, call = Signature.of(node.target), _call_of(node)
        tensors = [self._tensor(f"{node.name}#{index}", result, call) for index, result in enumerate(kept)]
        before, custom = len(self.operations), node.meta.get("custom") or {}
        outputs = self.recorder.add(
            str(node.target),
            signature.named(node.args, node.kwargs, self._resolve),
            tensors,
            call,
            written=signature.written,
            differentiable=differentiable,
            source=source_line(node.meta.get("stack_trace")),
            checkpoint=custom.get(CHECKPOINT, 0),
            function=OwnGradient(custom[FUNCTION][0], tuple(custom[FUNCTION][1])) if FUNCTION in custom else None,
        )
        if len(self.operations) > before:
            self.nodes.append(node)
        elif not several:
            return outputs[0]
        return outputs if several else outputs[0]

    def _number(self, node: fx.Node, value: object) -> object:
        """Return the result of an operator that yields none. Raises TraceError if it depends on the inputs."""
        if value is not None and self._reads_inputs(node):
            raise TraceError(
                f"layer {self._layer(_call_of(node))}: operator {node.target} takes a number out of a tensor; "
                "a plan needs one fixed graph, so keep the value in a tensor"
            )
        return value

    def _reads_inputs(self, node: fx.Node) -> bool:
        return any(tensor.batched for tensor in tensors_in(self._resolve([node.args, node.kwargs])))

    def _layer(self, call: Call) -> str:
        return call.module or f"of {self.model} itself"

    def _tensor(self, key: str, value: Any, call: Call) -> Tensor:  # noqa: ANN401
        return tensor_of(key, value, self._layer(call))


def _call_of(node: fx.Node) -> Call:
    """Return the module call that a node happened in, from the stack of modules that torch.export recorded."""
    stack = list((node.meta.get("nn_module_stack") or {}).items())
    key, (module, _) = stack[-1] if stack else ("", ("", ""))
    outer = stack[:-1]
    return Call(key if module else "", module, tuple(one for one, _ in outer), tuple(row[0] for _, row in outer))
