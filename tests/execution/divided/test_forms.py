"""Layers divided over the devices of a replica, in forms 0, 1 and 2: gradients of the unsplit model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional

from pipecut.execution.dividing.moves import bounds, dealt, shortened
from pipecut.execution.errors import StagesError
from pipecut.execution.running.layout import RunLayout, layout_of
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.table import PipelineSchedule
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from tests.execution import models
from tests.execution.cases import Groups
from tests.execution.divided.forms import run_divided
from tests.ingest.torch.tiny_models import Calls


def slow(make: Callable[[], models.Made]) -> Any:
    return pytest.param(make, marks=pytest.mark.slow)


@pytest.mark.parametrize("form", [1, 2, None], ids=["form 1", "form 2", "random forms"])
@pytest.mark.parametrize(
    "make",
    [models.cnn, *map(slow, (models.tied_gpt, models.attention, models.keywords, models.masks))],
)
def test_two_devices_hold_a_stage_together(make: Callable[[], models.Made], form: int | None) -> None:
    run_divided(make, [(2, 1)], form=form, seed=1).check()


@pytest.mark.parametrize("form", [3, 4, None], ids=["form 3", "form 4", "random forms"])
@pytest.mark.parametrize(
    "make",
    [models.cnn, *map(slow, (models.tied_gpt, models.attention, models.keywords, models.masks))],
)
def test_products_end_and_begin_in_rows(make: Callable[[], models.Made], form: int | None) -> None:
    run_divided(make, [(2, 1)], form=form, seed=5, in_rows=True).check()


def test_forms_4_and_3_send_halves_of_what_2_and_1_sum() -> None:
    def make() -> models.Made:
        parts = {name: nn.Linear(6, 6) for name in "abc"}
        return Calls(lambda m, x: m.c(m.b(m.a(x))), **parts), (torch.randn(4, 6),)

    found = run_divided(make, [(2, 1)], form=(0, 4, 3))
    found.check()
    for process, mine in enumerate((range(3), range(3, 6))):
        pipeline = found.pipelines[process]
        assert pipeline.held == {"b.weight": (0, mine), "b.bias": (0, mine), "c.weight": (1, mine)}
    rows = 2 * 6 * 8  # samples of the other device, features, bytes
    assert found.network.swapped == [2 * 4 * rows] * 2  # of two micro-batches: gathered and summed, twice each


@pytest.mark.slow
@pytest.mark.parametrize("groups", [[(2, 1), (2, 1)], [(4, 2), (1, 1)], [(1, 1), (2, 1), (2, 2)]], ids=str)
@pytest.mark.parametrize("make", [models.gpt, models.tied_gpt, models.derived_weights])
def test_forms_inside_a_pipeline(make: Callable[[], models.Made], groups: Groups) -> None:
    run_divided(make, groups, seed=len(groups)).check()


def test_weights_are_parts_of_the_models() -> None:
    found = run_divided(models.cnn, [(2, 1)], form=2)
    for pipeline in found.pipelines:
        assert pipeline.held["0.weight"] == (0, range(0, 3) if pipeline is found.pipelines[0] else range(3, 6))
        assert pipeline.parameters["0.weight"].shape == (3, 3, 3, 3)
    found.check()


def test_a_batch_smaller_than_a_replica_has_devices() -> None:
    def make() -> models.Made:
        return Calls(lambda m, x: m.b(m.a(x)), a=nn.Linear(4, 4), b=nn.Linear(4, 4)), (torch.randn(3, 4),)

    found = run_divided(make, [(2, 1), (1, 1)], form=1, micro_batch=1)
    assert found.pipelines[0].layout.stages[0].together
    found.check()


@pytest.mark.parametrize("order", [zero_bubble_h1(2, 3), interleaved(1, 2, 2)], ids=["zb-h1", "interleaved"])
def test_under_other_schedules_and_recomputed(order: PipelineSchedule) -> None:
    run_divided(models.called_twice, [(2, 1), (2, 1)], form=2, schedule=order, recompute=True).check()


@pytest.mark.slow
def test_shares_in_proportion_to_speed() -> None:
    def unequal(plan: Plan, order: PipelineSchedule, micro_batch: int) -> RunLayout:
        layout = layout_of(plan, order, micro_batch)
        return replace(layout, stages=tuple(replace(one, shares=(2, 1, 3, 3)) for one in layout.stages))

    found = run_divided(models.cnn, [(4, 2)], form=None, seed=2, micro_batch=9, laid_out=unequal)
    assert [found.pipelines[0].layout.rows(0, one) for one in range(4)] == [
        range(0, 2),
        range(2, 3),
        range(3, 6),
        range(6, 9),
    ]
    found.check()
    found = run_divided(models.cnn, [(2, 1)], form=2, micro_batch=4, laid_out=_two_to_one)
    assert [len(one.held["0.weight"][1]) for one in found.pipelines] == [4, 2]
    found.check()


def _two_to_one(plan: Plan, order: PipelineSchedule, micro_batch: int) -> RunLayout:
    layout = layout_of(plan, order, micro_batch)
    return replace(layout, stages=tuple(replace(one, shares=(2, 1)) for one in layout.stages))


def test_dropout_is_the_same_on_all_devices_that_have_a_whole_tensor() -> None:
    def make() -> models.Made:
        torch.manual_seed(0)
        layers = [nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 2)]
        return nn.Sequential(*layers), (torch.randn(4, 6),)

    first, again = (run_divided(make, [(2, 1)], form=1) for _ in range(2))
    one, other = (pipeline.parameters["4.bias"].grad for pipeline in first.pipelines)
    assert one is not None and other is not None and torch.equal(one, other)
    for pipeline, repeated in zip(first.pipelines, again.pipelines, strict=True):
        for name, parameter in pipeline.parameters.items():
            torch.testing.assert_close(parameter.grad, repeated.parameters[name].grad, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("run", "form", "parts", "words"),
    [
        (
            lambda m, x: m.b(m.a(x)),
            2,
            {"a": nn.Linear(4, 1), "b": nn.Linear(1, 4)},
            "stage 0: layer a has columns: 1",
        ),
        (
            lambda m, x: m.b(m.a(x.unsqueeze(-1))),
            2,
            {"a": nn.Conv1d(4, 4, 1, groups=2), "b": nn.Conv1d(4, 4, 1)},
            "stage 0: layer a has form 2, and a grouped convolution is run in form 0 only",
        ),
        (
            lambda m, x: torch.einsum("bi,io->bo", x, m.a),
            2,
            {"a": nn.Parameter(torch.randn(4, 4))},
            "stage 0: layer einsum has form 2, and its product is run in form 0 only",
        ),
        (
            lambda m, x: functional.softmax(m.a(x), 0) + torch.rand(4),
            1,
            {"a": nn.Linear(4, 4)},
            "draws random numbers that depend on no input",
        ),
    ],
    ids=["too few columns", "grouped", "einsum", "random"],
)
def test_what_cannot_be_divided_is_refused_with_its_layer(
    run: Callable[..., torch.Tensor], form: int, parts: dict[str, Any], words: str
) -> None:
    with pytest.raises(StagesError, match=words):
        run_divided(lambda: (Calls(run, **parts), (torch.randn(4, 4),)), [(2, 1)], form=form)


@pytest.mark.few(6)
@pytest.mark.parametrize("own", [False, True], ids=["module", "function"])
@pytest.mark.parametrize("micro_batch", [1, 2, 4])
@pytest.mark.parametrize("groups", [[(1, 1)], [(2, 2)], [(2, 1)], [(4, 2)], [(1, 1), (2, 2)]], ids=str)
@pytest.mark.parametrize("form", [0, 1])
def test_statistics_over_samples_are_the_unsplit_models_or_refused(
    form: int, groups: Groups, micro_batch: int, own: bool
) -> None:
    """Every device has all samples of a micro-batch where batch normalisation stands."""

    def normalise(m: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(x, None, None, m.n.weight, m.n.bias, training=True) if own else m.n(x)

    def make() -> models.Made:
        run = Calls(
            lambda m, x: m.b(normalise(m, m.a(x))), a=nn.Conv1d(4, 4, 1), n=nn.BatchNorm1d(4), b=nn.Conv1d(4, 4, 1)
        )
        return run, (torch.randn(4, 4, 3),)

    devices, replicas = groups[-1]
    sharing = replicas if form and devices > replicas else devices
    if sharing > 1:
        with pytest.raises(StagesError, match=r"takes the statistics of the samples that it gets"):
            run_divided(make, groups, form=form, micro_batch=micro_batch)
    else:
        found = run_divided(make, groups, form=form, micro_batch=micro_batch)
        found.check()
        found.check_buffers()


def test_statistics_that_are_kept_are_those_of_a_device() -> None:
    """Out of training nothing is mixed, on however many devices."""

    def frozen(m: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(m.a(x), m.n.running_mean, m.n.running_var, m.n.weight, m.n.bias)

    model = Calls(frozen, a=nn.Linear(4, 4), n=nn.BatchNorm1d(4))
    run_divided(lambda: (model, (torch.randn(4, 4),)), [(2, 2)], form=0).check()


def test_columns_are_dealt_in_whole_units() -> None:
    assert bounds(7, (1, 1, 1)) == (range(0, 2), range(2, 4), range(4, 7))
    assert dealt(12, (1, 1), 1, 4) == (0,) * 4 + (1,) * 8
    assert dealt(12, (1, 1), 3, 1) == (0, 0, 1, 1) * 3
    assert dealt(12, (1, 1), 3, 4) is None and dealt(12, (1, 1), 5, 1) is None
    assert shortened([2, 3, 4]) == range(2, 5) and shortened([1, 3]) == (1, 3) and shortened([]) == range(0)
