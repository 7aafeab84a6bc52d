"""A decoder-only transformer in the shape of GPT-2 and GPT-3 (Brown et al., arXiv 2005.14165).

Pre-norm blocks, learned positions, GELU, causal attention through ``scaled_dot_product_attention``; no dropout.
The output head has weights of its own: in a pipeline the first and the last stage each hold a copy anyway, so
the parameters exceed the published count (which ties the two) by ``vocabulary * hidden``.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_BATCH = 2


class Attention(nn.Module):
    """Causal self-attention over (batch, sequence, hidden), with one fused projection to q, k and v."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.projection = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the attended values, projected: (batch, sequence, hidden)."""
        query, key, value = (self._per_head(part) for part in self.qkv(x).chunk(3, dim=-1))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(attended.transpose(1, 2).flatten(2))

    def _per_head(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """Attention and a two-layer perceptron of four times the width, each behind a LayerNorm and a shortcut."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.norm2 = nn.LayerNorm(hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x with attention and perceptron added: (batch, sequence, hidden)."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Token and position embeddings, ``layers`` blocks, a last LayerNorm and the output head."""

    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int, sequence: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(sequence, hidden)
        self.blocks = nn.Sequential(*(Block(hidden, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map token numbers (batch, sequence) to scores of the next token (batch, sequence, vocabulary)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        return self.head(self.norm(self.blocks(x)))


def gpt(
    layers: int, hidden: int, heads: int, vocabulary: int, sequence: int
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a transformer and a batch of two sequences of token numbers.

    Raises ValueError when ``hidden`` does not divide among the ``heads``.
    """
    if hidden % heads:
        raise ValueError(f"hidden {hidden} does not divide among {heads} heads")
    module = GPT(layers, hidden, heads, vocabulary, sequence)
    return module, (torch.zeros(_BATCH, sequence, dtype=torch.long),)


def gpt2_small() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return GPT-2 small: 163,037,184 parameters, of which 38,597,376 are the untied head's."""
    return gpt(layers=12, hidden=768, heads=12, vocabulary=50257, sequence=1024)


def gpt3_175b() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return GPT-3 175B: 96 blocks of width 12,288 with 96 heads, sequences of 2,048 tokens."""
    return gpt(layers=96, hidden=12288, heads=96, vocabulary=50257, sequence=2048)
