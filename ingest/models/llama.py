"""A decoder-only transformer in the shape of Llama (Touvron et al., arXiv 2302.13971).

Pre-norm blocks with RMSNorm, rotary positions, causal attention through ``scaled_dot_product_attention`` and a
gated perceptron; no dropout, no biases, and an output head with weights of its own. Modules are called as in
Hugging Face's transformers, and everything is in half precision (bfloat16).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_BATCH = 2
_BASE = 10_000.0


class LlamaAttention(nn.Module):
    """Causal self-attention over (batch, sequence, hidden), with positions as rotations of q and k."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(hidden, hidden, bias=False) for _ in range(4)
        )

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """Return the attended values, projected: (batch, sequence, hidden)."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        )
        query, key = (part * cosine + _turned(part) * sine for part in (query, key))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o_proj(attended.transpose(1, 2).flatten(2))


class LlamaMLP(nn.Module):
    """Two products side by side, one the gate of the other, and one back to the width."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the perceptron of x: (batch, sequence, hidden)."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    """Attention and perceptron, each behind an RMSNorm and a shortcut."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.self_attn = LlamaAttention(hidden, heads)
        self.mlp = LlamaMLP(hidden, inner)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """Return x with attention and perceptron added: (batch, sequence, hidden)."""
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Token embeddings, ``layers`` blocks, a last RMSNorm and the output head."""

    def __init__(self, layers: int, hidden: int, heads: int, inner: int, vocabulary: int) -> None:
        super().__init__()
        self.size = hidden // heads
        self.embed_tokens = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(LlamaBlock(hidden, heads, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden)
        self.lm_head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map token numbers (batch, sequence) to scores of the next token (batch, sequence, vocabulary)."""
        x = self.embed_tokens(tokens)
        cosine, sine = self._rotations(tokens.shape[1], x)
        for block in self.layers:
            x = block(x, cosine, sine)
        return self.lm_head(self.norm(x))

    def _rotations(self, sequence: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = torch.arange(0, self.size, 2, device=like.device)
        angles = torch.outer(torch.arange(sequence, device=like.device), _BASE ** (-pairs / self.size))
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(like.dtype), both.sin().to(like.dtype)


def _turned(x: torch.Tensor) -> torch.Tensor:
    """Exchange the halves of each head, the second one with its sign changed."""
    one, two = x.chunk(2, dim=-1)
    return torch.cat((-two, one), dim=-1)


def llama_7b() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return Llama 7B: 6,738,415,616 parameters, and two sequences of 2,048 tokens."""
    module = Llama(layers=32, hidden=4096, heads=32, inner=11008, vocabulary=32000).to(torch.bfloat16)
    return module, (torch.zeros(_BATCH, 2048, dtype=torch.long),)
