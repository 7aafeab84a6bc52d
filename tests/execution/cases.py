"""Plans with what they are held against: the unsplit model, micro-batch by micro-batch."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from pipecut.execution.running.data import samples_of
from pipecut.execution.running.layout import RunLayout, layout_of
from pipecut.execution.running.pipeline import Pipeline
from pipecut.execution.splitting.stages import ModelProgram
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import PipelineSchedule
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from pipecut.ingest.torch.groups import group
from tests.execution import models

Widths = Sequence[int]
Groups = Sequence[tuple[int, int]]
"""Devices and replicas of every stage."""


def equal_plan(layers: int, widths: Widths, recompute: Sequence[int] = ()) -> Plan:
    """Return a plan of stages with about equally many layers, of so many devices each."""
    ends = itertools.pairwise(at * layers // len(widths) for at in range(len(widths) + 1))
    groups = [Group(((0, wide),), Mode(wide, at in recompute)) for at, wide in enumerate(widths)]
    pairs = zip(ends, groups, strict=True)
    return Plan(tuple(Stage(Span(a, b), one, (0,) * (b - a)) for (a, b), one in pairs))


def divided_plan(
    program: ModelProgram,
    groups: Groups,
    seed: int,
    form: int | tuple[int, ...] | None = None,
    recompute: bool = False,
    *,
    in_rows: bool = False,
) -> Plan:
    """Return a plan of about equal stages, in one form wherever that is allowed, or in forms at random."""
    chance = random.Random(seed)  # noqa: S311 (no secrets)
    forms = []
    for run in group(program.followed.recording)[0]:
        split, allowed = run.split()
        if in_rows and split is Split.MATRIX:  # sequence parallelism: 3 beside 1, 4 beside 2
            allowed = (*allowed, *(one + 2 for one in allowed if one))
        chosen = form if form in allowed else chance.choice(allowed)
        forms.append(0 if split is Split.FOLLOW else chosen)
    if isinstance(form, tuple):
        forms = list(form)
    ends = itertools.pairwise(at * len(forms) // len(groups) for at in range(len(groups) + 1))
    return Plan(
        tuple(
            Stage(
                Span(first, stop),
                Group(((0, devices),), Mode(replicas, recompute)),
                tuple(forms[first:stop]) if devices > replicas else (0,) * (stop - first),
            )
            for (first, stop), (devices, replicas) in zip(ends, groups, strict=True)
        )
    )


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
    divided: Groups = ()
    again: Sequence[str] = ()
    """Layers that are computed again alone."""

    def layout(self, plan: Plan) -> RunLayout:
        return replace(layout_of(plan, self.schedule, self.micro_batch), again=dict.fromkeys(self.again, 0))


AGAIN = ("blocks.0.mlp.0", "blocks.0.mlp.1", "blocks.1.attention.scaled_dot_product_attention")
CASES = {
    "unet 2-1-1": Case(models.unet, one_f_one_b(3, 3, (3, 3, 1)), (2, 1, 1), 5),
    "tied 1-2-1": Case(models.tied_gpt, zero_bubble_h1(3, 3), (1, 2, 1), 3),
    "resnet 1-1-1-1": Case(models.resnet, gpipe(4, 2), (1, 1, 1, 1), 2),
    "gpt 3-1": Case(models.gpt, one_f_one_b(2, 2), (3, 1), 4, recompute=(0, 1)),
    "gpt 2-2-2-2": Case(
        models.gpt, interleaved(2, 2, 2), (2, 2, 2, 2), 3, again=("blocks.0.mlp.0", "blocks.0.mlp.1")
    ),
    "tied gpt in all forms 2-2": Case(models.tied_gpt, one_f_one_b(2, 2), (2, 2), 3, divided=((2, 1), (2, 2))),
    "choices 4": Case(models.chosen, one_f_one_b(1, 2), (4,), 5),
    "two samples on 3-1": Case(models.gpt, one_f_one_b(2, 2), (3, 1), 2, recompute=(0,)),
    "a sample on 1-3": Case(models.unet, gpipe(2, 2), (1, 3), 1),
    "a sample in halves on 1-2-1": Case(models.tied_gpt, zero_bubble_h1(3, 3), (1, 2, 1), 1),
    "a sample in all forms 2-2": Case(models.tied_gpt, one_f_one_b(2, 2), (2, 2), 1, divided=((2, 1), (2, 2))),
    "a sample in all forms 4": Case(models.gpt, gpipe(1, 2), (4,), 1, divided=((4, 2),)),
}
"""Plans for four processes."""


def doubled(make: Callable[[], models.Made]) -> models.Made:
    """Return a model, the same one each time, and its inputs in float64."""
    torch.manual_seed(3)
    model, inputs = make()
    return model.double(), pytree.tree_map(lambda one: one.double() if one.is_floating_point() else one, inputs)


def case_model(case: Case) -> tuple[nn.Module, Any, Plan]:
    model, inputs = doubled(case.make)
    program = ModelProgram.of(model, inputs)
    if case.divided:
        return model, inputs, divided_plan(program, case.divided, seed=1, in_rows=True)
    return model, inputs, equal_plan(len(program.layers), case.widths, case.recompute)


def data_of(case: Case, inputs: Any) -> tuple[Any, torch.Tensor]:
    many = case.micro_batch * case.schedule.micro_batches
    return batch_of(inputs, many), torch.randn(many, dtype=torch.double)


def error_of(pipeline: Pipeline, loss: float | None, model: nn.Module, batch: Any, targets: torch.Tensor) -> float:
    """Return the largest difference from the unsplit model: of the loss, and of every gradient by its size."""
    expected, wanted = unsplit(model, batch, targets, pipeline.layout.schedule.micro_batches)
    errors = [0.0 if loss is None else abs(loss - expected) / expected]
    for name, one in pipeline.parameters.items():
        want, found = part_of(pipeline, name, wanted[name]), one.grad
        assert (want is None) == (found is None), name
        if want is not None and found is not None:
            errors.append(float((found - want).abs().max() / want.abs().max().clamp(min=1e-3)))
    return max(errors)


def part_of(pipeline: Pipeline, name: str, whole: torch.Tensor | None) -> torch.Tensor | None:
    """Return the part of a whole gradient or parameter that a process has."""
    if name not in pipeline.held or whole is None:
        return whole
    dimension, indices = pipeline.held[name]
    return whole.index_select(dimension, torch.tensor(list(indices)))
