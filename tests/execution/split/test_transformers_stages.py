"""Models of Hugging Face transformers, split at every cut, where the package is there."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

transformers = pytest.importorskip("transformers")

import torch  # noqa: E402

from pipecut.execution.splitting.stages import ModelProgram  # noqa: E402
from tests.execution.models import Made  # noqa: E402
from tests.execution.split.own_loop import plan_of, split, unlike, unsplit  # noqa: E402

VOCABULARY, WIDTH = 17, 8


def gpt2() -> Made:
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": WIDTH, "vocab_size": VOCABULARY, "n_positions": 8}
    config = transformers.GPT2Config(
        **sizes, use_cache=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config), tokens()


def bert() -> Made:
    config = transformers.BertConfig(
        num_hidden_layers=2,
        hidden_size=WIDTH,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=VOCABULARY,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForMaskedLM(config), tokens()


def llama() -> Made:
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        hidden_size=WIDTH,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=VOCABULARY,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config), tokens()


def tokens() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(0, VOCABULARY, (2, 5))}


@pytest.mark.slow
@pytest.mark.parametrize("make", [gpt2, bert, llama])
def test_every_cut_gives_the_gradients_of_the_whole_model(make: Callable[[], Made]) -> None:
    torch.manual_seed(1)
    model, inputs = make()
    expected = unsplit(model, inputs)
    program = ModelProgram.of(model, inputs)
    total = len(program.layers)
    chance = random.Random(total)  # noqa: S311 (no secrets)
    plans = [[cut] for cut in range(1, total)]
    plans += [sorted(chance.sample(range(1, total), 3)) for _ in range(10)]
    for cuts in plans:
        stages = program.split(plan_of(cuts, total))
        assert unlike(expected, split(stages, model, inputs)) == [], cuts
