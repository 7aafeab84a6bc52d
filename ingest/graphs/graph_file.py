"""Layer graphs as JSON files: written whole or not at all, read with nothing executed and nothing guessed.

The format is described in docs/formats/layer-graph.md. Unknown keys, repeated keys, wrong types and versions of
the format that this program does not know are refused, with every problem named.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import networkx as nx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipecut.formulation.predictor.curves import Measured
from pipecut.formulation.predictor.roofline import Product, Work
from pipecut.formulation.problem.layers import Across, Axis, Layer, LayerGraph, Split, layer_graph, layers_of
from pipecut.ingest.errors import GraphFileError
from pipecut.ingest.files import atomic_write, parse_json
from pipecut.ingest.graphs.module_calls import ModuleCall, check_calls
from pipecut.ingest.mistakes import problems_of

FORMAT = "pipecut layer graph"
VERSION = 2
"""The version that is written. Version 1 is read too; it could have ``shared_parameters`` in the place of ties."""
SIZE_LIMIT = 64 * 1024 * 1024
"""Largest file that is read, in bytes; a network of a thousand layers takes about 0.4 MB."""

_PROBLEMS_SHOWN = 10
_Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Size = Annotated[int, Field(ge=1, le=2**63 - 1)]
_Name = Annotated[str, Field(min_length=1, max_length=1000)]
_Note = Annotated[str, Field(min_length=1, max_length=10_000)]


NamedTie = tuple[tuple[str, ...], int, int]
"""Names of layers that share weights, bytes of these, bytes that are trained."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _MeasuredEntry(_Strict):
    device_class: _Name
    samples: Annotated[int, Field(ge=1, le=2**31)]
    forward_ns: _Count
    backward_ns: _Count
    width: Annotated[int, Field(ge=1, le=2**31)] = 1


class _ProductEntry(_Strict):
    rows: _Size
    inner: _Size
    columns: _Size
    copies: _Size = 1
    weighted: bool = True
    read_bytes: _Count = 0
    written_bytes: _Count = 0


class _WorkEntry(_Strict):
    products: list[_ProductEntry] = []
    kernels: _Count = 0
    read_bytes: _Count = 0
    written_bytes: _Count = 0


class _AcrossEntry(_Strict):
    axis: Annotated[Axis, Field(strict=False)]
    pieces: _Count = 0
    sent_bytes: _Count = 0


class _LayerEntry(_Strict):
    name: _Name
    operator: _Name
    split: Literal["matrix", "follow", "join"]
    parameter_bytes: _Count
    input_bytes: _Count
    output_bytes: _Count
    stash_bytes: _Count
    macs: _Count
    torchstat_flops: _Count
    allowed_forms: Annotated[list[Literal[0, 1, 2, 3, 4, 5, 6, 7]], Field(min_length=1, max_length=8)]
    trainable_bytes: _Count | None = None
    backward: bool = True
    measured: list[_MeasuredEntry] = []
    work: _WorkEntry | None = None
    across: _AcrossEntry | None = None


class _EdgeEntry(_Strict):
    producer: _Name
    consumer: _Name
    bytes: _Count


class _SharedEntry(_Strict):
    """Of version 1: weights that count at layer ``first`` and that layer ``other`` uses too."""

    first: _Name
    other: _Name
    bytes: _Count


class _TieEntry(_Strict):
    layers: Annotated[list[_Name], Field(min_length=2)]
    parameter_bytes: _Count
    trainable_bytes: _Count | None = None


class _ModuleEntry(_Strict):
    name: _Name
    operator: _Name
    first: _Name
    last: _Name


class _Document(_Strict):
    format: Literal["pipecut layer graph"]
    version: Literal[1, 2]
    name: _Name
    element_bytes: Annotated[int, Field(ge=1, le=16)]
    layers: list[_LayerEntry]
    edges: list[_EdgeEntry]
    ties: list[_TieEntry] = []
    cuts: list[_Name] | None = None
    modules: list[_ModuleEntry] = []
    unpriced: list[_Name] = []
    notes: list[_Note] = []

    @property
    def all_ties(self) -> list[_TieEntry]:
        """The ties, also what a version before this one had in their place."""
        return self.ties


