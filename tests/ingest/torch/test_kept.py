"""What whole models keep for the backward pass, against what autograd saves when they really run: within 3 %."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipecut.formulation.problem.layers import layers_of
from pipecut.ingest.models.resnet import resnet34, resnet50
from pipecut.ingest.models.vgg import vgg13
from pipecut.ingest.torch.trace import trace
from tests.ingest.operators.test_operator_stash import kept_by_autograd

BATCH, SEQUENCE, WORDS, WIDTH = 2, 32, 128, 64
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PLACES = {"max_position_embeddings": SEQUENCE}
GROUPED = {"num_key_value_heads": 2}
IMAGE = {"image_size": 32, "patch_size": 4, "num_labels": 10}
LANGUAGE: dict[str, tuple[str, str, Mapping[str, object]]] = {
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            **{"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": SEQUENCE},
            **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        },
    ),
    "llama": ("LlamaConfig", "LlamaForCausalLM", SMALL | PLACES),
    "llama with grouped queries": ("LlamaConfig", "LlamaForCausalLM", SMALL | PLACES | GROUPED),
    "llama with one key": ("LlamaConfig", "LlamaForCausalLM", SMALL | PLACES | {"num_key_value_heads": 1}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", SMALL | PLACES | GROUPED | {"head_dim": 16}),
    "mistral": ("MistralConfig", "MistralForCausalLM", SMALL | PLACES | GROUPED),
    "bert": ("BertConfig", "BertForMaskedLM", SMALL | PLACES | QUIET),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", SMALL | QUIET | {"max_position_embeddings": 2 * SEQUENCE}),
    "albert": ("AlbertConfig", "AlbertForMaskedLM", SMALL | PLACES | QUIET | {"embedding_size": 32}),
    "gpt-neox": (
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        SMALL | PLACES | {"attention_dropout": 0.0, "hidden_dropout": 0.0},
    ),
    "phi": ("PhiConfig", "PhiForCausalLM", SMALL | PLACES | {"resid_pdrop": 0.0}),
    "falcon": (
        "FalconConfig",
        "FalconForCausalLM",
        {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4},
    ),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", SMALL | PLACES | GROUPED | {"head_dim": 16}),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        SMALL | PLACES | GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
}
UNFUSED: dict[str, tuple[str, str, Mapping[str, object]]] = {
    "bloom": (
        "BloomConfig",
        "BloomForCausalLM",
        {
            **{"vocab_size": WORDS, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4},
            **{"hidden_dropout": 0.0, "attention_dropout": 0.0},
        },
    ),
    "mamba": (
        "MambaConfig",
        "MambaForCausalLM",
        {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 2, "state_size": 4},
    ),
}
"""Models with one implementation: Bloom's GELU is a function with a gradient of its own."""
PICTURES: dict[str, tuple[str, str, Mapping[str, object]]] = {
    "vit": ("ViTConfig", "ViTForImageClassification", {**SMALL, **QUIET, **IMAGE}),
    "deit": ("DeiTConfig", "DeiTForImageClassification", {**SMALL, **QUIET, **IMAGE}),
    "convnext": (
        "ConvNextConfig",
        "ConvNextForImageClassification",
        {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]},
    ),
    "resnet": (
        "ResNetConfig",
        "ResNetForImageClassification",
        {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]},
    ),
    "regnet": (
        "RegNetConfig",
        "RegNetForImageClassification",
        {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "groups_width": 16},
    ),
    "mobilenet": ("MobileNetV2Config", "MobileNetV2ForImageClassification", {"classifier_dropout_prob": 0.0}),
}


class Wrapped(nn.Module):
    """A model of Hugging Face that returns its first output, as a training program uses it."""

    def __init__(self, family: tuple[str, str, Mapping[str, object]], attention: str | None = None) -> None:
        transformers = pytest.importorskip("transformers")
        super().__init__()
        config = getattr(transformers, family[0])(**family[2])
        config.use_cache = False
        if attention is not None:
            config._attn_implementation = attention
        self.inner = getattr(transformers, family[1])(config)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.inner(given, return_dict=False)[0]


