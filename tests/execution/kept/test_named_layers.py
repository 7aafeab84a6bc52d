"""Layers that are computed again alone: gradients and buffers of the unsplit model, and nothing kept of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import pipecut
from pipecut.execution.errors import StagesError
from pipecut.execution.measuring import peak_bytes
from pipecut.execution.running.layout import RunLayout, layout_of
from pipecut.execution.running.pipeline import Pipeline
from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.problem.constraints import Recompute
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import PipelineSchedule
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from pipecut.ingest.torch.groups import group, names
from tests.execution import models
from tests.execution.cases import Groups, mean_square
from tests.execution.divided.forms import program_of, run_divided
from tests.execution.threads import Network, ThreadChannel
from tests.ingest.torch.tiny_models import Calls

MODELS = (
    models.cnn,
    models.resnet,
    models.unet,
    models.gpt,
    models.tied_gpt,
    models.batch_norm,
    models.dropout,
    models.masks,
    models.derived_weights,
    models.attention,
    models.regions,
    models.counting,
)


def named(make: Callable[[], models.Made], seed: int, share: float = 0.5) -> Callable[..., RunLayout]:
    """Return what lays a plan out so that layers chosen at random are computed again."""
    layers = [name for name, _ in names(group(program_of(make).followed.recording)[0])]
    chance = random.Random(seed)  # noqa: S311 (no secrets)
    again = dict.fromkeys((name for name in layers if chance.random() < share), 0)

    def laid_out(plan: Plan, order: PipelineSchedule, micro_batch: int) -> RunLayout:
        return replace(layout_of(plan, order, micro_batch), again=again)

    return laid_out


@pytest.mark.few(3)
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_gradients_are_those_of_the_unsplit_model(make: Callable[[], models.Made]) -> None:
    found = run_divided(make, [(1, 1)], laid_out=named(make, seed=1))
    found.check()
    found.check_buffers()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_whichever_layers_they_are(make: Callable[[], models.Made], seed: int) -> None:
    found = run_divided(make, [(1, 1), (1, 1)], laid_out=named(make, seed, share=(0.3, 0.7, 1.0)[seed]))
    found.check()
    found.check_buffers()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("order", "groups"),
    [
        (zero_bubble_h1(2, 3), [(1, 1), (1, 1)]),
        (interleaved(1, 2, 2), [(2, 2), (2, 2)]),
        (one_f_one_b(2, 2), [(2, 1), (1, 1)]),
    ],
    ids=["zb-h1", "interleaved", "divided"],
)
def test_under_every_schedule_and_divided(order: PipelineSchedule, groups: Groups) -> None:
    run_divided(
        models.gpt, groups, schedule=order, laid_out=named(models.gpt, 2, 0.7), in_rows=True, seed=3
    ).check()


def test_dropout_draws_what_it_drew() -> None:
    def make() -> models.Made:
        torch.manual_seed(0)
        layers = [nn.Linear(6, 6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 2)]
        return nn.Sequential(*layers), (torch.randn(4, 6),)

    kept, again = (run_divided(make, [(1, 1)], laid_out=named(make, 0, share)) for share in (0.0, 1.0))
    for one, other in zip(kept.pipelines, again.pipelines, strict=True):
        for name, parameter in one.parameters.items():
            torch.testing.assert_close(parameter.grad, other.parameters[name].grad, rtol=0, atol=0)


def test_a_write_through_one_of_two_views_is_refused() -> None:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        x = m.a(x)
        half = x[:, :2]
        x.mul_(2)
        return m.b(x) + half.sum()

    def make() -> models.Made:
        return Calls(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), (torch.randn(4, 4),)

    with pytest.raises(StagesError, match=r"stage 0: mul_ writes into a tensor that \w+ is a view of"):
        run_divided(make, [(1, 1)], laid_out=named(make, 0, share=1.0))


@pytest.mark.slow
def test_memory_is_that_of_the_formula() -> None:
    """Of one run of layers at the end of a stage, which is computed again while all other layers keep theirs."""
    layers = [part for _ in range(40) for part in (nn.Linear(32, 32), nn.Tanh())]
    model, inputs = nn.Sequential(*layers), (torch.zeros(256, 32),)
    server = pipecut.Server("one", pipecut.DeviceClass("gpu", 2**30, 10**12), 1)
    problem = pipecut.build(
        pipecut.trace(model, inputs, "deep"),
        pipecut.Cluster.mesh("one", [server], pipecut.Link(10**10)),
        pipecut.Training(
            global_batch=1024, micro_batches=4, schedule=Schedule.GPIPE, optimizer_bytes_per_parameter=0
        ),
        constraints=pipecut.Constraints(
            recompute=Recompute.ALLOWED, recompute_layers=tuple(map(str, range(32, 80)))
        ),
    )
    batch, targets = torch.randn(1024, 32), torch.randn(1024, dtype=torch.double)
    ratios, peaks = {}, {}
    for recompute in (False, "layers"):
        stage = Stage(Span(0, 80), Group(((0, 1),), Mode(1, recompute)), (0,) * 80)
        layout = layout_of(plan := Plan((stage,)), gpipe(1, 4), 256, problem)
        pipeline = Pipeline(model, inputs, plan, layout, mean_square, 0, lambda _: ThreadChannel(Network(1), 0))
        pipeline.step((batch,), targets)
        peaks[recompute] = peak_bytes(pipeline, (batch,), targets)
        ratios[recompute] = peaks[recompute] / MemoryParts.of_stage(problem, plan, 0).total
    assert peaks["layers"] < 0.7 * peaks[False]
    assert all(abs(one - 1) < 0.05 for one in ratios.values()), (ratios, peaks)
