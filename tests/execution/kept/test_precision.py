"""Runs in 16 bits: the numbers of the unsplit model that computes so, micro-batch by micro-batch."""

from __future__ import annotations

import copy
from functools import partial

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from pipecut.execution.errors import StagesError
from pipecut.execution.running.layout import layout_of
from pipecut.execution.running.pipeline import Pipeline
from pipecut.formulation.problem.precision import Precision
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from tests.execution.cases import equal_plan, mean_square
from tests.execution.threads import Network, ThreadChannel, in_threads

MANY, MICRO_BATCH = 3, 4


def made() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("name", ["amp", "bf16-mixed", "bf16"])
@pytest.mark.parametrize("order", [one_f_one_b(2, MANY), zero_bubble_h1(2, MANY)], ids=["1f1b", "zb-h1"])
def test_gradients_are_those_of_the_model_in_these_formats(name: str, order: object) -> None:
    precision = Precision.presets()[name]
    x, targets = torch.randn(MANY * MICRO_BATCH, 6), torch.randn(MANY * MICRO_BATCH, dtype=torch.double)
    layout = layout_of(equal_plan(5, (1, 1)), order, MICRO_BATCH)  # type: ignore[arg-type]
    network = Network(2)
    pipelines = [
        Pipeline(
            copy.deepcopy(made()),
            (x[:2],),
            equal_plan(5, (1, 1)),
            layout,
            mean_square,
            process,
            lambda _, process=process: ThreadChannel(network, process),
            precision=precision,
        )
        for process in range(2)
    ]
    in_threads(network, [partial(one.step, (x,), targets) for one in pipelines])
    wanted = reference(precision, x, targets)
    found = {name: one for pipeline in pipelines for name, one in pipeline.parameters.items()}
    assert set(found) == set(wanted)
    full = precision.weights == 4 or precision.optimizer >= 12
    for key, one in found.items():
        assert one.dtype == (torch.float32 if full else torch.bfloat16)
        torch.testing.assert_close(one.grad, wanted[key], rtol=1e-6, atol=1e-8, msg=key)


def reference(precision: Precision, x: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradients of the unsplit model; in 32 bits where they are added so."""
    model = made()
    half = precision.weights == 2
    if half:
        model.to(torch.bfloat16)
    sums: dict[str, torch.Tensor] = {}
    for rows in torch.arange(len(x)).split(MICRO_BATCH):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == Precision.presets()["amp"]):
            outputs = model(x[rows].to(torch.bfloat16) if half else x[rows])
        (mean_square(outputs, targets[rows]) / MANY).backward()
        if precision.gradients == 4:
            for name, one in model.named_parameters():
                assert one.grad is not None
                sums[name] = sums.get(name, 0.0) + one.grad.float()
                one.grad = None
    found = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    full = precision.weights == 4 or precision.optimizer >= 12
    return sums or {name: one.float() if full else one for name, one in found.items()}


def test_the_optimizer_moves_a_copy_that_the_weights_follow() -> None:
    x, targets = torch.randn(4, 6), torch.randn(4, dtype=torch.double)
    layout = layout_of(equal_plan(5, (1,)), one_f_one_b(1, 1), 4)
    pipeline = Pipeline(
        made(),
        (x,),
        equal_plan(5, (1,)),
        layout,
        mean_square,
        0,
        lambda _: ThreadChannel(Network(1), 0),
        precision=Precision.presets()["bf16-mixed"],
    )
    pipeline.step((x,), targets)
    before = pipeline.parameters["0.weight"].detach().clone()
    torch.optim.SGD(pipeline.parameters.values(), lr=1e-4).step()
    pipeline.step((x,), targets)
    copies, weight = pipeline.parameters["0.weight"], pipeline.stages[0].module.get_parameter("0.weight")
    assert not torch.equal(copies, before) and torch.equal(weight, copies.to(torch.bfloat16))


@pytest.mark.parametrize("sizes", [(1, 1, 1, 4), (2, 4, 2, 8), (4, 4, 1, 8), (2, 2, 2, 12)], ids=str)
def test_other_formats_are_refused(sizes: tuple[int, ...]) -> None:
    layout = layout_of(equal_plan(5, (1,)), one_f_one_b(1, 1), 4)
    with pytest.raises(StagesError, match=r"training.precision \{weights: .*\} .*cannot be run"):
        Pipeline(
            made(),
            (torch.zeros(2, 6),),
            equal_plan(5, (1,)),
            layout,
            mean_square,
            0,
            lambda _: ThreadChannel(Network(1), 0),
            precision=Precision(*sizes),
        )
