"""Plans with what they are held against: the unsplit model, micro-batch by micro-batch."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from execution.running.pipeline import Pipeline, samples_of
from execution.splitting.stages import ModelProgram
from formulation.problem.groups import Group
from formulation.problem.modes import Mode
from formulation.problem.plan import Plan, Span, Stage
from formulation.schedules.gpipe import gpipe
from formulation.schedules.interleaved import interleaved
from formulation.schedules.one_f_one_b import one_f_one_b
from formulation.schedules.table import PipelineSchedule
from formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from tests.execution import models

Widths = Sequence[int]


def equal_plan(layers: int, widths: Widths, recompute: Sequence[int] = ()) -> Plan:
    """Return a plan of stages with about equally many layers, of so many devices each."""
    ends = itertools.pairwise(at * layers // len(widths) for at in range(len(widths) + 1))
    groups = [Group(((0, wide),), Mode(wide, at in recompute)) for at, wide in enumerate(widths)]
    pairs = zip(ends, groups, strict=True)
    return Plan(tuple(Stage(Span(a, b), one, (0,) * (b - a)) for (a, b), one in pairs))


def mean_square(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    leaves = [one for one in pytree.tree_leaves(outputs) if isinstance(one, torch.Tensor)]
    return sum(
        ((one.double() - targets.view(-1, *[1] * (one.dim() - 1))).square().mean() for one in leaves),
        torch.zeros((), dtype=torch.double),
    )


def batch_of(inputs: Any, many: int) -> Any:
    """Return inputs of so many samples like those of an example, unlike each other."""
    return pytree.tree_map(
        lambda one: (
            torch.randn(many, *one.shape[1:]).to(one.dtype)
            if one.is_floating_point()
            else torch.randint(0, 13, (many, *one.shape[1:]))
        ),
        inputs,
    )


def unsplit(model: nn.Module, batch: Any, targets: torch.Tensor, many: int) -> tuple[float, dict[str, Any]]:
    """Return the loss and the gradients and buffers of a step of the unsplit model, micro-batch by micro-batch."""
    model = copy.deepcopy(model).train()
    total, size = 0.0, len(targets) // many
    for number in range(many):
        rows = range(number * size, (number + 1) * size)
        part = samples_of(batch, rows)
        outputs = model(**part) if isinstance(part, dict) else model(*part)
        loss = mean_square(outputs, samples_of(targets, rows)) / many
        loss.backward()
        total += loss.item()
    buffers = {f"buffer {name}": one for name, one in model.named_buffers()}
    return total, buffers | {name: one.grad for name, one in model.named_parameters()}


@dataclass(frozen=True)
class Case:
    make: Callable[[], models.Made]
    schedule: PipelineSchedule
    widths: Widths
    micro_batch: int
    recompute: Sequence[int] = ()


CASES = {
    "unet 2-1-1": Case(models.unet, one_f_one_b(3, 3), (2, 1, 1), 5),
    "tied 1-2-1": Case(models.tied_gpt, zero_bubble_h1(3, 3), (1, 2, 1), 3),
    "resnet 1-1-1-1": Case(models.resnet, gpipe(4, 2), (1, 1, 1, 1), 2),
    "gpt 3-1": Case(models.gpt, one_f_one_b(2, 2), (3, 1), 4, recompute=(0, 1)),
    "gpt 2-2-2-2": Case(models.gpt, interleaved(2, 2, 2), (2, 2, 2, 2), 3),
    "choices 4": Case(models.chosen, one_f_one_b(1, 2), (4,), 5),
}
"""Plans for four processes."""


def case_model(case: Case) -> tuple[nn.Module, Any, Plan]:
    torch.manual_seed(3)
    model, inputs = case.make()
    model = model.double()
    inputs = pytree.tree_map(lambda one: one.double() if one.is_floating_point() else one, inputs)
    layers = len(ModelProgram.of(model, inputs).layers)
    return model, inputs, equal_plan(layers, case.widths, case.recompute)


def data_of(case: Case, inputs: Any) -> tuple[Any, torch.Tensor]:
    many = case.micro_batch * case.schedule.micro_batches
    return batch_of(inputs, many), torch.randn(many, dtype=torch.double)


def error_of(pipeline: Pipeline, loss: float | None, model: nn.Module, batch: Any, targets: torch.Tensor) -> float:
    """Return the largest difference from the unsplit model: of the loss, and of every gradient by its size."""
    expected, wanted = unsplit(model, batch, targets, pipeline.layout.schedule.micro_batches)
    errors = [0.0 if loss is None else abs(loss - expected) / expected]
    for name, one in pipeline.parameters.items():
        want, found = wanted[name], one.grad
        assert (want is None) == (found is None), name
        if want is not None and found is not None:
            errors.append(float((found - want).abs().max() / want.abs().max().clamp(min=1e-3)))
    return max(errors)
