"""Plans run by threads that stand for processes: gradients of the unsplit model, whatever schedule and widths."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils import _pytree as pytree

from pipecut.execution.errors import StagesError
from pipecut.execution.running.layout import layout_of
from pipecut.execution.running.pipeline import Pipeline
from pipecut.execution.splitting.stages import ModelProgram
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.naive import naive
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import Action, PipelineSchedule
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from pipecut.formulation.schedules.zero_bubble_v import zero_bubble_v
from tests.execution import models
from tests.execution.cases import Widths, batch_of, equal_plan, mean_square, unsplit
from tests.execution.threads import Network, ThreadChannel, in_threads


def slow(make: Callable[[], models.Made]) -> Any:
    return pytest.param(make, marks=pytest.mark.slow)


def channel(network: Network, process: int, groups: object) -> ThreadChannel:
    return ThreadChannel(network, process)


def two_steps(pipeline: Pipeline, batch: Any, targets: torch.Tensor) -> tuple[Any, Any, dict[str, Any]]:
    first = pipeline.step(batch, targets)
    found = {name: one.grad for name, one in pipeline.parameters.items()}
    for stage in pipeline.stages:
        found |= {f"buffer {name}": one.clone() for name, one in stage.module.named_buffers()}
        assert stage.in_flight == 0
    for one in pipeline.parameters.values():
        one.grad = None
    return first, pipeline.step(batch, targets), found


def run(
    make: Callable[[], models.Made],
    schedule: PipelineSchedule,
    widths: Widths,
    micro_batch: int,
    recompute: Sequence[int] = (),
    buffers: bool = True,
) -> Network:
    """Run two steps of a plan and of the unsplit model, and hold one against the other."""
    torch.manual_seed(3)
    model, inputs = make()
    model = model.double()
    inputs = pytree.tree_map(lambda one: one.double() if one.is_floating_point() else one, inputs)
    many = schedule.micro_batches
    batch, targets = batch_of(inputs, many * micro_batch), torch.randn(many * micro_batch, dtype=torch.double)
    expected, wanted = unsplit(model, batch, targets, many)
    plan = equal_plan(len(ModelProgram.of(model, inputs).layers), widths, recompute)
    layout = layout_of(plan, schedule, micro_batch)
    network = Network(layout.size)
    pipelines = [
        Pipeline(
            copy.deepcopy(model), inputs, plan, layout, mean_square, process, partial(channel, network, process)
        )
        for process in range(layout.size)
    ]
    results = in_threads(network, [partial(two_steps, pipeline, batch, targets) for pipeline in pipelines])
    for process, (first, _, found) in enumerate(results):
        assert (first is None) == (process not in layout.processes[-1])
        assert first is None or first == pytest.approx(expected, rel=1e-12)
        for name, one in found.items():
            if buffers or not name.startswith("buffer"):
                torch.testing.assert_close(one, wanted[name], rtol=1e-12, atol=1e-12, msg=f"{process}: {name}")
    seen = {name for _, _, found in results for name in found if not name.startswith("buffer")}
    assert seen == {name for name, one in wanted.items() if not name.startswith("buffer")}
    return network


ORDERS = {
    "naive": naive(3, 4),
    "gpipe": gpipe(3, 4),
    "1f1b": one_f_one_b(3, 4),
    "zb-h1": zero_bubble_h1(3, 4),
    "interleaved": interleaved(2, 2, 4),
    "one rank": interleaved(1, 3, 2),
    "zb-v": zero_bubble_v(2, 3),
}


@pytest.mark.few("tied_gpt-1f1b", "tied_gpt-inter", "tied_gpt-zb")
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("make", [models.tied_gpt, *map(slow, (models.unet, models.chosen, models.called_twice))])
def test_every_schedule(make: Callable[[], models.Made], order: PipelineSchedule) -> None:
    run(make, order, [1] * order.stages, micro_batch=2)


@pytest.mark.slow
def test_an_order_of_ones_own() -> None:
    rows = [["0F0", "0F1", "0B1", "0B0"], ["1F0", "1F1", "1I1", "1I0", "1W0", "1W1"]]
    order = PipelineSchedule.of_actions("mine", [[Action.parse(token) for token in row] for row in rows])
    run(models.resnet, order, [1, 1], micro_batch=2, buffers=False)


@pytest.mark.slow
@pytest.mark.parametrize("widths", [(2, 1, 1), (1, 2, 1), (3, 1), (2, 3), (1, 1, 3)], ids=str)
@pytest.mark.parametrize("make", [models.unet, *map(slow, (models.tied_gpt, models.keywords))])
def test_uneven_widths_and_batches_that_do_not_divide(make: Callable[[], models.Made], widths: Widths) -> None:
    order = one_f_one_b(len(widths), 3)
    run(make, order, widths, micro_batch=5)


@pytest.mark.slow
def test_widths_under_other_schedules() -> None:
    run(models.gpt, zero_bubble_h1(3, 4), (2, 1, 1), micro_batch=3)
    run(models.gpt, interleaved(2, 2, 4), (2, 2, 2, 2), micro_batch=3)
    run(models.gpt, zero_bubble_v(2, 3), (2, 2, 2, 2), micro_batch=3)


@pytest.mark.parametrize("make", [models.batch_norm, models.counting, slow(models.dropout)])
@pytest.mark.parametrize("order", [one_f_one_b(2, 3), zero_bubble_h1(2, 3)], ids=["1f1b", "zb-h1"])
def test_recomputation_changes_buffers_once(make: Callable[[], models.Made], order: PipelineSchedule) -> None:
    run(make, order, (1, 1), micro_batch=4, recompute=(0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("widths", [(2, 1), (1, 1)], ids=str)
def test_gradients_of_several_steps_add_up_each_once(widths: Widths) -> None:
    """As backward passes do; a tied weight is held by both stages, and replicas hold theirs together."""
    torch.manual_seed(3)
    model, inputs = models.tied_gpt()
    model = model.double()
    plan = equal_plan(len(ModelProgram.of(model, inputs).layers), widths)
    layout = layout_of(plan, one_f_one_b(2, 2), 4)
    network = Network(layout.size)
    pipelines = [
        Pipeline(copy.deepcopy(model), inputs, plan, layout, mean_square, at, partial(channel, network, at))
        for at in range(layout.size)
    ]
    parts = [(batch_of(inputs, 8), torch.randn(8, dtype=torch.double)) for _ in range(3)]
    wanted: dict[str, torch.Tensor] = {}
    for number, (batch, targets) in enumerate(parts):
        for name, one in unsplit(model, batch, targets, 2)[1].items():
            wanted[name] = wanted.get(name, 0.0) + one
        in_threads(network, [partial(one.step, batch, targets) for one in pipelines])
        for pipeline in pipelines:
            for name, one in pipeline.parameters.items():
                message = f"step {number}: {name}"
                torch.testing.assert_close(one.grad, wanted[name], rtol=1e-12, atol=1e-12, msg=message)


@pytest.mark.parametrize(
    ("samples", "targets", "words"),
    [
        (7, 6, r"input\[0\] has 7 samples \(shape \[7, 6\]\), and a step takes 6, as planned"),
        (5, 6, r"input\[0\] has 5 samples"),
        (6, 9, r"target has 9 samples \(shape \[9\]\), and a step takes 6"),
        (6, 0, r"target has no samples \(shape \[\]\)"),
        (6, None, r"target is a ndarray, whose samples are not told apart"),
    ],
)
def test_a_batch_of_another_size_than_planned_is_refused(samples: int, targets: int | None, words: str) -> None:
    model, inputs = models.dropout()
    plan = equal_plan(5, (1,))
    layout = layout_of(plan, one_f_one_b(1, 2), 3)
    pipeline = Pipeline(model, inputs, plan, layout, mean_square, 0, partial(channel, Network(1), 0))
    given: Any = (
        torch.zeros(6).numpy() if targets is None else torch.zeros(targets) if targets else torch.zeros(())
    )
    with pytest.raises(StagesError, match=words):
        pipeline.step((torch.zeros(samples, 6),), given)


def test_only_what_the_receiver_lacks_is_sent() -> None:
    network = run(models.cnn, one_f_one_b(2, 2), (2, 1), micro_batch=4)
    forward = {(a, b): size for a, b, size in network.sent if a < b}
    assert set(forward) == {(0, 2), (1, 2)} and len(set(forward.values())) == 1


def test_dropout_is_drawn_by_stage_and_micro_batch_whatever_the_order() -> None:
    """Repeated, in other orders, and computed again: the same masks, and other ones for another seed."""

    def gradients(order: PipelineSchedule, recompute: Sequence[int] = (), seed: int = 0) -> dict[str, Any]:
        torch.manual_seed(3)
        layers = [nn.Linear(6, 6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 2)]
        model, inputs = nn.Sequential(*layers).double(), (torch.randn(4, 6, dtype=torch.double),)
        batch, targets = batch_of(inputs, 12), torch.randn(12, dtype=torch.double)
        layout, network = layout_of(plan := equal_plan(6, (1, 1), recompute), order, 4), Network(2)
        pipelines = [
            Pipeline(model, inputs, plan, layout, mean_square, at, partial(channel, network, at), seed=seed)
            for at in range(2)
        ]
        in_threads(network, [partial(one.step, batch, targets) for one in pipelines])
        return {name: weight.grad for one in pipelines for name, weight in one.parameters.items()}

    first = gradients(one_f_one_b(2, 3))
    for again in (
        gradients(one_f_one_b(2, 3)),
        gradients(gpipe(2, 3)),
        gradients(zero_bubble_h1(2, 3)),
        gradients(one_f_one_b(2, 3), recompute=(0, 1)),
    ):
        for name, one in first.items():
            torch.testing.assert_close(again[name], one, rtol=1e-12, atol=1e-14, msg=name)
    other = gradients(one_f_one_b(2, 3), seed=1)
    assert any(not torch.allclose(other[name], one) for name, one in first.items())
