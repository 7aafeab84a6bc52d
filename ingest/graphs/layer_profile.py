"""Times of layers as ``pipecut profile`` measured them, in a file that a scenario names as ``model.profile``."""

from __future__ import annotations

import json
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import networkx as nx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipecut.formulation.costs.amounts import counted
from pipecut.formulation.predictor.curves import Measured
from pipecut.ingest.errors import GraphFileError, ModelError
from pipecut.ingest.files import atomic_write
from pipecut.ingest.graphs.graph_file import read_json
from pipecut.ingest.mistakes import problems_of

_Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Name = Annotated[str, Field(min_length=1, max_length=1000)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TimedLayer(_Row):
    """A layer's times in ns for a micro-batch."""

    name: _Name
    forward_ns: _Count
    backward_ns: _Count


class ProfiledTimes(_Row):
    """Times of all layers for micro-batches of ``samples``, and the whole, timed without a stop inside.

    ``probe_ns`` is how long the same small computation took meanwhile, in the median: how fast the machine was
    (None in profiles of before it was kept).
    """

    samples: Annotated[int, Field(ge=1, le=2**31)]
    whole_forward_ns: _Count
    whole_backward_ns: _Count
    spread: Annotated[float, Field(ge=0)]
    probe_ns: Annotated[int, Field(ge=1, le=2**63 - 1)] | None = None
    layers: list[TimedLayer]


class LinkRow(_Row):
    """What a tensor takes between two processes of the machine."""

    latency_ns: _Count
    bits_per_second: Annotated[int, Field(ge=1)]


class LayerProfile(_Row):
    """What was measured, of which model, on what: a device class of the scenario, a processor, a torch.

    ``at_once``: so many processes measured at the same time; times are their mean.
    """

    format: Literal["pipecut profile"] = "pipecut profile"
    version: Literal[1] = 1
    model: _Name
    device_class: _Name
    machine: _Name
    torch: _Name
    threads: Annotated[int, Field(ge=1)]
    at_once: Annotated[int, Field(ge=1)] = 1
    link: LinkRow
    times: Annotated[list[ProfiledTimes], Field(min_length=1)]

    def probe_ns(self, samples: int) -> int | None:
        """Return the time of a probe while the size nearest to so many samples was measured; None: not known."""
        return min(self.times, key=lambda one: abs(one.samples - samples)).probe_ns


def read_profile(path: Path) -> LayerProfile:
    """Read a profile. Raises GraphFileError naming the file and what is wrong with it."""
    content = read_json(path, "a profile")
    if isinstance(content, dict) and "traceEvents" in content:
        raise GraphFileError(
            f"{path}: a profiler's trace, which knows kernels and no layers of this model: let 'pipecut profile"
            " SCENARIO --out profile.json' measure them, or give a table (layer,forward_ms,backward_ms)"
        )
    try:
        return LayerProfile.model_validate(content)
    except ValidationError as error:
        raise GraphFileError(f"{path}: {problems_of(error.errors(), 1)[0]}") from error


def write_profile(profile: LayerProfile, path: Path) -> None:
    """Write a profile, whole or not at all. Raises OSError."""
    atomic_write(path, json.dumps(profile.model_dump(), indent=1) + "\n")


def with_times(
    graph: nx.DiGraph, profile: LayerProfile, classes: Collection[str], samples: Collection[int], source: str
) -> nx.DiGraph:
    """Return a layer graph whose layers take the profiled times on the device class of the profile.

    Times of several sizes of micro-batches are a curve (``formulation.predictor.curves``); where a size that is
    asked for lies outside of them, or there is one alone, a note says what is extrapolated. Raises ModelError,
    which names ``source``, where the profile is that of another model or device class, and where it has one size
    and another is asked for.
    """
    if profile.device_class not in classes:
        listed = ", ".join(sorted(classes))
        raise ModelError(
            f"{source}: measured on device class '{profile.device_class}', and the cluster has {listed}: profile "
            "this scenario, or name its device class so"
        )
    sizes = sorted({times.samples for times in profile.times})
    if len(sizes) == 1 and set(samples) != set(sizes):
        asked = ", ".join(map(str, sorted(samples)))
        raise ModelError(
            f"{source}: measured with {counted(sizes[0], 'sample')} a micro-batch, the training has {asked}: "
            f"choose the measured size, or profile again with --samples {asked.replace(' ', '')}"
        )
    curves: dict[str, list[Measured]] = {name: [] for name in graph}
    for times in profile.times:
        for row in times.layers:
            one = Measured(profile.device_class, times.samples, row.forward_ns, row.backward_ns)
            curves.setdefault(row.name, []).append(one)
    for name, rows in curves.items():
        if name not in graph or len(rows) < len(sizes):
            raise ModelError(
                f"{source}: layer {name} is in the {'model' if name in graph else 'profile'} only: the profile is "
                f"that of another model ({profile.model})"
            )
    return measured_graph(graph, curves, sizes, samples, source)


def measured_graph(
    graph: nx.DiGraph,
    curves: Mapping[str, Sequence[Measured]],
    sizes: Sequence[int],
    samples: Collection[int],
    source: str,
) -> nx.DiGraph:
    """Return a layer graph with measured times by layer, and a note on micro-batches of other ``sizes``."""
    timed = graph.copy()
    for name, rows in curves.items():
        timed.nodes[name]["layer"] = replace(graph.nodes[name]["layer"], measured=tuple(rows))
    said = _extrapolated(sizes, samples)
    if said:
        timed.graph["notes"] = (*timed.graph.get("notes", ()), f"{source}: measured with micro-batches of {said}")
    return timed


def _extrapolated(sizes: Sequence[int], samples: Collection[int]) -> str:
    """Say which times are beyond what was measured; nothing where none is."""
    outside = [str(one) for one in sorted(samples) if not sizes[0] <= one <= sizes[-1]]
    if outside:
        many, what = f"{sizes[0]} to {counted(sizes[-1], 'sample')}", f", so times of {', '.join(outside)}"
    elif len(sizes) == 1:
        many, what = f"{counted(sizes[0], 'sample')} alone", ", so times of devices that share a stage"
    else:
        return ""
    return f"{many}{what} are extrapolated, in proportion"


def machine_name() -> str:
    """Return what the processor of this machine calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine() or "unknown"
