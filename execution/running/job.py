"""What the processes of ``pipecut run`` and ``pipecut validate`` get to do, and what those of ``run`` do.

A plan run by the processes of torch.distributed, for a training program of one's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from pipecut.execution.errors import StagesError
from pipecut.execution.processes.channel import Channel, DistributedChannel, device_here
from pipecut.execution.processes.local import Voice
from pipecut.execution.running.data import mean_square, placed, samples_like
from pipecut.execution.running.layout import RunLayout, layout_of
from pipecut.execution.running.pipeline import LossFunction, Pipeline
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.precision import Precision
from pipecut.formulation.schedules.catalogue import schedule_of
from pipecut.formulation.schedules.table import PipelineSchedule
from pipecut.ingest.torch.export import Inputs
from pipecut.ingest.torch.hugging_face import Configured
from pipecut.ingest.torch.source import load_function, load_model

LEARNING_RATE = 0.01
"""Of the optimiser, where nobody gives one."""


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
        rate = LEARNING_RATE if self.learning_rate is None else self.learning_rate
        return kind(weights, lr=rate) if weights else None

    def connection(self, process: int) -> Callable[..., Channel]:
        """Return what joins a process to the others."""
        del process
        return partial(DistributedChannel, timeout_s=self.timeout_s)

    def pipeline(
        self,
        process: int,
        model: nn.Module,
        inputs: Inputs,
        *,
        precision: Precision | None = None,
        loss: LossFunction | None = None,
    ) -> Pipeline:
        """Return a process's part of the run. Raises StagesError, TraceError, PeerError."""
        kind = Pipeline
        if self.by_torch:
            from pipecut.execution.running.by_torch import TorchPipeline

            kind = TorchPipeline
        return kind(
            model,
            inputs,
            self.plan,
            self.layout,
            loss or self.loss_function(),
            process,
            self.connection(process),
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


def train(process: int, say: Voice, job: RunJob) -> list[tuple[str, str, int, int]]:
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


def pipeline(
    model: nn.Module,
    inputs: Inputs,
    problem: Instance,
    plan: Plan,
    loss: LossFunction,
    *,
    schedule: PipelineSchedule | None = None,
    seed: int = 0,
    timeout_s: float = 300.0,
) -> Pipeline:
    """Return this process's part of a run, once torch.distributed is initialised with a process for every device.

    Every process calls this with the same model and the same arguments, and trains the ``parameters`` of what it
    gets: ``step`` leaves gradients in them. ``inputs`` are example inputs of any batch; ``loss`` takes what the
    model returns and the targets of the same samples, and returns the mean over these. Without ``schedule`` the
    order is that of the problem's training, whose ``precision`` counts as well: the model is made to compute in
    it. Where a process is missed for ``timeout_s``, a step raises PeerError.
    Raises StagesError where the plan cannot be run, or by so many processes, and TraceError where torch cannot
    follow the model. Cost: an export of the model; two where stages have unequal widths.
    """
    training, layers = problem.training, [layer.name for layer in problem.layers]
    order = schedule or schedule_of(training, len(plan), warm_ups=plan.warm_ups(training))
    layout = layout_of(plan, order, training.micro_batch, problem)
    if dist.get_world_size() != layout.size:
        raise StagesError(f"devices of the plan: {layout.size}, processes: {dist.get_world_size()}")
    connect = partial(DistributedChannel, timeout_s=timeout_s)
    return Pipeline(
        model,
        inputs,
        plan,
        layout,
        loss,
        dist.get_rank(),
        connect,
        layers=layers,
        seed=seed,
        precision=training.precision,
    )
