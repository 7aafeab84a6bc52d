"""What every process of ``pipecut run`` and ``pipecut validate`` does."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from execution.dividing.moves import taking
from execution.errors import StagesError
from execution.processes.channel import DistributedChannel
from execution.processes.devices import device_here
from execution.running.by_torch import TorchPipeline
from execution.running.data import mean_square, placed, samples_like, samples_of
from execution.running.layout import RunLayout
from execution.running.pipeline import LossFunction, Pipeline
from formulation.problem.plan import Plan
from formulation.problem.precision import Precision
from ingest.torch.export import Inputs
from ingest.torch.hugging_face import Configured
from ingest.torch.source import load_function, load_model

__all__ = ["Difference", "RunJob", "StepNews", "train"]


LEARNING_RATE = 0.01
FLOOR = 1e-4
"""The least size by which gradients are compared, as a share of the model's largest one."""


class Say(Protocol):
    """How a process tells: news for who started it, and what it does just now, in case it stops there."""

    def __call__(self, news: Any) -> None:  # noqa: ANN401 (anything that can be pickled)
        """Tell news."""
        ...

    def doing(self, what: str) -> None:
        """Note what is done from now on."""
        ...


@dataclass(frozen=True, slots=True)
class RunJob:
    """A plan to run, in words that a new process understands.

    ``model`` is what the scenario says of it, with what is ``configured`` and its ``folder``; ``layers`` are those
    that the plan numbers. Each process waits ``timeout_s`` for another before it gives up. ``loss`` is
    ``module:function``, which takes what the model returns and the inputs of the same samples (None: the mean of
    the squares of the outputs). A snapshot is written into the folder ``snapshots`` after every ``save_every``
    steps (0: never), and the run goes on from the latest one in ``resume``. ``learning_rate`` is that of the
    optimiser (None: that of the snapshot, or ``LEARNING_RATE``). ``by_torch``: torch's own runtime
    runs the stages.
    """

    model: str
    configured: Configured | None
    folder: Path
    plan: Plan
    layers: tuple[str, ...]
    layout: RunLayout
    steps: int = 1
    seed: int = 0
    learning_rate: float | None = None
    timeout_s: float = 300.0
    optimizer: str = "sgd"
    precision: Precision | None = None
    loss: str | None = None
    snapshots: Path | None = None
    save_every: int = 0
    resume: Path | None = None
    by_torch: bool = False

    def built(self) -> tuple[nn.Module, Inputs]:
        """Return the model on this process's device, with the same weights in every process. Raises ModelError."""
        torch.manual_seed(self.seed)
        model, inputs = load_model(self.model, self.configured, self.folder)
        return model.to(device_here()), placed(inputs, device_here())

    def batch(self, inputs: Inputs, step: int) -> Inputs:
        """Return the samples of a step, the same in every process."""
        many = self.layout.micro_batch * self.layout.schedule.micro_batches
        return samples_like(inputs, many, hash((self.seed, step)) & 0x7FFF_FFFF)

    def loss_function(self) -> LossFunction:
        """Return the function from outputs and inputs to the loss. Raises ModelError."""
        return mean_square if self.loss is None else load_function(self.loss, self.folder)

    def optimizer_of(self, pipeline: Pipeline) -> torch.optim.Optimizer | None:
        """Return the optimiser of a process's weights; None where it has none to train."""
        weights = [one for one in pipeline.parameters.values() if one.requires_grad]
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.SGD
        return (
            kind(weights, lr=LEARNING_RATE if self.learning_rate is None else self.learning_rate)
            if weights
            else None
        )

    def pipeline(
        self, process: int, model: nn.Module, inputs: Inputs, *, precision: Precision | None = None
    ) -> Pipeline:
        """Return a process's part of the run. Raises StagesError, TraceError, PeerError."""
        connect = partial(DistributedChannel, timeout_s=self.timeout_s)
        kind = TorchPipeline if self.by_torch else Pipeline
        return kind(
            model,
            inputs,
            self.plan,
            self.layout,
            self.loss_function(),
            process,
            connect,
            layers=self.layers,
            seed=self.seed,
            precision=precision,
        )


@dataclass(frozen=True, slots=True)
class StepNews:
    """A step that was run: its number from 1, the loss before the weights changed, and its time.

    ``snapshot`` is the folder of one that was written behind it.
    """

    step: int
    loss: float
    time_ns: int
    snapshot: str | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """The value of a gradient that differs most from the unsplit model's: by ``relative`` of the largest in it.

    A gradient that is 0 but for rounding (a bias before a softmax has one) is compared by ``FLOOR`` of the model's
    largest gradient.
    """

    stage: int
    parameter: str
    found: float
    expected: float
    relative: float


