"""Piper's JSON: layers with alternatives for each tensor-parallel degree (docs/formats).

``timePerSample`` is seconds in ``bert32a100.json`` but *ms* in ``gnmt.json`` and ``resnet.json``, which the
program reads as seconds all the same; the file does not say, so the caller does (:class:`TimeUnit`).
``syncTimeFw`` and ``syncTimeBw`` are bytes in spite of their names.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ingest.graphs.errors import FormatError, quoted
from ingest.graphs.profiled_model import ProfiledModel
from planners.common.json_source import Count, Positive, Real, Strict, Whole, read_json
from planners.piper.problem import Alternative, PiperLayer, PiperProblem

__all__: list[str] = []

LARGEST_GRAPH = 100_000
LARGEST_DEGREE = 10_000
KEPT_ACTIVATIONS = 0.09
"""Share of the activations that a layer of a PipeDream profile keeps when it recomputes; the rest is held once."""
NS_PER_MS = 1_000_000


class TimeUnit(enum.Enum):
    """What a ``timePerSample`` of 1 means. ``SECONDS`` is what Piper's program takes it for, in every file."""

    SECONDS = 1
    MILLISECONDS = 1000


class _Alternative(Strict):
    id: Annotated[str, Field(min_length=1, max_length=200)]
    timePerSample: Real  # noqa: N815 - the keys of the file
    parameterSize: Real  # noqa: N815
    memoryUsageA: Real  # noqa: N815
    memoryUsageB: Real  # noqa: N815
    syncTimeFw: dict[str, Real]  # noqa: N815
    syncTimeBw: dict[str, Real]  # noqa: N815


class _Node(Strict):
    id: Whole
    name: str = ""
    TMPCs: dict[str, list[_Alternative]]


class _Edge(Strict):
    sourceId: Whole  # noqa: N815
    destId: Whole  # noqa: N815
    communicationCost: Real  # noqa: N815


class _File(Strict):
    maxDevices: Count  # noqa: N815
    maxMemoryPerDevice: Positive  # noqa: N815
    bandwidth: Positive
    mbsInBatch: Count  # noqa: N815
    nodes: Annotated[list[_Node], Field(min_length=1, max_length=LARGEST_GRAPH)]
    edges: Annotated[list[_Edge], Field(max_length=LARGEST_GRAPH)]


def read_piper(path: Path, *, time_unit: TimeUnit) -> PiperProblem:
    """Read a Piper problem; layers are numbered from 0 in the order of the file, times become seconds.

    Raises FormatError; OSError if the file cannot be read. (Piper's README calls ``mbsInBatch`` maxBatchSize; its
    program does not, and neither does this importer.)
    """
    file = read_json(path, _File)
    place = {node.id: index for index, node in enumerate(file.nodes)}
    problems = [
        f": nodes[{index}].id: found {node.id} again, expected every id once"
        for index, node in enumerate(file.nodes)
        if place[node.id] != index
    ]
    for index, edge in enumerate(file.edges):
        for key, end in (("sourceId", edge.sourceId), ("destId", edge.destId)):
            if end not in place:
                problems.append(f": edges[{index}].{key}: found {end}, expected the id of a node")
    layers = [
        _layer(f": nodes[{index}]", node, place, time_unit, problems) for index, node in enumerate(file.nodes)
    ]
    if problems:
        raise FormatError(path, problems)
    edges = tuple((place[edge.sourceId], place[edge.destId], edge.communicationCost) for edge in file.edges)
    try:
        return PiperProblem(
            tuple(layers), edges, file.maxDevices, file.maxMemoryPerDevice, file.bandwidth, file.mbsInBatch
        )
    except ValueError as error:
        raise FormatError(path, [f": {error}"]) from None


def _layer(at: str, node: _Node, place: Mapping[int, int], unit: TimeUnit, problems: list[str]) -> PiperLayer:
    """Convert one layer; what is wrong with it goes to ``problems``."""
    found: dict[int, tuple[Alternative, ...]] = {}
    for key, row in node.TMPCs.items():
        here = f"{at}.TMPCs.{key[:20]}"
        degree = _whole(key)
        if not 1 <= degree <= LARGEST_DEGREE:
            problems.append(f"{here}: found {quoted(key)}, expected a tensor-parallel degree")
        if len({one.id for one in row}) != len(row):
            problems.append(f"{here}: two alternatives have the same id")
        found[degree] = tuple(
            Alternative(
                one.id,
                one.timePerSample / unit.value,
                one.parameterSize,
                one.memoryUsageA,
                one.memoryUsageB,
                _neighbours(f"{here}[{index}].syncTimeFw", one.syncTimeFw, place, problems),
                _neighbours(f"{here}[{index}].syncTimeBw", one.syncTimeBw, place, problems),
            )
            for index, one in enumerate(row)
        )
    return PiperLayer(node.name or str(node.id), found)


def _neighbours(
    at: str, sizes: Mapping[str, float], place: Mapping[int, int], problems: list[str]
) -> dict[int, float]:
    """Renumber the neighbours of an alternative; whether they are the right ones is the problem's own check."""
    found: dict[int, float] = {}
    for key, size in sizes.items():
        number = place.get(_whole(key))
        if number is None:
            problems.append(f"{at}: found {quoted(key)}, expected the id of a node")
        else:
            found[number] = size
    return found


def _whole(text: str) -> int:
    """Return a key as a number; -1 for anything that is none in its plain form."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 and str(int(text)) == text else -1


def piper_problem(
    profile: ProfiledModel,
    *,
    devices: int,
    memory_bytes: float,
    bytes_per_second: float,
    micro_batches: int,
    time_unit: TimeUnit = TimeUnit.SECONDS,
) -> PiperProblem:
    """Turn a PipeDream profile into a Piper problem, as Piper's authors made ``resnet.json`` and ``gnmt.json``.

    No tensor parallelism; two alternatives: keep the activations A, or recompute them, which runs the forward pass
    again, keeps 9 % of A for each micro-batch in flight and 91 % once. Twice the weights are always there. The
    input layer is planned like any other. Times are written in ms; with ``SECONDS`` they are then taken for
    seconds, as the program does: 1000 times too long beside the transfers.
    """
    edges = tuple(dict.fromkeys(profile.edges))
    layers = []
    for index, layer in enumerate(profile.layers):
        into = dict.fromkeys((a for a, b in edges if b == index), 0.0)
        out = dict.fromkeys((b for a, b in edges if a == index), 0.0)
        forward, backward = layer.forward_ns / NS_PER_MS, layer.backward_ns / NS_PER_MS
        size, weights = float(layer.activation_bytes), float(layer.parameter_bytes)
        kept = KEPT_ACTIVATIONS * size, (1 - KEPT_ACTIVATIONS) * size + 2 * weights
        plain = Alternative(
            "vanilla", (forward + backward) / time_unit.value, weights, size, 2 * weights, into, out
        )
        again = Alternative(
            "activation recomp", (2 * forward + backward) / time_unit.value, weights, *kept, into, out
        )
        layers.append(PiperLayer(layer.name, {1: (plain, again)}))
    sized = tuple((a, b, float(profile.layers[a].activation_bytes)) for a, b in edges)
    return PiperProblem(tuple(layers), sized, devices, memory_bytes, bytes_per_second, micro_batches)
