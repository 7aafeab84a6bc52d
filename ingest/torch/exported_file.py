"""From a file of ``torch.export.save`` to a recording, without torch, as ``ingest.torch.record`` gives one.

The file holds every operator call with its arguments, every tensor with its sizes and strides, and the modules
that it happened in. Sizes that may vary count as in the example that was exported.

Which results of an operator lie in the memory of its operand, told from shapes and strides as torch does.

A file of an exported model says how a tensor is laid out, but not which tensors share memory.

Models that ``torch.export.save`` has written, opened as what they are: a zip with JSON in it.

Nothing in the file is executed: ``torch.export.load`` would load pickles that lie beside the JSON. Weights and
example inputs are left where they are. Only the layout that this program knows is read; any other is refused.
"""

from __future__ import annotations

import itertools
import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipecut.ingest.errors import ModelError, TraceError, first_line
from pipecut.ingest.files import parse_json
from pipecut.ingest.operators.costs import Operator, own_rules
from pipecut.ingest.operators.operations import (
    Call,
    ModuleKind,
    Recorder,
    Recording,
    Tensor,
    operator_name,
    source_line,
    tensors_in,
)
from pipecut.ingest.torch.record import common_batch, live

_VIEWS = {
    *(
        "view",
        "_unsafe_view",
        "view_as",
        "unflatten",
        "unsqueeze",
        "squeeze",
        "expand",
        "expand_as",
        "broadcast_to",
    ),
    *("transpose", "permute", "t", "numpy_T", "movedim", "moveaxis", "swapaxes", "swapdims", "diagonal"),
    *("chunk", "split", "split_with_sizes", "tensor_split", "slice", "narrow", "select", "unbind", "unfold"),
    *("detach", "alias", "broadcast_to"),
}
_RESHAPES = frozenset({"reshape", "flatten", "reshape_as"})
_CONVERSIONS = frozenset({"to", "type_as", "float", "double", "half", "bfloat16"})


@dataclass(frozen=True, slots=True)
class Strided:
    """How a tensor lies in memory: its number format, sizes and strides in elements."""

    format: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def contiguous(self) -> bool:
        """Tell whether its elements follow one another in order."""
        step = 1
        for length, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if length != 1 and stride != step:
                return False
            step *= length
        return True


def shares(name: str, arguments: Mapping[str, object], operand: Strided, result: Strided) -> bool:
    """Tell whether a result lies in the memory of the first operand. In-place operators are not asked about."""
    if name in _RESHAPES:
        return viewable(operand, result.shape)
    if name == "contiguous":
        return operand.contiguous
    if name in _CONVERSIONS:
        return operand.format == result.format and not arguments.get("copy")
    return name in _VIEWS


def viewable(old: Strided, shape: Sequence[int]) -> bool:
    """Tell whether a tensor can be seen in another shape without a copy (``computeStride`` of torch)."""
    if math.prod(old.shape) == 0 or not old.shape:
        return True
    at, base = len(shape) - 1, old.strides[-1]
    elements = seen = 1
    for dimension in range(len(old.shape) - 1, -1, -1):
        elements *= old.shape[dimension]
        ends = dimension == 0 or (old.shape[dimension - 1] != 1 and old.strides[dimension - 1] != elements * base)
        if not ends:
            continue
        while at >= 0 and (seen < elements or shape[at] == 1):
            seen *= shape[at]
            at -= 1
        if seen != elements:
            return False
        if dimension:
            base, elements, seen = old.strides[dimension - 1], 1, 1
    return at == -1


MAJOR = 8
"""The version of the schema that is read; torch changes it when a reader of the old one would misread the new."""
LARGEST_DOCUMENT = 64 * 2**20
"""Bytes of the largest model that is read; a network of 70 billion weights in 80 blocks takes 10 MB."""
_MODEL, _WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"


def open_archive(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the exported program of an archive, and what it says of its weights (nothing, in an old archive).

    Raises ModelError for what is no such archive, or of another version.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            program, weights = (_document(archive, path, name) for name in (_MODEL, _WEIGHTS))
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path}: no exported model can be read: {first_line(error)}") from error
    if program is None:
        raise ModelError(f"{path}: holds no {_MODEL}, as torch.export.save would have written")
    version = program.get("schema_version")
    major = version.get("major") if isinstance(version, dict) else None
    if major != MAJOR:
        found = f"{major}.{version.get('minor')}" if isinstance(version, dict) else "unknown"
        by = f" (torch {program['torch_version']})" if program.get("torch_version") else ""
        raise ModelError(
            f"{path}: the schema of the exported model is version {found}{by}, this pipecut reads {MAJOR}; "
            "trace the model by model.build, or export it with a torch of that schema"
        )
    return program, weights or {}


def _document(archive: zipfile.ZipFile, path: Path, name: str) -> dict[str, Any] | None:
    """Return the JSON object in an entry of an archive, whatever folder everything lies in; None without one."""
    entry = next((one for one in archive.infolist() if f"/{one.filename}".endswith(f"/{name}")), None)
    if entry is None:
        return None
    if entry.file_size > LARGEST_DOCUMENT:
        raise ModelError(f"{path}: {name} has {entry.file_size} bytes, expected at most {LARGEST_DOCUMENT}")
    with archive.open(entry) as file:
        content = file.read(LARGEST_DOCUMENT + 1)
    if len(content) > LARGEST_DOCUMENT:
        raise ModelError(f"{path}: {name} is larger than {LARGEST_DOCUMENT} bytes")
    document = parse_json(content)
    if not isinstance(document, dict):
        raise ModelError(f"{path}: {name} is no object of JSON")
    return document


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
