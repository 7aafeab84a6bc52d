"""A model that does one thing on torch's fake tensors, as in an export, and another one elsewhere."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from tests.ingest.torch.tiny_models import Calls


def asking() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return a model whose second layer stands aside on fake tensors."""

    def forward(m: Calls, x: torch.Tensor) -> torch.Tensor:
        return m.a(x) if isinstance(x, FakeTensor) else m.b(m.a(x))

    return Calls(forward, a=nn.Linear(8, 8), b=nn.Linear(8, 8)), (torch.empty(2, 8),)
