"""Data that a run makes up: like the example, the same for a seed; and the loss that needs no targets."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from pipecut.execution.errors import StagesError
from pipecut.execution.running.data import mean_square, samples_like


def test_samples_are_like_the_example_and_the_same_for_a_seed() -> None:
    example = {"ids": torch.tensor([[3, 5], [5, 9]]), "x": torch.zeros(2, 4, dtype=torch.double), "flag": True}
    made, again, other = (samples_like(example, 7, seed) for seed in (1, 1, 2))
    assert isinstance(made, dict) and isinstance(again, dict) and isinstance(other, dict)
    assert made["ids"].shape == (7, 2) and set(made["ids"].unique().tolist()) <= {3, 5, 9}
    assert made["x"].shape == (7, 4) and made["x"].dtype is torch.double and made["flag"] is True
    assert all(torch.equal(made[name], again[name]) for name in ("ids", "x"))
    assert not torch.equal(made["x"], other["x"])


def test_the_loss_is_the_same_where_no_gradient_is_recorded() -> None:
    outputs = {"a": torch.tensor([1.0, 3.0]), "whole": torch.tensor([7]), "none": None}
    assert mean_square(outputs, None) == 5
    with pytest.raises(StagesError, match="no floating-point tensor"):
        mean_square([torch.tensor([1])], None)
