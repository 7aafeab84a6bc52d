"""Models of the sizes that people train, for ``python -m benchmarks.proof.choices``; nothing is downloaded.

Sizes are those of the published configurations: Llama 2 70B (arXiv 2307.09288), Mixtral 8x7B (arXiv 2401.04088),
and LLaVA-1.5 7B (arXiv 2310.03744): the vision tower of CLIP ViT-L/14 for images of 336 pixels, a projector of two
layers, and Llama 2 7B. Llama-7B itself is ``ingest.models.llama:llama_7b``.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

transformers: Any = importlib.import_module("transformers")  # an extra, pipecut[hf]: not everybody has it

SAMPLES = 2
"""Of the example inputs."""
TEXT = 1472
"""Tokens of text beside the 576 of an image: sequences of 2,048."""


def llama_70b() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return Llama 2 70B and sequences of 4,096 tokens."""
    config = transformers.LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=32000,
        max_position_embeddings=4096,
        use_cache=False,
        dtype=torch.bfloat16,
    )
    return _made(transformers.LlamaForCausalLM, config), {"input_ids": _tokens(4096)}


def mixtral() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return Mixtral 8x7B, of whose eight experts each token passes two, and sequences of 4,096 tokens."""
    config = transformers.MixtralConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        num_local_experts=8,
        num_experts_per_tok=2,
        vocab_size=32000,
        sliding_window=None,
        use_cache=False,
        dtype=torch.bfloat16,
    )
    return _made(transformers.MixtralForCausalLM, config), {"input_ids": _tokens(4096)}


class VisionLanguage(nn.Module):
    """A vision tower, whose patches a projector puts before the words of a language model."""

    def __init__(self, vision: Any, projector: nn.Module, language: Any) -> None:  # noqa: ANN401
        super().__init__()
        self.vision, self.projector, self.language = vision, projector, language

    def forward(self, pixel_values: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the scores of all words for every position."""
        patches = self.vision(pixel_values).last_hidden_state[:, 1:]
        words = self.language.get_input_embeddings()(input_ids)
        together = torch.cat((self.projector(patches), words), dim=1)
        return self.language(inputs_embeds=together).logits


def vision_language() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return a model of the shape of LLaVA-1.5 7B, an image of 336 pixels and 1,472 tokens a sample."""
    vision = transformers.CLIPVisionConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
        image_size=336,
        patch_size=14,
        dtype=torch.bfloat16,
    )
    language = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        vocab_size=32000,
        use_cache=False,
        dtype=torch.bfloat16,
    )
    projector = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 4096)).to(torch.bfloat16)
    parts = _made(transformers.CLIPVisionModel, vision), projector, _made(transformers.LlamaForCausalLM, language)
    pixels = torch.zeros((SAMPLES, 3, 336, 336), dtype=torch.bfloat16)
    return VisionLanguage(*parts), {"pixel_values": pixels, "input_ids": _tokens(TEXT)}


def _made(kind: Any, config: Any) -> Any:  # noqa: ANN401 (classes of a library without types)
    return kind._from_config(config, dtype=config.dtype)


def _tokens(number: int) -> torch.Tensor:
    return torch.zeros((SAMPLES, number), dtype=torch.long)