def train(process: int, say: Say, job: RunJob) -> list[tuple[str, str, int, int]]:
    """Run the steps; the first process of the last stage tells of each.

    Returns the actions of the last step: token, letter of the kind, start and stop by the clock of the machine.
    """
    model, inputs = job.built()
    pipeline = job.pipeline(process, model, inputs, precision=job.precision)
    del model
    pipeline.doing = say.doing
    optimizer = job.optimizer_of(pipeline)
    if job.resume is not None:
        pipeline.load(job.resume, optimizer)
        for group in optimizer.param_groups if optimizer is not None else ():
            group["lr"] = group["lr"] if job.learning_rate is None else job.learning_rate
    done = pipeline.steps
    for step in range(done + 1, done + job.steps + 1):
        batch = job.batch(inputs, step)
        pipeline.together()
        began = time.perf_counter_ns()
        loss = pipeline.step(batch, batch)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        pipeline.together()
        spent = time.perf_counter_ns() - began
        saves = job.snapshots is not None and job.save_every and step % job.save_every == 0
        saved = str(pipeline.save(job.snapshots, optimizer)) if saves and job.snapshots is not None else None
        if loss is not None and process == job.layout.processes[-1][0]:
            say(StepNews(step, loss, spent, saved))
    return [(str(action), action.kind.letter, start, stop) for action, start, stop in pipeline.times]


def validate(process: int, say: Say, job: RunJob) -> list[Difference]:
    """Run one step in float64, and the unsplit model in process 0; return the largest difference of each gradient.

    Dropout is switched off in both, as they draw different numbers. Raises StagesError for statistics of BatchNorm
    over several devices, which are not those of the whole micro-batch, as in data parallelism.
    """
    model, inputs = job.built()
    _prepare(model, job.layout)
    inputs = torch.utils._pytree.tree_map(_doubled, inputs)  # pyright: ignore[reportAttributeAccessIssue]
    batch = job.batch(inputs, 0)
    expected = _unsplit(model, batch, job) if process == 0 else {}
    say("reference")
    pipeline = job.pipeline(process, model, inputs)
    pipeline.doing = say.doing
    pipeline.step(batch, batch)
    found = []
    most = torch.tensor(max((float(one.abs().max()) for one in expected.values()), default=0.0))
    dist.broadcast(most, 0)
    stages = {name: one.module.index for one in pipeline.stages for name, _ in one.module.named_parameters()}
    for name, whole in model.named_parameters():
        reference = expected[name] if process == 0 else torch.empty_like(whole.detach())
        dist.broadcast(reference, 0)
        if name in stages:
            parameter, part = pipeline.parameters[name], pipeline.held.get(name)
            reference = reference if part is None else taking(reference, *part)
            ours = torch.zeros_like(reference) if parameter.grad is None else parameter.grad
            found.append(_difference(stages[name], name, ours, reference, FLOOR * float(most)))
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


def _unsplit(model: nn.Module, batch: Inputs, job: RunJob) -> dict[str, torch.Tensor]:
    """Return the gradients of a step of the whole model, micro-batch by micro-batch."""
    layout, loss = job.layout, job.loss_function()
    many = layout.schedule.micro_batches
    model.train()
    for number in range(many):
        part = samples_of(batch, range(number * layout.micro_batch, (number + 1) * layout.micro_batch))
        outputs = model(**part) if isinstance(part, dict) else model(*part)
        (loss(outputs, part) / many).backward()
    found = {}
    for name, one in model.named_parameters():
        found[name] = torch.zeros_like(one.detach()) if one.grad is None else one.grad.clone()
        one.grad = None
    return found


def _difference(stage: int, name: str, ours: torch.Tensor, reference: torch.Tensor, least: float) -> Difference:
    """Return the largest difference, by the size of the gradient, or by ``least`` if that is more."""
    apart = (ours - reference).abs().reshape(-1)
    at = int(apart.argmax())
    largest = max(float(reference.abs().max()), least)
    relative = float(apart[at]) / largest if largest else float(apart[at])
    return Difference(stage, name, float(ours.reshape(-1)[at]), float(reference.reshape(-1)[at]), relative)
