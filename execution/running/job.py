"""What every process of ``pipecut run`` and ``pipecut validate`` does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from execution.errors import StagesError
from execution.running.channel import DistributedChannel
from execution.running.data import mean_square, samples_like
from execution.running.layout import RunLayout
from execution.running.pipeline import Pipeline, samples_of
from formulation.problem.plan import Plan
from ingest.torch.export import Inputs
from ingest.torch.hugging_face import Configured
from ingest.torch.source import load_model

__all__ = ["Difference", "RunJob", "StepNews", "train", "validate"]

Say = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class RunJob:
    """A plan to run, in words that a new process understands.

    ``model`` is what the scenario says of it, with what is ``configured`` and its ``folder``; ``layers`` are those
    that the plan numbers. Each process waits ``timeout_s`` for another before it gives up.
    """

    model: str
    configured: Configured | None
    folder: Path
    plan: Plan
    layers: tuple[str, ...]
    layout: RunLayout
    steps: int = 1
    seed: int = 0
    learning_rate: float = 0.01
    timeout_s: float = 300.0

    def built(self) -> tuple[nn.Module, Inputs]:
        """Return the model, with the same weights in every process. Raises ModelError."""
        torch.manual_seed(self.seed)
        return load_model(self.model, self.configured, self.folder)

    def batch(self, inputs: Inputs, step: int) -> Inputs:
        """Return the samples of a step, the same in every process."""
        many = self.layout.micro_batch * self.layout.schedule.micro_batches
        return samples_like(inputs, many, hash((self.seed, step)) & 0x7FFF_FFFF)

    def pipeline(self, process: int, model: nn.Module, inputs: Inputs) -> Pipeline:
        """Return a process's part of the run. Raises StagesError, TraceError, PeerError."""
        connect = partial(DistributedChannel, timeout_s=self.timeout_s)
        return Pipeline(
            model,
            inputs,
            self.plan,
            self.layout,
            mean_square,
            process,
            connect,
            layers=self.layers,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class StepNews:
    """A step that was run: its number from 1, the loss before the weights changed, and its time."""

    step: int
    loss: float
    time_ns: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The value of a gradient that differs most from the unsplit model's: by ``relative`` of the largest in it."""

    stage: int
    parameter: str
    found: float
    expected: float
    relative: float


def train(process: int, say: Say, job: RunJob) -> list[tuple[str, str, int, int]]:
    """Run the steps with plain gradient descent; the first process of the last stage tells of each.

    Returns the actions of the last step: token, letter of the kind, start and stop by the clock of the machine.
    """
    model, inputs = job.built()
    pipeline = job.pipeline(process, model, inputs)
    del model
    weights = [one for one in pipeline.parameters.values() if one.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=job.learning_rate) if weights else None
    for step in range(1, job.steps + 1):
        batch = job.batch(inputs, step)
        dist.barrier()
        began = time.perf_counter_ns()
        loss = pipeline.step(batch)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        dist.barrier()
        if loss is not None and process == job.layout.processes[-1][0]:
            say(StepNews(step, loss, time.perf_counter_ns() - began))
    return [(str(action), action.kind.value, start, stop) for action, start, stop in pipeline.times]


def validate(process: int, say: Say, job: RunJob) -> list[Difference]:
    """Run one step in float64, and the unsplit model in process 0; return the largest difference of each gradient.

    Dropout is switched off in both, as they draw different numbers. Raises StagesError for statistics of BatchNorm
    over several devices, which are not those of the whole micro-batch, as in data parallelism.
    """
    model, inputs = job.built()
    _prepare(model, job.layout)
    inputs = torch.utils._pytree.tree_map(_doubled, inputs)  # pyright: ignore[reportAttributeAccessIssue]
    batch = job.batch(inputs, 0)
    expected = _unsplit(model, batch, job.layout) if process == 0 else {}
    say("reference")
    pipeline = job.pipeline(process, model, inputs)
    pipeline.step(batch)
    found = []
    stages = {name: one.module.index for one in pipeline.stages for name, _ in one.module.named_parameters()}
    for name, parameter in model.named_parameters():
        reference = expected[name] if process == 0 else torch.empty_like(parameter.detach())
        dist.broadcast(reference, 0)
        if name in stages:
            ours = torch.zeros_like(reference) if parameter.grad is None else parameter.grad
            found.append(_difference(stages[name], name, ours, reference))
    return found


def _prepare(model: nn.Module, layout: RunLayout) -> None:
    model.double()
    for name, part in model.named_modules():
        if isinstance(part, _DropoutNd):
            part.p = 0.0
        if isinstance(part, _BatchNorm) and any(len(one) > 1 for one in layout.processes):
            raise StagesError(
                f"layer {name}: over several devices BatchNorm takes the statistics of each device's samples, as "
                "in data parallelism, so gradients differ from the unsplit model's: validate a plan with one "
                "device a stage"
            )


def _doubled(one: Any) -> Any:  # noqa: ANN401 (any leaf)
    return one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one


def _unsplit(model: nn.Module, batch: Inputs, layout: RunLayout) -> dict[str, torch.Tensor]:
    """Return the gradients of a step of the whole model, micro-batch by micro-batch."""
    many = layout.schedule.micro_batches
    model.train()
    for number in range(many):
        part = samples_of(batch, range(number * layout.micro_batch, (number + 1) * layout.micro_batch))
        outputs = model(**part) if isinstance(part, dict) else model(*part)
        (mean_square(outputs, None) / many).backward()
    found = {}
    for name, one in model.named_parameters():
        found[name] = torch.zeros_like(one.detach()) if one.grad is None else one.grad.clone()
        one.grad = None
    return found


def _difference(stage: int, name: str, ours: torch.Tensor, reference: torch.Tensor) -> Difference:
    apart = (ours - reference).abs().reshape(-1)
    at = int(apart.argmax())
    largest = float(reference.abs().max())
    relative = float(apart[at]) / largest if largest else float(apart[at])
    return Difference(stage, name, float(ours.reshape(-1)[at]), float(reference.reshape(-1)[at]), relative)
