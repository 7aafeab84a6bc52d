"""Times of layers from a table of anybody's: a CSV file with a layer, a forward and a backward time in each row.

The first row names the columns: ``layer`` (or ``name``, ``module``), ``forward`` and ``backward`` with the unit
behind the name (``forward_ms``, ``backward (us)``) or behind each value (``1.2 ms``), and where it is needed
``samples`` of the micro-batch and ``device``, the class that was measured. A row may name a module: its time is
divided over its layers by their multiply-accumulates. Layers that multiply nothing may be left out (with a note).
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import networkx as nx

from pipecut.formulation.predictor.curves import Measured
from pipecut.ingest.files import read_limited
from pipecut.ingest.graphs.foreign import FormatError, quoted
from pipecut.ingest.graphs.graph_file import SIZE_LIMIT
from pipecut.ingest.graphs.layer_profile import measured_graph
from pipecut.ingest.text.quantities import duration

UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
NAMES = {"layer": "layer", "name": "layer", "module": "layer", "forward": "forward", "fwd": "forward"}
NAMES |= {"backward": "backward", "bwd": "backward", "samples": "samples", "batch": "samples", "device": "device"}
_HEAD = re.compile(r"([a-z]+)(?:[_ ]*(?:time)?[_ ]*[(\[]?(ns|us|µs|ms|s)[)\]]?)?")
_EXAMPLE = "layer,forward_ms,backward_ms"


@dataclass(slots=True)
class _Table:
    """A table being read: what its columns are, and what is wrong with it."""

    path: Path
    classes: Collection[str]
    samples: Collection[int]
    columns: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    times: dict[tuple[str, int], dict[str, tuple[int, int]]] = field(default_factory=dict)

    def head(self, row: list[str]) -> None:
        """Read the names of the columns, each with its unit in ns (None: values have their own)."""
        for at, text in enumerate(row):
            found = _HEAD.fullmatch(text.strip().casefold())
            if found and (name := NAMES.get(found[1])) is not None and name not in self.columns:
                self.columns[name] = (at, UNITS.get(found[2] or ""))
        lacking = [one for one in ("layer", "forward", "backward") if one not in self.columns]
        lacking += ["device"] if "device" not in self.columns and len(self.classes) > 1 else []
        lacking += ["samples"] if "samples" not in self.columns and len(self.samples) > 1 else []
        if lacking:
            listed = " and ".join(f"'{one}'" for one in lacking)
            got = ",".join(row)[:80]
            self.problems.append(f":1: no column {listed}; expected columns like {_EXAMPLE}, got {got}")

    def row(self, line: int, row: list[str]) -> None:
        """Read one row of times."""
        texts = {name: row[at].strip() if at < len(row) else "" for name, (at, _) in self.columns.items()}
        try:
            samples = int(texts["samples"]) if "samples" in texts else next(iter(self.samples))
            device = texts.get("device") or next(iter(self.classes))
            both = [self._ns(key, texts[key]) for key in ("forward", "backward")]
        except ValueError as error:
            self.problems.append(f":{line}: {error}")
            return
        here = self.times.setdefault((device, samples), {})
        if not texts["layer"]:
            self.problems.append(f":{line}: no layer is named")
        if texts["layer"] in here:
            self.problems.append(f":{line}: a second row of {quoted(texts['layer'])}")
        here[texts["layer"]] = (both[0], both[1])

    def _ns(self, key: str, text: str) -> int:
        """Return a time in ns, rounded up. Raises ValueError for what is none."""
        unit = self.columns[key][1]
        if unit is None:
            return duration(text)
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?", text):
            raise ValueError(f"{key}: expected a number of 0 or more, got {quoted(text)}")
        return math.ceil(Fraction(text) * unit)


def with_table(graph: nx.DiGraph, path: Path, classes: Collection[str], samples: Collection[int]) -> nx.DiGraph:
    """Return a layer graph whose layers take the times of a table on the device classes that it names.

    ``classes`` are those of the cluster and ``samples`` the sizes of micro-batches that may be: where there is one
    alone, the table need not say it. Raises FormatError with every problem, and its line.
    """
    try:
        text = read_limited(path, SIZE_LIMIT)
        signs = [one for one in ",;\t" if one in text.partition("\n")[0]]
        rows = list(csv.reader(io.StringIO(text), delimiter=(*signs, ",")[0]))
    except (OSError, ValueError, csv.Error) as error:
        raise FormatError(path, [f": cannot be read: {error}"]) from error
    table = _Table(path, classes, samples)
    table.head(rows[0] if rows else [])
    for line, row in enumerate(rows[1:] if not table.problems else [], start=2):
        if any(text.strip() for text in row):
            table.row(line, row)
    if not (table.times or table.problems):
        table.problems.append(":2: no row of times below the names of the columns")
    unknown, has = sorted({device for device, _ in table.times} - set(classes)), ", ".join(classes)
    table.problems += [f": device '{one}' is not in the cluster, which has {has}" for one in unknown]
    curves: dict[str, list[Measured]] = {name: [] for name in graph}
    free = dict[str, None]()
    for (device, size), times in table.times.items():
        for name, (forward, backward) in _by_layer(graph, times, table.problems, free).items():
            curves[name].append(Measured(device, size, forward, backward))
    if table.problems:
        raise FormatError(path, table.problems)
    timed = measured_graph(graph, curves, sorted({size for _, size in table.times}), samples, str(path))
    if free:
        more = f" and {len(free) - 1} more" if len(free) > 1 else ""
        note = f"{path}: no row has {next(iter(free))}{more}, which take no time"
        timed.graph["notes"] = (*timed.graph.get("notes", ()), note)
    return timed


def _by_layer(
    graph: nx.DiGraph, times: Mapping[str, tuple[int, int]], problems: list[str], free: dict[str, None]
) -> dict[str, tuple[int, int]]:
    """Return times of single layers; add to the problems what is no layer, or in two rows, or lacks one.

    ``free`` gets the layers that multiply nothing and have no row.
    """
    order, found = list(graph), dict[str, tuple[int, int]]()
    place = {name: at for at, name in enumerate(order)}
    works = {name: row["layer"].macs for name, row in graph.nodes(data=True)}
    calls = graph.graph.get("modules", ())
    modules = {call.name: order[place[call.first] : place[call.last] + 1] for call in calls}
    for name, row in times.items():
        layers = [name] if name in place else modules.get(name)
        if layers is None:
            some = ", ".join(order[:3])
            problems.append(f": {quoted(name)} is no layer or module of the model, which has {some}, ...")
            continue
        twice = next((one for one in layers if one in found), None)
        if twice is not None:
            problems.append(f": {quoted(name)} has {twice}, whose time another row has already")
        own = [works[one] for one in layers]
        found |= _divided(layers, own if any(own) else [1] * len(layers), row)
    lacking = [name for name in order if name not in found and works[name]]
    if lacking and not problems:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        problems.append(f": no row has layer {lacking[0]}{more}; name each layer, or the module that it is in")
    free.update((name, None) for name in order if name not in found)
    return dict.fromkeys(order, (0, 0)) | found


def _divided(layers: list[str], works: list[int], row: tuple[int, int]) -> dict[str, tuple[int, int]]:
    """Divide times over layers in proportion to their work; the parts add up to the whole."""
    found, done, before = dict[str, tuple[int, int]](), 0, (0, 0)
    for name, work in zip(layers, works, strict=True):
        done += work
        until = tuple(one * done // sum(works) for one in row)
        found[name] = (until[0] - before[0], until[1] - before[1])
        before = (until[0], until[1])
    return found