class Block(nn.Module):
    """A pre-norm block without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.back = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256), nn.Linear(256, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.back(functional.gelu(self.wide(self.norm(x))))


class Checkpointed(nn.Module):
    """Blocks of which each keeps its input alone."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.reentrant = nn.Linear(WIDTH, WIDTH), reentrant
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def hold(module: nn.Module, inputs: torch.Tensor) -> None:
    """Compare within 3 %."""
    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    real = kept_by_autograd(module, inputs)
    rules = BATCH * sum(layer.stash_bytes for layer in layers_of(trace(module, (inputs,), "model")))
    assert rules == pytest.approx(real, rel=0.03)


def words() -> torch.Tensor:
    return torch.randint(0, WORDS, (BATCH, SEQUENCE))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", [name for name in LANGUAGE if name != "mixtral"])
def test_language_models_keep_what_autograd_saves(name: str, attention: str) -> None:
    hold(Wrapped(LANGUAGE[name], attention), words())


@pytest.mark.parametrize("name", UNFUSED)
def test_models_with_one_implementation_keep_what_autograd_saves(name: str) -> None:
    hold(Wrapped(UNFUSED[name]), words())


class TwoKept(torch.autograd.Function):
    """Keeps what it is given and what it returns, and nothing of what it computes on the way."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(torch.exp(x * x)) * 3
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class SetUpLater(torch.autograd.Function):
    """A product whose context is set up apart, with its weight among what it keeps."""

    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ weight.t())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight, _ = ctx.saved_tensors
        return gradients[0] @ weight, gradients[0].flatten(0, 1).t() @ x.flatten(0, 1)


class OwnGradients(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.then, self.last = nn.Linear(WIDTH, 96), nn.Linear(96, 80, bias=False), nn.Linear(80, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(SetUpLater.apply(TwoKept.apply(self.first(x)), self.then.weight))


def test_a_function_with_a_gradient_of_its_own_keeps_what_it_says() -> None:
    hold(OwnGradients(), torch.randn(BATCH, SEQUENCE, WIDTH))


def test_a_mixture_of_experts_keeps_what_autograd_saves() -> None:
    hold(Wrapped(LANGUAGE["mixtral"], "sdpa"), words())


@pytest.mark.parametrize("name", PICTURES)
def test_image_models_keep_what_autograd_saves(name: str) -> None:
    side = 32 if name in ("vit", "deit") else 96
    hold(Wrapped(PICTURES[name]), torch.rand(BATCH, 3, side, side))


@pytest.mark.slow
@pytest.mark.parametrize("build", [resnet34, resnet50, vgg13], ids=lambda build: build.__name__)
def test_our_own_networks_keep_what_autograd_saves(build: Callable[[], tuple[nn.Module, object]]) -> None:
    module, _ = build()
    hold(module, torch.rand(BATCH, 3, 224, 224))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks_keep_their_inputs_alone(reentrant: bool) -> None:
    module, inputs = Checkpointed(reentrant), torch.rand(BATCH, SEQUENCE, WIDTH)
    kept = [layer.stash_bytes for layer in layers_of(trace(module, (inputs,), "model"))]
    assert sum(kept) == 5 * 4 * SEQUENCE * WIDTH
    assert kept_by_autograd(module, inputs) == BATCH * sum(kept)


def test_checkpoints_of_an_export_are_marked_while_it_lasts_only() -> None:
    import torch.utils.checkpoint as room

    before = (room._checkpoint_without_reentrant_generator, room.CheckpointFunction)
    trace(Checkpointed(False), (torch.rand(BATCH, 2, WIDTH),), "model")
    assert (room._checkpoint_without_reentrant_generator, room.CheckpointFunction) == before


def test_frozen_layers_below_the_first_trained_one_have_no_backward_pass() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 8))
    module[0].requires_grad_(False)
    module[3].requires_grad_(False)
    rows = list(layers_of(trace(module, (torch.rand(BATCH, 8),), "model")))
    assert [row.backward for row in rows] == [False, False, True, True]
    assert [row.trained_bytes for row in rows] == [0, 0, 4 * (64 + 8), 0]
    assert [row.stash_bytes for row in rows] == [0, 0, 32, 0]
