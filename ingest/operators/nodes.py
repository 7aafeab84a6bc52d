"""The rules of operators about columns (``ingest.operators.columns``), asked of a node of a torch graph."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from pipecut.ingest.operators.columns import Columns
from pipecut.ingest.operators.costs import rules_of
from pipecut.ingest.operators.operations import Call, Operation, Tensor, operator_name

if TYPE_CHECKING:
    from torch import fx

Place = tuple[int, int, int]
"""Dimension, minor and count of ``ingest.operators.columns.Columns``."""


def operator_of(node: fx.Node) -> str:
    """Return the name of an operator without overload and in-place underscore; nothing for another node."""
    return operator_name(str(node.target)) if hasattr(node.target, "_schema") else ""


def follow_columns(
    node: fx.Node, batched: Collection[fx.Node], find: Callable[[fx.Node], Place | None]
) -> tuple[bool, Place | None]:
    """Tell whether an operator works on a share of the columns of its operands, and where they lie in its result.

    ``batched`` are the nodes that depend on the model's inputs, ``find`` says where columns lie in an operand.
    """
    operands = {one.name: one for one in node.all_input_nodes}

    def found(tensor: Tensor) -> Columns | None:
        place = find(operands[tensor.key])
        return None if place is None else Columns(*place)

    operation = _operation(node, batched)
    if operation is None:
        return False, None
    legal, columns = rules_of(operation).columns(operation, found)
    legal = legal and (columns is not None or len(operation.computed) < 2)
    return legal, None if columns is None else (columns.dimension, columns.minor, columns.count)


def _operation(node: fx.Node, batched: Collection[fx.Node]) -> Operation | None:
    schema: Any = getattr(node.target, "_schema", None)
    values = node.meta.get("val")
    results = [one for one in (values if isinstance(values, (list, tuple)) else [values]) if hasattr(one, "shape")]
    if schema is None or not results:
        return None
    names = [argument.name for argument in schema.arguments]
    defaults = {one.name: one.default_value for one in schema.arguments if one.has_default_value()}
    given = defaults | dict(zip(names, node.args, strict=False)) | node.kwargs
    arguments = {name: _value(given.get(name), batched) for name in names}
    outputs = tuple(_tensor(f"{node.name}#{at}", one, node in batched, 0) for at, one in enumerate(results))
    return Operation(0, operator_of(node), str(node.target), arguments, outputs, Call("", "", ()))


def _value(argument: Any, batched: Collection[fx.Node]) -> object:  # noqa: ANN401 (an argument of a node)
    if isinstance(argument, (list, tuple)):
        return [_value(one, batched) for one in argument]
    if hasattr(argument, "all_input_nodes"):
        value = argument.meta.get("val")
        if hasattr(value, "shape"):
            producer = None if argument.op in ("placeholder", "get_attr") else 0
            return _tensor(argument.name, value, argument in batched, producer)
        return value
    return argument


def _tensor(key: str, value: Any, batched: bool, producer: int | None) -> Tensor:  # noqa: ANN401 (a fake tensor)
    floating = value.is_floating_point() or value.is_complex()
    size = value.element_size()
    return Tensor(key, tuple(value.shape), size, floating, 0, 0, producer, batched, floating)
