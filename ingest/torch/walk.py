"""Walk over the nodes of an exported torch graph and write down every operator call as a plain record.

What depends on what over in-place changes is kept in ``ingest.operators.recorder``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ingest.errors import TraceError
from ingest.operators.operations import Call, Operation, OwnGradient, Tensor, tensors_in
from ingest.operators.recorder import Recorder, source_line
from ingest.torch.plain_calls import CHECKPOINT, FUNCTION

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportedProgram

_INLINED = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
"""Higher-order operators that torch.export puts around ``no_grad`` and ``autocast`` regions."""


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
        tensor = self._tensor(node.name, value, None, _call_of(node))
        return replace(tensor, batched=kind == "USER_INPUT", differentiable=trained, parameters=names)

    def _graph(self, owner: object, nodes: Iterable[fx.Node], differentiable: bool) -> object:
        """Record the operations of a (sub)graph and return its outputs."""
        result: object = ()
        for node in nodes:
            if node.op == "get_attr":
                found = operator.attrgetter(str(node.target))(owner)
                constant = hasattr(found, "untyped_storage")
                self._values[node] = self._tensor(node.name, found, None, _call_of(node)) if constant else found
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
        target: Any = node.target
        schema = target._schema
        arguments, call = self._arguments(node, schema), _call_of(node)
        written = [
            argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write
        ]
        tensors = [self._tensor(f"{node.name}#{index}", result, None, call) for index, result in enumerate(kept)]
        before, custom = len(self.operations), node.meta.get("custom") or {}
        outputs = self.recorder.add(
            str(target),
            arguments,
            tensors,
            call,
            written=written,
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

    def _arguments(self, node: fx.Node, schema: Any) -> dict[str, object]:  # noqa: ANN401
        """Name the arguments of a call after the operator's schema, with its defaults."""
        names = [argument.name for argument in schema.arguments]
        defaults = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
        positional = dict(zip(names, (self._resolve(value) for value in node.args), strict=False))
        keyword = {key: self._resolve(value) for key, value in node.kwargs.items()}
        given = defaults | positional | keyword
        return {name: given.get(name) for name in names}

    def _tensor(self, key: str, value: Any, producer: int | None, call: Call) -> Tensor:  # noqa: ANN401
        if not all(type(length) is int for length in value.shape):
            raise TraceError(
                f"layer {self._layer(call)}: the shape of {key} depends on the values of tensors; "
                "a plan needs fixed shapes, so use masks instead of selecting elements"
            )
        storage = value.untyped_storage()
        return Tensor(
            key=key,
            shape=tuple(value.shape),
            element_bytes=value.element_size(),
            floating=value.is_floating_point() or value.is_complex(),
            storage=storage._cdata,
            storage_bytes=storage.nbytes(),
            producer=producer,
            batched=False,
            differentiable=False,
            strides=tuple(value.stride()),
        )


def _call_of(node: fx.Node) -> Call:
    """Return the module call that a node happened in, from the stack of modules that torch.export recorded."""
    stack = list((node.meta.get("nn_module_stack") or {}).items())
    key, (module, _) = stack[-1] if stack else ("", ("", ""))
    outer = stack[:-1]
    return Call(key if module else "", module, tuple(one for one, _ in outer), tuple(row[0] for _, row in outer))
