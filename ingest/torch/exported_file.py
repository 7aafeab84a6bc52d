"""From a file of ``torch.export.save`` to a recording, without torch, as ``ingest.torch.record`` gives one.

The file holds every operator call with its arguments, every tensor with its sizes and strides, and the modules
that it happened in. Sizes that may vary count as in the example that was exported.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ingest.errors import ModelError, TraceError
from ingest.operators.costs import Operator, own_rules
from ingest.operators.operations import Call, ModuleKind, Recording, Tensor, tensors_in
from ingest.operators.recorder import Recorder, operator_name, source_line
from ingest.torch.aliases import Strided, shares
from ingest.torch.archive import open_archive
from ingest.torch.record import common_batch, live

_FORMATS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8, 11: 16, 12: 1, 13: 2, 28: 2}
_FORMATS |= {29: 1, 30: 1, 31: 1, 32: 1, 33: 1, 34: 4, 35: 8}
"""Bytes of an element by number of its format."""
_FLOATING = frozenset({6, 7, 8, 9, 10, 11, 13, 29, 30, 31, 32, 33})
_META = "meta"
_INLINED = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
_SIZES = frozenset({"aten.sym_size.int", "aten.sym_numel.default", "aten.sym_stride.int"})
EVALUATION = "the model was exported in evaluation mode: dropout and the like keep nothing for the backward pass"


def read_exported(path: Path, operators: Mapping[str, str | Operator]) -> tuple[Recording, tuple[str, ...]]:
    """Return the recording of an exported model, and notes. Raises ModelError in one readable sentence."""
    program, weights = open_archive(path)
    try:
        return _Reader(
            path.stem, program["graph_module"], weights.get("config", {}), own_rules(operators)
        ).recording()
    except ModelError:
        raise
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, StopIteration) as error:
        raise ModelError(f"{path}: not laid out as an exported model: {type(error).__name__}: {error}") from error


class _Reader:
    """Reads one program; ``_values`` are the tensors and numbers by their names in the file."""

    def __init__(
        self, model: str, module: Mapping[str, Any], own: Mapping[str, Operator], weights: Mapping[str, Any]
    ) -> None:
        self._model, self._graph = model, module["graph"]
        self._specs = module["signature"]["input_specs"]
        self._tied = _first_names(weights)
        self._recorder = Recorder(own)
        self._values: dict[str, Any] = {}
        self._layouts: dict[str, Strided] = {}
        self._modules: dict[str, ModuleKind] = {}
        self._parameters: dict[str, Tensor] = {}
        self._given: list[Tensor] = []
        self._storages = itertools.count()
        self._evaluated = False

    def recording(self) -> tuple[Recording, tuple[str, ...]]:
        for spec in self._specs:
            self._source(spec)
        batch = common_batch([tensor.shape for tensor in self._given], self._model)
        outputs = self._run(self._graph, differentiable=True)
        returned = tuple(self._recorder.current(tensor) for tensor in tensors_in(outputs))
        floating = [one for one in (*self._parameters.values(), *self._given) if one.floating]
        recording = Recording(
            operations=live(self._recorder.operations, returned, self._model),
            outputs=returned,
            parameter_bytes={name: tensor.total_bytes for name, tensor in self._parameters.items()},
            frozen=frozenset(name for name, tensor in self._parameters.items() if not tensor.differentiable),
            modules=self._modules,
            batch=batch,
            element_bytes=floating[0].element_bytes if floating else 4,
        )
        return recording, (EVALUATION,) if self._evaluated else ()

    def _source(self, spec: Mapping[str, Any]) -> None:
        """Note an input of the program: a parameter, a buffer or constant, or an example input."""
        (kind, content), *_ = spec.items()
        arg = content["arg"]
        if isinstance(arg, dict) and {"as_tensor", "name"}.isdisjoint(arg):
            return  # a number or nothing
        name = str(arg["name"] if "name" in arg else next(iter(arg.values()))["name"])
        meta = self._graph["tensor_values"].get(name)
        if meta is None:
            return
        tensor = self._tensor(name, meta, None)
        if kind == "parameter":
            key = self._tied.get(content["parameter_name"], str(content["parameter_name"]))
            tensor = _with(tensor, differentiable=bool(meta["requires_grad"]), parameters=frozenset({key}))
            self._parameters.setdefault(key, tensor)
        elif kind == "user_input":
            tensor = _with(tensor, batched=True)
            self._given.append(tensor)
        self._values[name] = tensor

    def _run(self, graph: Mapping[str, Any], *, differentiable: bool) -> list[Any]:
        """Record the calls of a (sub)graph and return its outputs."""
        for node in graph["nodes"]:
            self._call(node, graph, differentiable)
        return [self._plain(one, graph) for one in graph["outputs"]]

    def _call(self, node: Mapping[str, Any], graph: Mapping[str, Any], differentiable: bool) -> None:
        target = str(node["target"]).removeprefix("torch.ops.")
        call = self._place(node)
        if target.startswith("higher_order.") and target.removeprefix("higher_order.") in _INLINED:
            self._inline(node, graph, differentiable)
            return
        arguments = {one["name"]: self._plain(one["arg"], graph) for one in node["inputs"]}
        names = [name for output in node["outputs"] for name in _names(output)]
        metas = graph["tensor_values"]
        reads = any(tensor.batched for tensor in tensors_in(list(arguments.values())))
        if not names or not all(name in metas for name in names) or "." not in target:
            if names and reads and target not in _SIZES:
                where = call.module or f"of {self._model} itself"
                raise TraceError(f"layer {where}: operator {target} cannot be costed; take it out of forward")
            return
        self._evaluated |= arguments.get("train") is False or arguments.get("training") is False
        written = ["self"] if _in_place(target) and isinstance(arguments.get("self"), Tensor) else []
        operand = next(tensors_in(list(arguments.values())), None)
        results: list[Tensor] = []
        for name in names:
            layout = self._layout(metas[name])
            shared = operand is not None and (
                bool(written) or shares(operator_name(target), arguments, self._layouts[operand.key], layout)
            )
            results.append(self._tensor(name, metas[name], operand if shared else None))
        outputs = self._recorder.add(
            target,
            arguments,
            results,
            call,
            written=written,
            differentiable=differentiable,
            source=source_line(node["metadata"].get("stack_trace")),
        )
        for name, output in zip(names, outputs, strict=True):
            self._values[name] = output
            self._layouts.setdefault(output.key, self._layout(metas[name]))

    def _inline(self, node: Mapping[str, Any], graph: Mapping[str, Any], differentiable: bool) -> None:
        """Walk into a region, whose graph stands among the arguments with its inputs behind it."""
        given = [one["arg"] for one in node["inputs"]]
        at = next(index for index, one in enumerate(given) if "as_graph" in one)
        inner = given[at]["as_graph"]["graph"]
        outside = [self._plain(one, graph) for one in given[at + 1 :]]
        for one, value in zip(inner["inputs"], outside, strict=True):
            for name in _names(one):
                self._values[name] = value
        enabled = differentiable and given[0].get("as_bool") is not False
        results = self._run(inner, differentiable=enabled)
        names = [name for output in node["outputs"] for name in _names(output)]
        flat = list(tensors_in(results))
        self._values.update(zip(names, flat, strict=True))

    def _plain(self, arg: Any, graph: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return an argument as a value: tensors by name, numbers that may vary as in the example."""
        (kind, value), *_ = arg.items()
        if kind in ("as_none", "as_device", "as_layout", "as_memory_format"):
            return None
        if kind == "as_tensor":
            return self._recorder.current(self._values[value["name"]])
        if kind in ("as_tensors", "as_nested_tensors"):
            return [self._plain({"as_tensor": one}, graph) for one in value]
        if kind == "as_optional_tensors":
            return [self._plain(one, graph) for one in value]
        if kind == "as_optional_tensor":
            return self._plain(value, graph)
        if kind == "as_sym_int":
            return value["as_int"] if "as_int" in value else _hint(graph["sym_int_values"][value["as_name"]])
        if kind == "as_sym_ints":
            return [self._plain({"as_sym_int": one}, graph) for one in value]
        return value

    def _place(self, node: Mapping[str, Any]) -> Call:
        """Return the module call that a node happened in, and note the classes of its modules."""
        text = node["metadata"].get("nn_module_stack") or ""
        stack = [one.split(",", 2) for one in text.split(";") if one.count(",") >= 2]
        for _, module, kind in stack:
            torch_name = kind.rpartition(".")[2] if kind.startswith("torch.nn.modules") else ""
            self._modules.setdefault(module, ModuleKind(kind.rpartition(".")[2], torch_name))
        key, module = stack[-1][:2] if stack else ("", "")
        outer = stack[:-1]
        around = tuple(row[1] for row in outer)
        return Call(key if module else "", module, tuple(row[0] for row in outer), around)

    def _layout(self, meta: Mapping[str, Any]) -> Strided:
        sizes, strides = (tuple(_hint(one) for one in meta[key]) for key in ("sizes", "strides"))
        return Strided(meta["dtype"], sizes, strides)

    def _tensor(self, name: str, meta: Mapping[str, Any], shared: Tensor | None) -> Tensor:
        layout = self._layouts[name] = self._layout(meta)
        size = _FORMATS[layout.format]
        tensor = Tensor(
            key=name,
            shape=layout.shape,
            element_bytes=size,
            floating=layout.format in _FLOATING,
            storage=next(self._storages) if shared is None else shared.storage,
            storage_bytes=0 if shared is None else shared.storage_bytes,
            producer=None,
            batched=False,
            differentiable=False,
        )
        return tensor if shared is not None else _with(tensor, storage_bytes=tensor.total_bytes)


