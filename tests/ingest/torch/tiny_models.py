"""Tiny models for the tests of tracing, written as functions over a few parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import networkx as nx
import torch
from torch import nn
from torch.nn import functional

from pipecut.formulation.problem.layers import Layer, layers_of
from pipecut.ingest.torch.trace import trace

ANY = (0, 1, 2)
Function = Callable[..., torch.Tensor]
Part = Callable[[], nn.Module | nn.Parameter]


class Calls(nn.Module):
    """Runs a function on its parts: ``Calls(lambda m, x: m.a(x), a=nn.Linear(2, 2))``."""

    def __init__(self, function: Function, **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(self, *inputs)


def traced(function: Function, *shapes: Sequence[int], **parts: Part) -> nx.DiGraph:
    with torch.device("meta"):
        module = Calls(function, **{name: part() for name, part in parts.items()})
        inputs = tuple(torch.empty(shape) for shape in shapes)
    return trace(module, inputs, "model")


def only(graph: nx.DiGraph) -> Layer:
    (layer,) = layers_of(graph)
    return layer


def by_name(graph: nx.DiGraph) -> dict[str, Layer]:
    return dict(graph.nodes(data="layer"))


def attend(m: Calls, x: torch.Tensor) -> torch.Tensor:
    batch, tokens, _ = x.shape
    query, key, value = (part(x).view(batch, tokens, 2, 4).transpose(1, 2) for part in (m.q, m.k, m.v))
    out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return m.o(out.transpose(1, 2).reshape(batch, tokens, 8))


def linear8() -> nn.Module:
    return nn.Linear(8, 8)


def explicit_attention(m: Calls, x: torch.Tensor) -> torch.Tensor:
    query, key, value = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in m.qkv(x).chunk(3, -1))
    weights = (query @ key.transpose(-2, -1) / 2).softmax(-1)
    return (weights @ value).transpose(1, 2).flatten(2)
