"""Every reader of the project with valid input to spoil, and what a command does with what it has read.

Those of the literature are in ``papers``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.checks.fuzzing import samples
from benchmarks.checks.fuzzing.samples import as_json
from pipecut.formulation.certificates.check import verify
from pipecut.formulation.certificates.labels import CertificateError
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.errors import GraphFileError
from pipecut.ingest.graphs.foreign import FormatError
from pipecut.ingest.graphs.graph_file import graph_document, read_graph
from pipecut.ingest.mistakes import ScenarioError
from pipecut.ingest.plans.certificate_file import CertificateFileError, read_certificate, write_certificate
from pipecut.ingest.plans.plan_file import PlanError, read_plan, write_plan
from pipecut.ingest.plans.schedule_file import ScheduleFileError, read_schedule
from pipecut.ingest.scenario.load import load_scenario
from pipecut.ingest.torch.cache import load_trace, store_trace
from pipecut.solvers.certifying import certify
from pipecut.solvers.reference import line_dp

Read = Callable[[Path], object]


class RefusedError(Exception):
    """What was read is no valid problem, and a command would say so: refused in a later step."""


class DefectError(Exception):
    """A reader believed what it must not believe."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader: its samples, how they may be spoilt (json, yaml, lines), and the one error that it raises."""

    name: str
    samples: tuple[bytes, ...]
    structure: str
    error: type[Exception]
    read: Read
    ending: str = ".json"


@dataclass(frozen=True, slots=True)
class Ground:
    """A folder with the valid files of one small problem, and the problem."""

    folder: Path
    instance: Instance
    scenario: Path
    optimum: int


def ground(folder: Path) -> Ground:
    """Write scenario and layer graph into a folder, and plan, certificate and trace cache from them."""
    scenario = folder / "scenario.yaml"
    scenario.write_text(samples.GROUND, encoding="utf-8")
    (folder / "graph.json").write_bytes(as_json(samples.graph()))
    (folder / "net.py").write_text("def build(): ...\n", encoding="utf-8")
    instance = load_scenario(scenario).load()
    found = line_dp.solve(instance)
    if found.plan is None or found.objective is None:
        raise ValueError("the sample scenario has no plan")
    write_plan(folder / "plan.json", instance, found.plan, evaluate(instance, found.plan))
    write_certificate(folder / "proof.json", instance, certify(instance, found.plan, found.objective))
    os.environ["PIPECUT_CACHE"] = str(folder / "cache")
    return Ground(folder, instance, scenario, found.objective)


def readers(on: Ground) -> tuple[Reader, ...]:
    """Return all readers, over the files of a ground."""
    proof = (on.folder / "proof.json").read_bytes()
    plans = ((on.folder / "plan.json").read_bytes(), as_json(samples.PLAN))
    scenario = samples.SCENARIO.encode()
    lines = "\n".join(samples.OVERRIDES).encode()
    cached = _cached(on)
    return (
        Reader("scenario", (scenario,), "yaml", ScenarioError, partial(_scenario, on), ".yaml"),
        Reader("overrides", (lines,), "lines", ScenarioError, partial(_overrides, on), ".txt"),
        Reader("layer graph", (as_json(samples.graph()),), "json", GraphFileError, partial(_graph, on)),
        Reader("plan", plans, "json", PlanError, partial(_plan, on)),
        Reader("certificate", (proof,), "json", CertificateFileError, partial(_certificate, on)),
        Reader("schedule", (samples.SCHEDULE.encode(),), "lines", ScheduleFileError, read_schedule, ".csv"),
        Reader("trace cache", (cached.read_bytes(),), "json", FormatError, partial(_trace, on, cached)),
        *_of_papers(),
    )


def _scenario(on: Ground, path: Path, overrides: Sequence[str] = ()) -> None:
    """Read a scenario and build the problem over the valid layers; no model is imported or read."""
    found = load_scenario(path, overrides)
    _built(lambda: found.instance(read_graph(on.folder / "graph.json")))


def _overrides(on: Ground, path: Path) -> None:
    """Give the lines of a file as overrides, as a shell hands them over."""
    words = path.read_bytes().decode("utf-8", "surrogateescape").split("\n")
    _scenario(on, on.scenario, words)


def _built(build: Callable[[], Instance]) -> None:
    try:
        build()
    except ValueError as error:
        raise RefusedError(str(error)) from error


def _graph(on: Ground, path: Path) -> None:
    graph = read_graph(path)
    _built(lambda: load_scenario(on.scenario).instance(graph))


def _plan(on: Ground, path: Path) -> None:
    evaluate(on.instance, read_plan(path, on.instance))


def _certificate(on: Ground, path: Path) -> None:
    certificate = read_certificate(path, on.instance)
    try:
        verify(on.instance, certificate)
    except CertificateError as error:
        raise RefusedError(str(error)) from error
    if certificate.optimal and certificate.objective != on.optimum:
        raise DefectError(f"a proof that {certificate.objective} ns is optimal holds; {on.optimum} ns is")


def _cached(on: Ground) -> Path:
    """Store the trace of a model, and return its entry."""
    origin = on.folder / "net.py"
    if not store_trace("net:build", origin, read_graph(on.folder / "graph.json"), frozenset(sys.modules)):
        raise ValueError("the sample trace cannot be stored")
    return next((on.folder / "cache").rglob("*.json"))


def _trace(on: Ground, entry: Path, path: Path) -> None:
    """Put a spoilt entry into the cache: what comes out is what was traced, or nothing."""
    entry.write_bytes(path.read_bytes())
    graph = load_trace("net:build", on.folder / "net.py")
    if graph is None:
        raise RefusedError("no entry")
    if graph_document(graph) != graph_document(read_graph(on.folder / "graph.json")):
        raise DefectError("a spoilt entry of the trace cache is believed")


def _of_papers() -> tuple[Reader, ...]:
    """Return the readers of the literature, where that is installed."""
    if find_spec("pipecut_literature") is None:
        return ()
    from benchmarks.checks.fuzzing.papers import readers_of_papers

    return readers_of_papers()
