"""From a torch module to a ``operations.Recording``: export it, walk the graph, keep what is live.

Walk over the nodes of an exported torch graph and write down every operator call as a plain record.

What depends on what over in-place changes is kept in ``ingest.operators.operations``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipecut.ingest.errors import TraceError
from pipecut.ingest.operators.costs import Operator, own_rules
from pipecut.ingest.operators.operations import (
    Call,
    ModuleKind,
    Operation,
    OwnGradient,
    Recorder,
    Recording,
    Tensor,
    source_line,
    tensors_in,
)
from pipecut.ingest.torch.export import CHECKPOINT, FUNCTION, Inputs, exported

if TYPE_CHECKING:
    import torch
    from torch import fx, nn
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


@dataclass(frozen=True, slots=True)
class Followed:
    """A module as torch exported it, its recording, and the node of every operation by position."""

    program: ExportedProgram
    recording: Recording
    nodes: Sequence[fx.Node]

    @staticmethod
    def of(
        module: nn.Module, inputs: Inputs, name: str, operators: Mapping[str, str | Operator] | None = None
    ) -> Followed:
        """Trace a module and return its program with its live operations in execution order.

        ``inputs`` are example inputs whose dimension 0 is the batch, ``operators`` a user's rules. Raises
        TraceError when torch cannot follow the module, when the inputs disagree on the batch, and when the outputs
        do not depend on the inputs.
        """
        batch = common_batch([tuple(tensor.shape) for tensor in _leaves(inputs)], name)
        program = exported(module, inputs, name)
        walk = Walk(name, canonical_names(module), Recorder(own_rules(operators or {})))
        outputs = walk.program(program)
        returned = tuple(walk.current(tensor) for tensor in tensors_in(outputs))
        operations = live(walk.operations, returned, name)
        parameters = dict(module.named_parameters())
        recording = Recording(
            operations=operations,
            outputs=returned,
            parameter_bytes={key: value.numel() * value.element_size() for key, value in parameters.items()},
            frozen=frozenset(key for key, value in parameters.items() if not value.requires_grad),
            modules={path: _kind(part) for path, part in module.named_modules(remove_duplicate=False)},
            batch=batch,
            element_bytes=_element_bytes([*parameters.values(), *_leaves(inputs)]),
        )
        return Followed(program, recording, tuple(walk.nodes))


def record(
    module: nn.Module, inputs: Inputs, name: str, operators: Mapping[str, str | Operator] | None = None
) -> Recording:
    """Trace a module and return its live operations in order: :meth:`Followed.of` without the program."""
    return Followed.of(module, inputs, name, operators).recording


def _leaves(inputs: Inputs) -> list[torch.Tensor]:
    import torch
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves(dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def common_batch(shapes: Sequence[tuple[int, ...]], name: str) -> int:
    """Return dimension 0 of all example inputs. Raises TraceError where they disagree."""
    if not shapes:
        raise TraceError(f"model {name}: no tensor among the example inputs, expected at least one")
    batches = {shape[0] if shape else None for shape in shapes}
    batch = batches.pop()
    if batches or not batch:
        listed = ", ".join(str(shape) for shape in shapes)
        raise TraceError(
            f"model {name}: example inputs of shapes {listed}; "
            "expected the same batch, 1 or more, as dimension 0 of all of them"
        )
    return batch


def canonical_names(module: nn.Module) -> dict[str, str]:
    """Map every registered name of a parameter to the first one, so that tied weights are known as one."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(parameter), name)
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }


def _kind(module: nn.Module) -> ModuleKind:
    classes = type(module).__mro__
    torch_name = next((each.__name__ for each in classes if each.__module__.startswith("torch.nn.modules")), "")
    return ModuleKind(classes[0].__name__, torch_name)


def _element_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Size of the number format: that of the first floating-point parameter, else input, else 4 bytes."""
    return next((tensor.element_size() for tensor in tensors if tensor.is_floating_point()), 4)


def live(operations: Sequence[Operation], outputs: Iterable[Tensor], name: str) -> tuple[Operation, ...]:
    """Return the operations that reach an output and depend on the inputs. Raises TraceError if there is none.

    Counters such as BatchNorm's ``num_batches_tracked`` reach none; masks, position numbers and rotary tables
    that are computed from constants depend on no input, so each user recomputes them at its own place.
    """
    reached: set[int] = set()
    waiting = [tensor.producer for tensor in outputs]
    while waiting:
        position = waiting.pop()
        if position is not None and position not in reached:
            reached.add(position)
            waiting += [operand.producer for operand in operations[position].operands]
    found = tuple(each for each in operations if each.position in reached and each.batched)
    if not found:
        raise TraceError(f"model {name}: its outputs do not depend on its inputs, so there is nothing to cut")
    return found
