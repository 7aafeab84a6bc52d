"""Models that a few processor cores run in seconds, for ``python -m benchmarks.running.closed_loop``."""

from __future__ import annotations

import torch
from torch import nn

from pipecut.ingest.models.gpt import gpt


def gpt2_256() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return GPT-2 small for 256 tokens at once; with all its 1,024 two cores profile it for 20 minutes."""
    return gpt(layers=12, hidden=768, heads=12, vocabulary=50257, sequence=256)
