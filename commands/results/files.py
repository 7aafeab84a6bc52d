"""``pipecut.read_...`` and ``pipecut.write_...``: files that need more than their format's own module."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from formulation.evaluate import evaluate
from formulation.problem.instance import Instance
from formulation.problem.layers import LayerGraph
from formulation.problem.plan import Plan
from formulation.schedules.table import PipelineSchedule
from ingest.graphs.graph_file import read_graph, write_graph
from ingest.plans import plan_file, schedule_file


def read_layers(path: str | Path) -> LayerGraph:
    """Read a graph file, as :func:`write_layers` and ``pipecut trace`` write it. Raises ValueError."""
    return LayerGraph.of(read_graph(Path(path)))


def write_layers(path: str | Path, layers: LayerGraph) -> None:
    """Write the layers of a model as a graph file."""
    write_graph(layers.graph(), Path(path))


def write_plan(path: str | Path, instance: Instance, plan: Plan) -> None:
    """Write a plan file, with what each stage costs."""
    plan_file.write_plan(path, instance, plan, evaluate(instance, plan))


def read_schedule(path: str | Path) -> PipelineSchedule:
    """Read a schedule file; the schedule is called as the file is. Raises ValueError for mistakes in it."""
    return replace(schedule_file.read_schedule(path), name=Path(path).name)
