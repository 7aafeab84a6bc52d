"""Models split at every cut, in one process: outputs, gradients and buffers equal to the last bit."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from pipecut.execution.splitting.stages import ModelProgram
from tests.execution.models import MODELS, Made
from tests.execution.split.own_loop import plan_of, split, unlike, unsplit


@pytest.mark.few("tied_gpt", "batch_norm", "dropout", "masks", "attention", "called_twice")
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_every_cut_gives_the_gradients_of_the_whole_model(make: Callable[[], Made]) -> None:
    torch.manual_seed(1)
    model, inputs = make()
    expected = unsplit(model, inputs)
    start = copy.deepcopy(model.state_dict())
    unsaved = {name: one.clone() for name, one in model.named_buffers() if name not in start}
    program = ModelProgram.of(model, inputs)
    total = len(program.layers)
    chance = random.Random(total)  # noqa: S311 (no secrets)
    plans = [[cut] for cut in range(1, total)]
    plans += [sorted(chance.sample(range(1, total), min(3, total - 1))) for _ in range(5)]
    plans += [list(range(1, total))]
    for cuts in plans:
        model.load_state_dict(start)
        for name, one in unsaved.items():
            model.get_buffer(name).copy_(one)
        stages = program.split(plan_of(cuts, total))
        assert unlike(expected, split(stages, model, inputs)) == [], cuts