def _with(tensor: Tensor, **changes: Any) -> Tensor:  # noqa: ANN401
    return replace(tensor, **changes)


def _names(output: Mapping[str, Any]) -> Iterable[str]:
    """Yield the names in an output: of a tensor, of several, or of a number."""
    (kind, value), *_ = output.items()
    if kind in ("as_tensor", "as_sym_int", "as_sym_bool", "as_sym_float"):
        yield value.get("name") or value.get("as_name", "")
    elif kind in ("as_tensors", "as_optional_tensors"):
        for one in value:
            yield from _names(one if "as_tensor" in one or "as_none" in one else {"as_tensor": one})


def _hint(size: Mapping[str, Any]) -> int:
    """Return a size as the example had it, whether it may vary or not."""
    if "as_int" in size:
        return int(size["as_int"])
    return int(size["as_expr"]["hint"]["as_int"])


def _in_place(target: str) -> bool:
    bare = target.split(".")[1]
    return bare.endswith("_") and not bare.endswith("__")


def _first_names(weights: Mapping[str, Any]) -> dict[str, str]:
    """Map every name of a parameter to the first with the same values; on the meta device that is not told."""
    first: dict[object, str] = {}
    found: dict[str, str] = {}
    for name, row in weights.items():
        meta = row["tensor_meta"]
        if meta["device"]["type"] != _META:
            found[name] = first.setdefault((row["path_name"], str(meta)), name)
    return found
