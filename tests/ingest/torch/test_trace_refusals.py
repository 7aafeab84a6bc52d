"""Tracing: models that cannot be followed or costed are refused in a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from pipecut.ingest.errors import TraceError
from tests.ingest.torch.tiny_models import Calls, Function, Part, traced


def refused(function: Function, *shapes: Sequence[int], **parts: Part) -> str:
    with pytest.raises(TraceError) as caught:
        traced(function, *shapes, **parts)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


def test_a_branch_on_values_is_refused_with_its_line() -> None:
    message = refused(lambda m, x: x if x.sum() > 0 else m.fc(x), (2, 4), fc=lambda: nn.Linear(4, 4))
    assert "control flow depends on the values of tensors" in message
    assert "test_trace_refusals.py" in message
    assert "torch.where" in message


def test_numbers_taken_out_of_tensors_are_refused() -> None:
    assert "takes a number out of a tensor" in refused(
        lambda m, x: m.fc(x) * x.max().item(), (2, 4), fc=lambda: nn.Linear(4, 4)
    )


def test_shapes_that_depend_on_values_are_refused() -> None:
    assert "shape of" in refused(lambda m, x: m.fc(x)[x > 0], (2, 4), fc=lambda: nn.Linear(4, 4))


def test_a_mean_over_the_batch_that_samples_use_is_refused() -> None:
    message = refused(lambda m, x: (y := m.fc(x)) - y.mean(), (2, 4), fc=lambda: nn.Linear(4, 4))
    assert message.startswith("layer of the model itself: operator aten.mean.default (")
    assert "mixes samples" in message


def test_conditional_regions_are_refused() -> None:
    def choose(m: Calls, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (m.fc(x),))

    assert "operator cond cannot be costed" in refused(choose, (2, 4), fc=lambda: nn.Linear(4, 4))


def test_an_error_in_forward_is_told_in_a_sentence() -> None:
    message = refused(lambda m, x: m.fc(x), (2, 5), fc=lambda: nn.Linear(4, 4))
    assert message.startswith("model model: forward failed in fc (Linear)")


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [([(2, 4), (3, 4)], "the same batch"), ([(0, 4)], "1 or more"), ([()], "1 or more"), ([], "no tensor")],
)
def test_inputs_without_a_common_batch_are_refused(shapes: list[tuple[int, ...]], expected: str) -> None:
    assert expected in refused(lambda m, *x: x[0] + 1, *shapes)


def test_outputs_that_do_not_depend_on_inputs_are_refused() -> None:
    assert "nothing to cut" in refused(lambda m, x: torch.ones(3), (2, 4))


@pytest.mark.parametrize("equation", ["...i,ij->...j", "bi,ij,bk->bjk"])
def test_einsums_without_one_count_are_refused(equation: str) -> None:
    def product(m: Calls, x: torch.Tensor) -> torch.Tensor:
        operands = [x, m.w, x][: equation.count(",") + 1]
        return torch.einsum(equation, *operands)

    assert "einsum" in refused(product, (2, 4), w=lambda: nn.Parameter(torch.ones(4, 4)))