class _FormerDocument(_Document):
    """What version 1 could be: with ties, or with what layers share with a first one."""

    shared_parameters: list[_SharedEntry] = []

    @property
    def all_ties(self) -> list[_TieEntry]:
        """The ties; of what is shared, layers with the same weights of a first one together."""
        shared: dict[tuple[str, int], list[str]] = {}
        for one in self.shared_parameters:
            shared.setdefault((one.first, one.bytes), [one.first]).append(one.other)
        return self.ties + [_TieEntry(layers=row, parameter_bytes=size) for (_, size), row in shared.items()]


def graph_schema() -> dict[str, Any]:
    """Return the JSON schema of layer graphs in files."""
    return _Document.model_json_schema()


def read_graph(path: Path) -> nx.DiGraph:
    """Read a layer graph from a file. Raises GraphFileError naming the file and what is wrong with it."""
    return graph_from_document(read_json(path, "a layer graph"), str(path))


def read_json(path: Path, what: str) -> object:
    """Read ``what`` is in a file, as JSON. Raises GraphFileError naming the file and what is wrong with it."""
    try:
        with path.open("rb") as file:
            content = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise GraphFileError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(content) > SIZE_LIMIT:
        raise GraphFileError(f"{path}: larger than {SIZE_LIMIT} bytes, the limit for {what}")
    return parse_graph(content, str(path))


def write_graph(graph: nx.DiGraph, path: Path) -> None:
    """Write a layer graph to a file, or leave the file as it was.

    The text goes to a temporary file beside it, which then takes its name. Raises GraphFileError when the graph
    cannot be said in the format, or the file cannot be written.
    """
    document = graph_document(graph)
    graph_from_document(document, str(path))
    try:
        atomic_write(path, _text(document))
    except OSError as error:
        raise GraphFileError(f"{path}: cannot be written ({error.strerror or error})") from error


def graph_document(graph: nx.DiGraph) -> dict[str, Any]:
    """Return a layer graph as plain lists and dictionaries, edges in execution order of their ends."""
    position = {name: index for index, name in enumerate(graph)}
    edges = sorted(graph.edges(data="bytes"), key=lambda edge: (position[edge[0]], position[edge[1]]))
    document = {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.graph["name"],
        "element_bytes": graph.graph["element_bytes"],
        "layers": [_layer_entry(layer) for layer in layers_of(graph)],
        "edges": [{"producer": start, "consumer": end, "bytes": size} for start, end, size in edges],
    }
    if ties := graph.graph.get("ties"):
        document["ties"] = [_tie_entry(*tie) for tie in ties]
    if "cuts" in graph.graph:
        document["cuts"] = list(graph.graph["cuts"])
    if modules := graph.graph.get("modules"):
        document["modules"] = [asdict(call) for call in modules]
    if unpriced := graph.graph.get("unpriced"):
        document["unpriced"] = list(unpriced)
    if notes := graph.graph.get("notes"):
        document["notes"] = list(notes)
    return document


def graph_from_document(document: object, source: str) -> nx.DiGraph:
    """Build the layer graph that a document describes. Raises GraphFileError; ``source`` names it in messages."""
    try:
        former = isinstance(document, dict) and document.get("version") == 1
        checked = (_FormerDocument if former else _Document).model_validate(document)
    except ValidationError as error:
        raise GraphFileError(f"{source}: {'; '.join(problems_of(error.errors(), _PROBLEMS_SHOWN))}") from error
    try:
        layers = [
            Layer(
                **entry.model_dump(exclude={"split", "allowed_forms", "measured", "work", "across"}),
                split=Split(entry.split),
                allowed_forms=tuple(entry.allowed_forms),
                measured=tuple(Measured(**row.model_dump()) for row in entry.measured),
                work=None if entry.work is None else _work(entry.work),
                across=entry.across and Across(**entry.across.model_dump()),
            )
            for entry in checked.layers
        ]
        edges = [(entry.producer, entry.consumer, entry.bytes) for entry in checked.edges]
        graph = layer_graph(checked.name, layers, edges, checked.element_bytes, checked.cuts)
    except ValueError as error:
        raise GraphFileError(f"{source}: {error}") from error
    if ties := checked.all_ties:
        graph.graph["ties"] = _ties(ties, graph, source)
    if checked.unpriced:
        graph.graph["unpriced"] = tuple(checked.unpriced)
    if checked.notes:
        graph.graph["notes"] = tuple(checked.notes)
    if checked.modules:
        graph.graph["modules"] = _modules(checked.modules, graph, source)
    return graph


