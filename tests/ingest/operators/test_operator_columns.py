"""Columns: where a cut by columns may run, checked against index arithmetic and against real gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from pipecut.ingest.operators.columns import Columns, reshaped, whole
from pipecut.ingest.operators.costs import OPERATORS
from pipecut.ingest.torch.record import record

Function = Callable[[torch.Tensor], torch.Tensor]


def owner(columns: Columns, shape: tuple[int, ...]) -> np.ndarray:
    """The column that every element of a tensor belongs to."""
    index = np.indices(shape)[columns.dimension]
    return (index // columns.minor) % columns.count


def factorings(number: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes with a given number of elements."""
    divisors = [divisor for divisor in range(1, number + 1) if number % divisor == 0]
    return (
        st.lists(st.sampled_from(divisors), min_size=1, max_size=4)
        .filter(lambda lengths: number % math.prod(lengths) == 0)
        .map(lambda lengths: (*lengths, number // math.prod(lengths)))
    )


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    number = draw(st.sampled_from([12, 16, 24, 36, 60]))
    old, new = draw(factorings(number)), draw(factorings(number))
    return old, new, draw(st.integers(0, len(old) - 1))


@given(reshapes())
def test_columns_survive_a_reshape_as_whole_blocks(case: tuple[tuple[int, ...], tuple[int, ...], int]) -> None:
    old, new, dimension = case
    before = Columns(dimension, 1, old[dimension])
    after = reshaped(before, old, new)
    if after is None:
        return
    assert before.count % after.count == 0
    block = before.count // after.count
    assert np.array_equal(owner(before, old).ravel() // block, owner(after, new).ravel())


@given(reshapes())
def test_a_reshape_and_back_restores_columns_that_kept_their_number(
    case: tuple[tuple[int, ...], tuple[int, ...], int],
) -> None:
    old, new, dimension = case
    before = Columns(dimension, 1, old[dimension])
    after = reshaped(before, old, new)
    if after is not None and after.count == before.count > 1:
        assert reshaped(after, new, old) == before


def test_heads_and_back() -> None:
    features = Columns(2, 1, 12)
    heads = reshaped(features, (2, 5, 12), (2, 5, 3, 4))
    assert heads == Columns(2, 1, 3)
    assert reshaped(Columns(1, 1, 3), (2, 3, 5, 4), (6, 5, 4)) == Columns(0, 1, 3)
    assert reshaped(Columns(0, 1, 3), (6, 5, 4), (2, 3, 5, 4)) == Columns(1, 1, 3)
    assert reshaped(Columns(1, 1, 8), (2, 8, 3, 3), (2, 72)) == Columns(1, 9, 8)


def verdict(function: Function, shape: tuple[int, ...]) -> tuple[bool, Columns | None, Columns | None]:
    """Say whether all operators of a function behind a layer with weights are legal, with columns in and out."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            convolution = len(shape) == 4
            self.first: nn.Module = (
                nn.Conv2d(shape[1], shape[1], 1) if convolution else nn.Linear(shape[-1], shape[-1])
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(self.first(x))

    recording = record(Model(), (torch.empty(shape),), "model")
    found: dict[str, Columns | None] = {}
    legal = True
    for operation in recording.operations:
        fine, columns = OPERATORS[operation.name].columns(operation, lambda tensor: found.get(tensor.key))
        legal &= fine and (columns is not None or len(operation.computed) < 2)
        filled = columns is not None and columns == whole(operation.output, columns.dimension)
        for output in operation.outputs:
            found[output.key] = whole(output, columns.dimension) if columns and filled else columns
    return legal, found[recording.operations[0].output.key], found[recording.outputs[0].key]


def mixes(function: Function, shape: tuple[int, ...], before: Columns, after: Columns) -> bool:
    """Tell by gradients whether any output element depends on an input element of another column block."""
    torch.manual_seed(0)
    inputs = torch.rand(shape, dtype=torch.float64) + 0.5
    output = function(inputs)
    jacobian = torch.autograd.functional.jacobian(function, inputs)
    assert isinstance(jacobian, torch.Tensor)
    depends = jacobian.reshape(output.numel(), inputs.numel()).numpy() != 0
    count = math.gcd(before.count, after.count)
    into = owner(before, shape).ravel() // (before.count // count)
    out = owner(after, tuple(output.shape)).ravel() // (after.count // count)
    return bool((depends & (out[:, None] != into[None, :])).any())


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (2, 4)).transpose(1, 2)


def merged_heads(x: torch.Tensor) -> torch.Tensor:
    folded = heads(x).reshape(-1, 3, 4)
    return torch.bmm(folded, folded.transpose(1, 2)).view(2, 2, 3, 3)


def attention(x: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(heads(x), heads(x), heads(x)).transpose(1, 2).flatten(2)


TOKENS, IMAGES = (2, 3, 8), (2, 4, 4, 6)
LEGAL: dict[str, tuple[Function, tuple[int, ...]]] = {
    "element-wise": (lambda x: torch.tanh(x) * x + 1, TOKENS),
    "heads": (heads, TOKENS),
    "softmax over positions": (lambda x: x.softmax(1), TOKENS),
    "softmax per head": (lambda x: (heads(x) @ heads(x).transpose(2, 3)).softmax(-1), TOKENS),
    "heads folded into the batch": (merged_heads, TOKENS),
    "attention": (attention, TOKENS),
    "mean over positions": (lambda x: x.mean(1), TOKENS),
    "last position": (lambda x: x[:, -1], TOKENS),
    "positions dropped": (lambda x: x[:, 1:], TOKENS),
    "broadcast over a new dimension": (lambda x: x.unsqueeze(1).expand(2, 5, 3, 8), TOKENS),
    "keys shared by heads": (lambda x: heads(x)[:, :, None].expand(2, 2, 3, 3, 4).reshape(2, 6, 3, 4), TOKENS),
    "pooling": (lambda x: functional.max_pool2d(x, 2), IMAGES),
    "global pooling": (lambda x: functional.adaptive_avg_pool2d(x, 1).flatten(1), IMAGES),
    "flattened image": (lambda x: x.flatten(1), IMAGES),
    "batch norm": (lambda x: functional.batch_norm(x, None, None, training=True), IMAGES),
    "padding": (lambda x: functional.pad(x, (1, 1)), IMAGES),
    "padding by nothing": (lambda x: functional.pad(x, (0, 0, 1, 0)), TOKENS),
    "channels last": (lambda x: x.permute(0, 2, 3, 1).relu(), IMAGES),
    "shifted windows": (lambda x: x.roll((1, 1), (2, 3)), IMAGES),
    "up": (lambda x: functional.interpolate(x, scale_factor=2), IMAGES),
}


@pytest.mark.parametrize("name", LEGAL)
def test_what_is_called_legal_never_looks_across_the_cut(name: str) -> None:
    function, shape = LEGAL[name]
    legal, before, after = verdict(function, shape)
    assert legal
    assert before is not None
    assert after is not None
    assert after.count > 1
    assert not mixes(function, shape, before, after)


ILLEGAL: dict[str, tuple[Function, tuple[int, ...]]] = {
    "softmax over features": (lambda x: x.softmax(-1), TOKENS),
    "layer norm": (lambda x: functional.layer_norm(x, [8]), TOKENS),
    "layer norm of channels last": (lambda x: functional.layer_norm(x.permute(0, 2, 3, 1), [4]), IMAGES),
    "mean over features": (lambda x: x.mean(-1), TOKENS),
    "sum of everything": (lambda x: x.sum(), TOKENS),
    "part of the features": (lambda x: x[..., :3], TOKENS),
    "one feature": (lambda x: x[..., 0], TOKENS),
    "features of one product with another's": (lambda x: x @ x.transpose(1, 2), TOKENS),
    "features plus positions": (lambda x: x[:, :, :3] + x[:, :, :3].transpose(1, 2), TOKENS),
    "group norm": (lambda x: functional.group_norm(x, 2), IMAGES),
    "batch norm of positions": (lambda x: functional.batch_norm(x, None, None, training=True), TOKENS),
    "windows": (lambda x: functional.pixel_shuffle(x, 2), IMAGES),
    "padded features": (lambda x: functional.pad(x, (1, -1)), TOKENS),
    "rolled features": (lambda x: x.roll(1, -1), TOKENS),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_looks_across_the_cut_is_called_illegal(name: str) -> None:
    function, shape = ILLEGAL[name]
    assert not verdict(function, shape)[0]


def test_chunks_of_the_columns_are_shared_out_each() -> None:
    legal, _, after = verdict(lambda x: x.chunk(2, -1)[1], TOKENS)
    assert (legal, after) == (True, Columns(2, 1, 4))


def test_concatenated_columns_are_shared_out_each() -> None:
    legal, _, after = verdict(lambda x: torch.cat([x, x.relu()], -1), TOKENS)
    assert (legal, after) == (True, Columns(2, 1, 16))
