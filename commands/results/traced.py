"""``pipecut.trace``: a torch module as layers that cannot change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from formulation.problem.layers import LayerGraph
from ingest.torch.trace import trace as traced_graph

if TYPE_CHECKING:
    from torch import nn

__all__ = ["trace"]


def trace(module: nn.Module, inputs: tuple[Any, ...] | Mapping[str, Any], name: str) -> LayerGraph:
    """Run a torch module once on example inputs and return its layers. Raises ValueError if that fails."""
    return LayerGraph.of(traced_graph(module, inputs, name))
