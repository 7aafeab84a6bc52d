"""Models in which one sample looks at another are refused, with operator, module and line; others are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipecut.ingest.errors import TraceError
from pipecut.ingest.torch.trace import trace
from tests.ingest.torch.tiny_models import Calls, Function, linear8, traced

MIXED: dict[str, tuple[Function, Sequence[int], str]] = {
    "mean": (lambda m, x: (y := m.fc(x)) - y.mean(0), (4, 8), "mean"),
    "softmax": (lambda m, x: m.fc(x).softmax(0), (4, 8), "softmax"),
    "product": (lambda m, x: (y := m.fc(x)) @ y.t(), (4, 8), "matmul"),
    "flip": (lambda m, x: (y := m.fc(x)) + y.flip(0), (4, 8), "flip"),
    "pairs": (lambda m, x: (y := m.fc(x))[:, None] - y[None], (4, 8), "sub"),
    "one": (lambda m, x: m.fc(x) * m.fc(x)[0], (4, 8), "select"),
    "tokens": (lambda m, x: m.fc(x).flatten(0, 1).cumsum(0), (4, 6, 8), "cumsum"),
    "sequence first": (lambda m, x: (y := m.fc(x).transpose(0, 1)) @ y.transpose(1, 2), (4, 6, 8), "matmul"),
    "channels": (lambda m, x: m.mix(m.fc(x).transpose(0, 1).transpose(1, 2)), (4, 6, 8), "linear"),
}


LOSSES: dict[str, tuple[Function, str]] = {
    "contrastive": (
        lambda m, x: torch.nn.functional.cross_entropy((y := m.fc(x)) @ y.t(), torch.arange(4, device=x.device)),
        "matmul",
    ),
    "root of a mean": (lambda m, x: (m.fc(x) ** 2).mean().sqrt(), "sqrt"),
    "logarithm of a sum": (lambda m, x: m.fc(x).exp().sum().log(), "log"),
    "all samples' logsumexp": (lambda m, x: m.fc(x).logsumexp((0, 1)), "logsumexp"),
    "square of a mean": (lambda m, x: m.fc(x).mean() ** 2, "pow"),
    "product of means": (lambda m, x: m.fc(x).mean() * m.fc(x).sum(), "mul"),
    "softmax over the batch": (lambda m, x: m.fc(x).log_softmax(0).mean(), "log_softmax"),
}


@pytest.mark.parametrize("case", LOSSES)
def test_a_loss_that_is_no_mean_over_samples_is_a_mixture(case: str) -> None:
    function, operator = LOSSES[case]
    with pytest.raises(TraceError, match=rf"operator aten\.{operator}\..* mixes samples"):
        traced(function, (4, 8), fc=linear8)


@pytest.mark.parametrize("case", MIXED)
def test_mixed_samples_are_refused_with_their_operator_and_line(case: str) -> None:
    function, shape, operator = MIXED[case]
    with pytest.raises(TraceError) as caught:
        traced(lambda m, x: m.inner(x), shape, inner=lambda: Calls(function, fc=linear8(), mix=nn.Linear(4, 4)))
    message = str(caught.value)
    layer = "inner.mix" if case == "channels" else "inner"
    assert message.startswith(f"layer {layer}: operator aten.{operator}."), message
    assert "mixes samples" in message and "tiny_models.py:" in message


def test_a_batch_in_the_wrong_dimension_is_found() -> None:
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(8, 2, 16)
        module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        with pytest.raises(TraceError, match="put the batch into dimension 0 of the example inputs"):
            trace(module, (torch.empty(6, 2, 8),), "model")
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        assert trace(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (torch.empty(2, 6, 8),), "model")
        with pytest.raises(TraceError, match=r"lstm.* mixes samples"):
            trace(Calls(lambda m, x: m.lstm(x)[0], lstm=nn.LSTM(8, 8)), (torch.empty(6, 2, 8),), "model")


APART: dict[str, tuple[Function, Sequence[int]]] = {
    "over features": (lambda m, x: (y := m.fc(x)) - y.mean(1, keepdim=True), (4, 8)),
    "tokens together": (lambda m, x: m.fc(x.flatten(0, 1)).unflatten(0, (4, 6)).softmax(1), (4, 6, 8)),
    "sample by sample": (lambda m, x: (y := m.fc(x)) @ y.transpose(1, 2), (4, 6, 8)),
    "doubled": (lambda m, x: torch.add(*m.fc(torch.cat([x, x])).chunk(2)), (4, 8)),
    "sequence first": (lambda m, x: m.fc(x.transpose(0, 1)).cumsum(0).transpose(0, 1), (4, 6, 8)),
    "a square": (lambda m, x: m.fc(x) + m.fc(x).flip(1), (8, 8)),
    "a loss": (lambda m, x: (m.fc(x) ** 2).mean(0).sum(), (4, 8)),
    "a loss, scaled": (lambda m, x: 0.5 * (m.fc(x) ** 2).mean() + m.fc(x).abs().sum() / 3, (4, 8)),
    "cross entropy": (
        lambda m, x: torch.nn.functional.cross_entropy(m.fc(x), torch.zeros(4, dtype=torch.long, device=x.device)),
        (4, 8),
    ),
}


@pytest.mark.parametrize("case", APART)
def test_what_keeps_samples_apart_is_traced(case: str) -> None:
    function, shape = APART[case]
    assert traced(function, shape, fc=linear8)


def test_statistics_over_samples_are_told_where_they_are_taken() -> None:
    def normalised(m: Any, x: torch.Tensor) -> torch.Tensor:
        x = functional.batch_norm(m.fc(x), None, None, training=True)
        kept = functional.batch_norm(x, m.norm.running_mean, m.norm.running_var)
        return m.norm(kept)

    (note,) = traced(normalised, (4, 8), fc=linear8, norm=lambda: nn.BatchNorm1d(8)).graph["notes"]
    assert note.startswith("statistics of batch normalisation (batch_norm and 1 more) are those of the samples")
    assert (
        "notes" not in traced(lambda m, x: m.norm(m.fc(x)), (4, 8), fc=linear8, norm=lambda: nn.LayerNorm(8)).graph
    )
