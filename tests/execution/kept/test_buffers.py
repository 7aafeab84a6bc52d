"""Buffers that a model changes, in every way of writing into one: equal to the unsplit model's, or refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from pipecut.execution.errors import StagesError
from pipecut.execution.running.layout import RunLayout, layout_of
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.schedules.table import PipelineSchedule
from tests.execution import models
from tests.execution.divided.forms import run_divided
from tests.execution.kept.test_named_layers import named
from tests.ingest.torch.tiny_models import Calls

Write = Callable[[Any, torch.Tensor], Any]
"""Changes the buffers ``one``, (4,), and ``two``, (2, 4), by a pass's values; the result is read later."""


def assigned(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.two[1] = x[0]
    return m.two[1]


def added(m: Any, x: torch.Tensor) -> torch.Tensor:
    row = m.two[0]
    row += x.mean(0)
    return m.two.sum(0)


def between(m: Any, x: torch.Tensor) -> torch.Tensor:
    old = m.one.clone()
    m.one.add_(x.mean(0)).mul_(0.5)
    return old


WRITES: dict[str, Write] = {
    "constants": lambda m, x: m.one.mul_(0.9).add_(1.0),
    "constant, then batch": lambda m, x: m.one.mul_(0.9).add_(x.mean(0)),
    "batch, then constant": lambda m, x: m.one.add_(x.mean(0)).mul_(0.9),
    "batch, then batch": lambda m, x: m.one.add_(x.mean(0)).mul_(x.amax(0)),
    "read later": lambda m, x: (m.one.add_(x.mean(0)).mul_(0.9), m.one)[1],
    "read before": between,
    "two statements": lambda m, x: (m.one.add_(x.mean(0)), m.one.mul_(0.5))[1],
    "through a view": lambda m, x: m.two[0].add_(x.mean(0)).mul_(0.9),
    "a view, the whole read": lambda m, x: (m.two[0].add_(x.mean(0)).mul_(0.9), m.two.sum(0))[1],
    "a view of a view": lambda m, x: m.two.view(-1)[:4].mul_(0.5).add_(x[0]).mul_(2),
    "copy_": lambda m, x: m.one.copy_(m.one * 0.5 + x.mean(0)).mul_(2),
    "+=": added,
    "assigned": assigned,
    "index_put_": lambda m, x: m.two.index_put_((torch.tensor([1]),), x[:1], accumulate=True).mul_(0.5)[1],
    "lerp_": lambda m, x: m.one.lerp_(x.mean(0), 0.1).clamp_(-1, 1),
    "out=": lambda m, x: torch.add(m.one, x.mean(0), out=m.one).mul_(0.5),
}


@functools.cache
def made(write: Write, *, reads: bool) -> Callable[[], models.Made]:
    """Return a model that changes its buffers between two layers, and reads what was written or does not."""

    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        x = m.a(x)
        with torch.no_grad():
            found = write(m, x.detach())
        x = m.b(x).tanh()
        return m.c(x + found.clone() if reads else x)

    def make() -> models.Made:
        torch.manual_seed(5)
        model = Calls(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 4))
        model.register_buffer("one", torch.rand(4))
        model.register_buffer("two", torch.rand(2, 4))
        return model, (torch.randn(4, 4),)

    return make


def numbered(make: Callable[[], models.Made], share: float) -> Callable[[Plan, PipelineSchedule, int], RunLayout]:
    """Return what lays a plan out so that layers are computed again, each in a run of its own."""
    lay = named(make, 1, share)

    def laid_out(plan: Plan, order: PipelineSchedule, micro_batch: int) -> RunLayout:
        layout = lay(plan, order, micro_batch)
        return replace(layout, again={name: at for at, name in enumerate(layout.again, 1)})

    return laid_out


WAYS: dict[str, Callable[[Callable[[], models.Made]], Any]] = {
    "as it is": lambda make: run_divided(make, [(1, 1)]),
    "two stages": lambda make: run_divided(make, [(1, 1), (1, 1)]),
    "computed again": lambda make: run_divided(make, [(1, 1)], recompute=True),
    "layers computed again": lambda make: run_divided(make, [(1, 1)], laid_out=named(make, 1, 1.0)),
    "runs computed again": lambda make: run_divided(make, [(1, 1)], laid_out=numbered(make, 1.0)),
    "some computed again": lambda make: run_divided(make, [(1, 1)], laid_out=numbered(make, 0.5)),
    "columns": lambda make: run_divided(make, [(2, 1)], form=2, laid_out=layout_of),
    "inputs": lambda make: run_divided(make, [(2, 1)], form=1, laid_out=layout_of),
    "divided and again": lambda make: run_divided(make, [(2, 1)], form=2, laid_out=numbered(make, 1.0)),
}


OFTEN = ("layers computed again", "some computed again", "inputs")
CASES = [
    pytest.param(write, way, reads, marks=() if reads and way in OFTEN and len(write) < 14 else pytest.mark.slow)
    for at, write in enumerate(WRITES)
    for number, way in enumerate(WAYS)
    for reads in (False, True)
    if way in OFTEN or (at + number) % 2 == reads  # where each has found mistakes: both; else turn by turn
]


@pytest.mark.few(6)
@pytest.mark.parametrize(("write", "way", "reads"), CASES)
def test_a_buffer_is_the_unsplit_models_or_refused(write: str, way: str, reads: bool) -> None:
    make = made(WRITES[write], reads=reads)
    try:
        found = WAYS[way](make)
    except StagesError as error:
        assert "stage" in str(error), error
        return
    found.check()
    found.check_buffers()


def late(m: Any, x: torch.Tensor) -> torch.Tensor:
    x = m.b(m.a(x).tanh())
    with torch.no_grad():
        m.one.mul_(0.9).add_(x.mean(0))
    return m.c(x)


def early(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        view = m.two[0]
        view.mul_(0.9)
        x = m.b(m.a(x).tanh())
        view.add_(x.mean(0))
    return m.c(x)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("run", [late, early])
def test_a_buffer_is_written_in_one_stage_or_refused(run: Any) -> None:
    """What one write returns is the buffer, which would be a copy of it behind a cut."""

    def make() -> models.Made:
        torch.manual_seed(5)
        model = Calls(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 4))
        model.register_buffer("one", torch.rand(4))
        model.register_buffer("two", torch.rand(2, 4))
        return model, (torch.randn(4, 4),)

    for stages in (2, 3, 4):
        try:
            found = run_divided(make, [(1, 1)] * stages)
        except StagesError as error:
            assert run is early and "use buffer two, which the model changes in every pass" in str(error)
            continue
        found.check()
        found.check_buffers()
        holders = [at for at, one in enumerate(found.pipelines) if one.stages[0].module.written]
        assert len(holders) == 1
