"""PipeDream's profiles, ``graph.txt``: layers with measured times, sizes, and edges (docs/formats).

One line for each layer and, after a tab, one for each edge::

    node4 -- ReLU(inplace) -- forward_compute_time=0.361, backward_compute_time=0.214, activation_size=512.0, ...
        node3 -- node4

Times are ms and sizes bytes *of the whole minibatch*, both made into whole ns and bytes here. Nothing else is
changed: inputs, repeated edges and the order of the file stay.

A measured model in PipeDream's terms: what its profiler writes, in whole ns and bytes.

It is no layer graph yet: its numbers are those of a whole minibatch on one device.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import networkx as nx

from pipecut.formulation.predictor.curves import Measured
from pipecut.formulation.problem.layers import Layer, Split, layer_graph
from pipecut.formulation.problem.units import ceil_div, ceil_fraction
from pipecut.ingest.files import read_limited
from pipecut.ingest.graphs.foreign import FormatError, check_graph, quoted


@dataclass(frozen=True, slots=True)
class ProfiledLayer:
    """One operator of a PipeDream profile, measured for a whole minibatch on one device.

    ``activation_bytes`` is the output of the whole minibatch; ``stage`` the stage that PipeDream's optimiser
    wrote into the file, None in a bare profile.
    """

    name: str
    description: str
    forward_ns: int
    backward_ns: int
    activation_bytes: int
    parameter_bytes: int
    stage: int | None = None

    def __post_init__(self) -> None:
        for value in (self.forward_ns, self.backward_ns, self.activation_bytes, self.parameter_bytes):
            if type(value) is not int or value < 0:
                raise ValueError(f"layer {self.name}: found {value!r}, expected a whole number, 0 or more")


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """A PipeDream profile: layers in the order of the file (not topological) and edges (producer, consumer).

    An edge may stand in the file twice; it does so here.
    """

    layers: tuple[ProfiledLayer, ...]
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        check_graph("profile", [layer.name for layer in self.layers], self.edges)

    def planned(self) -> ProfiledModel:
        """Return what PipeDream plans: no source called ``Input...``, then no sink called ``__getitem__...``.

        The "forward time" of an input is data loading (up to 0.6 s) and none of the planner's business.
        """
        consumed = {consumer for _, consumer in self.edges}
        inputs = self._called("Input", consumed)
        edges = [edge for edge in self.edges if inputs.isdisjoint(edge)]
        unused = self._called("__getitem__", {producer for producer, _ in edges}) - inputs
        kept = [index for index in range(len(self.layers)) if index not in inputs | unused]
        number = {old: new for new, old in enumerate(kept)}
        return ProfiledModel(
            tuple(self.layers[index] for index in kept),
            tuple((number[a], number[b]) for a, b in edges if a in number and b in number),
        )

    def _called(self, prefix: str, but: set[int]) -> set[int]:
        named = (i for i, layer in enumerate(self.layers) if layer.description.startswith(prefix))
        return {index for index in named if index not in but}


LARGEST_FILE = 16 * 2**20
LONGEST_NUMBER = 40
NS_PER_MS = 1_000_000
SEPARATOR = " -- "
FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?", re.ASCII)
_STAGE = re.compile(r"stage_id=([0-9]{1,6})", re.ASCII)


class ProfileError(ValueError):
    """What is asked of a profile is not said; the message names its file."""


class _LineError(ValueError):
    """What is wrong with one line."""


def layers_of_profile(arguments: argparse.Namespace) -> nx.DiGraph:
    """Read the profile that a command line names as a layer graph with measured times, for ``pipecut trace``.

    Raises ValueError where it does not say what a profile leaves open, and as :func:`read_profile` does.
    """
    if arguments.samples is None or not arguments.device_class:
        raise ProfileError(
            f"{arguments.model}: a profile does not say its minibatch and its device;"
            " give --samples N and --device-class NAME"
        )
    path = Path(arguments.model)
    name = path.parent.resolve().name if path.stem == "graph" else path.stem
    return measured_layers(read_profile(path), arguments.samples, name, arguments.device_class)


def read_profile(path: Path) -> ProfiledModel:
    """Read a profile, or a profile with the stages that PipeDream's optimiser wrote into it.

    Raises FormatError naming every line that is wrong, or a cycle; OSError if the file cannot be read.
    """
    try:
        lines = read_limited(path, LARGEST_FILE).strip("\n").split("\n")
    except ValueError as error:
        raise FormatError(path, [f": {error}"]) from None
    layers: dict[str, ProfiledLayer] = {}
    ends: list[tuple[int, str, str]] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        try:
            if line.startswith("\t"):
                ends.append((number, *_edge(line)))
                continue
            layer = _layer(line)
            if layer.name in layers:
                raise _LineError(f"layer {quoted(layer.name)} appears twice")
            layers[layer.name] = layer
        except _LineError as error:
            problems.append(f":{number}: {error}")
    place = {name: index for index, name in enumerate(layers)}
    if not problems:
        # A bad line of a layer would make all of its edges bad, too.
        for number, *both in ends:
            problems += [f":{number}: no layer is called {quoted(end)}" for end in both if end not in place]
    if problems:
        raise FormatError(path, problems)
    try:
        return ProfiledModel(tuple(layers.values()), tuple((place[a], place[b]) for _, a, b in ends))
    except ValueError as error:
        raise FormatError(path, [f": {error}"]) from None


def _edge(line: str) -> tuple[str, str]:
    match line[1:].rstrip().split(SEPARATOR):
        case [str(before), str(after)] if before.strip() and after.strip():
            return before, after
    raise _LineError(f"found {quoted(line)}, expected a tab and 'nodeA -- nodeB'")


def _layer(line: str) -> ProfiledLayer:
    """Read the line of one layer."""
    parts = line.rstrip().split(SEPARATOR)
    if len(parts) not in (3, 4) or not parts[0].strip():
        raise _LineError(f"found {quoted(line)}, expected 'node -- description -- {FIELDS[0]}=..., ...'")
    stage = _STAGE.fullmatch(parts[3]) if len(parts) == 4 else None
    if len(parts) == 4 and stage is None:
        raise _LineError(f"found {quoted(parts[3])}, expected 'stage_id=' and a number")
    values = parts[2].split(", ")
    keys = tuple(value.split("=")[0] for value in values)
    if keys != FIELDS:
        raise _LineError(f"found {quoted(parts[2])}, expected {', '.join(f'{field}=...' for field in FIELDS)}")
    forward, backward, activation, parameters = (value.partition("=")[2] for value in values)
    return ProfiledLayer(
        parts[0],
        parts[1],
        ceil_fraction(_number(FIELDS[0], forward) * NS_PER_MS),
        ceil_fraction(_number(FIELDS[1], backward) * NS_PER_MS),
        _bytes(FIELDS[2], activation),
        _bytes(FIELDS[3], parameters),
        int(stage[1]) if stage else None,
    )


def _number(field: str, text: str) -> Fraction:
    if len(text) > LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        raise _LineError(f"{field}: found {quoted(text)}, expected a decimal number, 0 or more")
    return Fraction(text)


def _bytes(field: str, text: str) -> int:
    """Read a number of bytes, or a list ``[a; b]`` of them, which is meant as their sum."""
    inside = text[1:-1].split("; ") if text.startswith("[") and text.endswith("]") else [text]
    total = sum((_number(field, one) for one in inside), Fraction(0))
    if total.denominator != 1:
        raise _LineError(f"{field}: found {quoted(text)}, expected whole bytes")
    return int(total)


def measured_layers(profile: ProfiledModel, samples: int, name: str, device_class: str) -> nx.DiGraph:
    """Turn what PipeDream plans of a profile into a layer graph with its measured times.

    ``samples`` is the minibatch that was measured and ``device_class`` what it was measured on; the file says
    neither. Bytes are divided by the samples, rounded up. What a layer keeps for its backward pass is not in a
    profile; as PipeDream does, its output is taken. Operations (``macs``) are unknown and 0, and every layer is
    only ever replicated (form 0). Layers are put into a topological order, those that stand earlier in the file
    first. Raises ValueError for fewer samples than one, or a profile without a layer.
    """
    if samples < 1:
        raise ValueError(f"{samples} samples, expected the minibatch that the profile was measured with")
    model = profile.planned()
    order = list(nx.lexicographical_topological_sort(_ordered(model)))
    edges = sorted(set(model.edges))
    sizes = [ceil_div(layer.activation_bytes, samples) for layer in model.layers]
    producers = {node: [a for a, b in edges if b == node] for node in order}
    layers = [
        _converted(
            model.layers[node],
            [sizes[a] for a in producers[node]],
            sizes[node],
            Measured(device_class, samples, model.layers[node].forward_ns, model.layers[node].backward_ns),
        )
        for node in order
    ]
    named = [(model.layers[a].name, model.layers[b].name, sizes[a]) for a, b in edges]
    return layer_graph(name, layers, named)


def _ordered(model: ProfiledModel) -> nx.DiGraph:
    graph = nx.DiGraph(model.edges)
    graph.add_nodes_from(range(len(model.layers)))
    return graph


def _converted(layer: ProfiledLayer, inputs: list[int], output: int, measured: Measured) -> Layer:
    """Make one layer; how it may be split follows from its weights and inputs, as a profile knows no operators."""
    split = Split.MATRIX if layer.parameter_bytes else Split.FOLLOW if len(inputs) <= 1 else Split.JOIN
    return Layer(
        layer.name,
        layer.description.split("(")[0],
        split,
        layer.parameter_bytes,
        sum(inputs),
        output,
        output,
        macs=0,
        allowed_forms=(0,),
        measured=(measured,),
    )
