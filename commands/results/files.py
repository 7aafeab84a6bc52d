"""``pipecut.read_...`` and ``pipecut.write_...``: files that need more than their format's own module.

``pipecut.certify``: a certificate for a plan, whose price the evaluator says.

``pipecut.trace``: a torch module as layers that cannot change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipecut.formulation.certificates.check import Certificate
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import LayerGraph
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.schedules.table import PipelineSchedule
from pipecut.ingest.errors import told_of_unpriced
from pipecut.ingest.graphs.cut_places import Cuts, cut_at
from pipecut.ingest.graphs.graph_file import read_graph, write_graph
from pipecut.ingest.operators.costs import Operator
from pipecut.ingest.plans import plan_file, schedule_file
from pipecut.ingest.torch.trace import trace as traced_graph
from pipecut.solvers.certifying import certify as certificate_of

if TYPE_CHECKING:
    from torch import nn


def certify(instance: Instance, plan: Plan) -> Certificate:
    """Return a proof of how good a plan is, which ``pipecut.verify`` checks without a solver.

    Raises ValueError for a plan without a price, and where no certificate could prove anything of the instance.
    """
    found = evaluate(instance, plan)
    if found.objective is None:
        raise ValueError("; ".join(broken.message for broken in found.violations))
    return certificate_of(instance, plan, found.objective)


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


def trace(
    module: nn.Module,
    inputs: tuple[Any, ...] | Mapping[str, Any],
    name: str,
    cuts: Cuts | None = None,
    operators: Mapping[str, str | Operator] | None = None,
) -> LayerGraph:
    """Run a torch module once on example inputs and return its layers. Raises ValueError if that fails.

    ``cuts`` says where stages may start, as ``model.cuts`` of a scenario does: between the module's blocks without
    it. ``operators`` are rules for operators without a formula, or the names of known ones that count the same.
    """
    graph = cut_at(traced_graph(module, inputs, name, operators), cuts)
    return LayerGraph.of(told_of_unpriced(graph))
