"""Models that scenarios name instead of a layer graph: a function, an exported program, a configuration."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

BUILD = "benchmarks.checks.drawing.models:perceptron"
EXPORTED, CONFIGURATION = "model.pt2", "config.json"
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 11,
    "max_position_embeddings": 16,
}


def perceptron() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return two products with an activation between them, and a sample."""
    import torch
    from torch import nn

    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), (torch.ones(1, 4),)


def write_model(source: str, folder: Path) -> None:
    """Write what a source needs beside the scenario."""
    if source == "exported":
        (folder / EXPORTED).write_bytes(_exported())
    elif source == "transformers":
        (folder / CONFIGURATION).write_text(json.dumps(LLAMA), encoding="utf-8")


@functools.cache
def _exported() -> bytes:
    import io

    import torch

    module, sample = perceptron()
    file = io.BytesIO()
    torch.export.save(torch.export.export(module.train(), sample, strict=False), file)
    return file.getvalue()
