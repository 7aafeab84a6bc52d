"""Backward passes in two halves: the first leaves the weights alone, both together are one backward pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from pipecut.execution.running.passes import input_gradients

Tensors = tuple[torch.Tensor, ...]

A, B, UNUSED = (nn.Parameter(torch.randn(4, 4, dtype=torch.double)) for _ in range(3))
BIAS = nn.Parameter(torch.randn(4, dtype=torch.double))
WEIGHTS = [A, B, BIAS, UNUSED]

WAYS: dict[str, Callable[[torch.Tensor], Tensors]] = {
    "chain": lambda x: ((x @ A).tanh() @ B + BIAS,),
    "a weight used twice": lambda x: (((x @ A).tanh() @ A + x) @ B,),
    "a bias used twice, two outputs": lambda x: ((x + BIAS).tanh() * BIAS, (x @ A).sum()),
    "weights made from weights": lambda x: (((x @ (A * BIAS)).relu() @ (A * BIAS)),),
    "the input is an output": lambda x: (x, x @ A),
    "a path past the input": lambda x: (x @ A, (B @ B).sum()),
    "nothing to learn": lambda x: (x.tanh(),),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_halves_make_the_whole(way: Callable[[torch.Tensor], Tensors]) -> None:
    x = torch.randn(3, 4, dtype=torch.double, requires_grad=True)
    arriving = [torch.randn_like(one) for one in way(x)]
    torch.autograd.backward(way(x), arriving)
    whole = [_taken(one) for one in (x, *WEIGHTS)]
    later = input_gradients([get_gradient_edge(one) for one in way(x)], arriving, [x], WEIGHTS)
    first = _taken(x)
    assert first is not None and whole[0] is not None
    torch.testing.assert_close(first, whole[0], rtol=1e-14, atol=1e-14)
    alone = way is WAYS["a path past the input"]
    assert alone or [one.grad for one in WEIGHTS] == [None] * len(WEIGHTS)
    later.run()
    for found, wanted in zip((_taken(one) for one in WEIGHTS), whole[1:], strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-14, atol=1e-14)
    assert not later.arrived and not later.leaving


def _taken(tensor: torch.Tensor) -> torch.Tensor | None:
    found, tensor.grad = tensor.grad, None
    return found