def _tie_entry(layers: tuple[str, ...], size: int, trained: int) -> dict[str, Any]:
    entry = {"layers": list(layers), "parameter_bytes": size}
    return entry if trained == size else entry | {"trainable_bytes": trained}


def _ties(
    entries: list[_TieEntry], graph: nx.DiGraph, source: str
) -> tuple[tuple[tuple[str, ...], int, int], ...]:
    """Return the weights that layers share. Raises GraphFileError where the layers do not have them."""
    found = tuple(
        (
            tuple(entry.layers),
            entry.parameter_bytes,
            entry.parameter_bytes if entry.trainable_bytes is None else entry.trainable_bytes,
        )
        for entry in entries
    )
    graph.graph["ties"] = found
    try:
        LayerGraph.of(graph)
    except ValueError as error:
        raise GraphFileError(f"{source}: ties: {error}") from error
    return found


def _work(entry: _WorkEntry) -> Work:
    products = tuple(Product(**row.model_dump()) for row in entry.products)
    return Work(products, **entry.model_dump(exclude={"products"}))


def _modules(entries: list[_ModuleEntry], graph: nx.DiGraph, source: str) -> tuple[ModuleCall, ...]:
    """Return the calls of modules. Raises GraphFileError where they are no calls of these layers."""
    calls = tuple(ModuleCall(**entry.model_dump()) for entry in entries)
    try:
        check_calls(calls, list(graph))
    except ValueError as error:
        raise GraphFileError(f"{source}: modules: {error}") from error
    return calls


def parse_graph(content: bytes, source: str) -> object:
    """Parse the JSON of a graph file. Raises GraphFileError; ``source`` names it in messages."""
    try:
        return parse_json(content)
    except RecursionError as error:
        raise GraphFileError(f"{source}: nested too deeply for a layer graph") from error
    except ValueError as error:
        raise GraphFileError(f"{source}: not JSON ({error})") from error


def _layer_entry(layer: Layer) -> dict[str, Any]:
    fields = {name: getattr(layer, name) for name in _LayerEntry.model_fields}
    fields.pop("across")
    fields |= {"split": layer.split.value, "allowed_forms": list(layer.allowed_forms)}
    rows = [_without(asdict(row), width=1) for row in fields.pop("measured")]
    trained = fields.pop("trainable_bytes")
    said = {
        "measured": rows or None,
        "trainable_bytes": trained,
        "backward": None if fields.pop("backward") else False,
        "work": None if (work := fields.pop("work")) is None else _work_entry(work),
        "across": _without(asdict(layer.across), pieces=0, sent_bytes=0, samples=0) if layer.across else None,
    }
    return fields | {key: value for key, value in said.items() if value is not None}


def _work_entry(work: Work) -> dict[str, Any]:
    products = [_without(asdict(row), copies=1, weighted=True) for row in work.products]
    return asdict(work) | {"products": products}


def _without(entry: dict[str, Any], **usual: object) -> dict[str, Any]:
    """Leave out what is as it usually is."""
    return {key: value for key, value in entry.items() if key not in usual or value != usual[key]}


def _text(document: dict[str, Any]) -> str:
    """Lay a document out with one layer or edge a line, so that people and ``diff`` can read it."""
    parts: list[str] = []
    for key, value in document.items():
        if isinstance(value, list):
            lines = ",\n".join("    " + json.dumps(entry) for entry in value)
            parts.append(f'  "{key}": [\n{lines}\n  ]' if value else f'  "{key}": []')
        else:
            parts.append(f'  "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"
