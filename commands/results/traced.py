"""``pipecut.trace``: a torch module as layers that cannot change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from formulation.problem.layers import LayerGraph
from ingest.graphs.cut_places import Cuts, cut_at
from ingest.graphs.unpriced import told_of_unpriced
from ingest.operators.costs import Operator
from ingest.torch.trace import trace as traced_graph

if TYPE_CHECKING:
    from torch import nn


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
