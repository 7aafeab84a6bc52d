"""What the processes of ``pipecut run`` and ``pipecut validate`` get to do, and what those of ``run`` do.

The same stages run by torch's own pipelining: ``PipelineStage`` and its runtime of schedules.

It runs less: all stages on equally many devices, no layer divided, nothing computed again, and a gradient for
every tensor that crosses a cut. What it needs of stages that the exported programs do not give by themselves:
outputs that nothing else keeps, as halves of backward passes detach them in place, and gradients without gaps.

A plan run by the processes of torch.distributed, for a training program of one's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules

from pipecut.execution.errors import StagesError
from pipecut.execution.processes.channel import Channel, DistributedChannel, device_here
from pipecut.execution.running.data import mean_square, placed, samples_like
from pipecut.execution.running.layout import RunLayout, layout_of
from pipecut.execution.running.pipeline import LossFunction, Pipeline
from pipecut.execution.splitting.programs import HandedTensor
from pipecut.execution.splitting.stages import StageModule
from pipecut.formulation.costs.amounts import counted
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.precision import Precision
from pipecut.formulation.schedules.catalogue import schedule_of
from pipecut.formulation.schedules.table import Action, PipelineSchedule
from pipecut.ingest.torch.export import Inputs
from pipecut.ingest.torch.hugging_face import Configured
from pipecut.ingest.torch.source import load_function, load_model

_INPUT = "input "
"""Stands before the names of the model's inputs, which are keywords beside those of torch's runtime."""


class TorchPipeline(Pipeline):
    """A pipeline whose steps torch's runtime runs; made and used as the other one, over torch.distributed.

    ``times`` stay empty. Raises StagesError for what torch's runtime cannot run, with stage and tensor.
    """

    _runtime: Any = None

    def step(self, inputs: Inputs, targets: object = None) -> float | None:
        """Run all micro-batches of a step and sum the gradients, as :meth:`Pipeline.step` does."""
        self._check()
        values, many = self._begun(inputs, targets), self.layout.schedule.micro_batches
        if self._runtime is None:
            self._runtime = self._made()
        wrapped: dict[int, _Called] = self._runtime[1]
        for one in wrapped.values():
            one.fixed = {name: value for name, value in values.items() if not isinstance(value, torch.Tensor)}
        first, *_ = self.layout.stages_of(self._process)
        rows = self.layout.samples(first, self._process)
        cut = {
            name: torch.cat([self._cut(value, number, rows) for number in range(many)])
            for name, value in values.items()
            if isinstance(value, torch.Tensor)
        }
        arguments = [cut[one.name] for one in wrapped[0].stage.inputs] if 0 in wrapped else []
        read = {one.name for at, called in wrapped.items() if at for one in called.stage.inputs}
        losses: list[torch.Tensor] = []
        numbers = torch.arange(many).repeat_interleave(len(rows))
        last = self.layout.schedule.stages - 1 in wrapped
        self._runtime[0].step(
            *arguments,
            target=numbers if last else None,
            losses=losses if last else None,
            **{_INPUT + name: cut[name] for name in sorted(read & set(cut))},
        )
        if last:
            self.stages[-1].total = torch.stack([one.detach() for one in losses]).sum()
        return self._ended()

    def _made(self) -> tuple[Any, dict[int, _Called]]:
        """Return torch's runtime for this process's stages, and these by number."""
        layout, process = self.layout, self._process
        width = len(layout.processes[0])
        lanes = [[rank * width + at for rank in range(layout.schedule.ranks)] for at in range(width)]
        groups: list[Any] = [dist.new_group(lane) for lane in lanes]
        wrapped = {one.module.index: _Called(one.module) for one in self.stages}
        stages = [
            PipelineStage(
                called,
                at,
                layout.schedule.stages,
                self._device,
                input_args=_examples(called.stage.takes if at else called.stage.inputs),
                output_args=_examples(called.stage.gives),
                group=groups[process % width],
            )
            for at, called in wrapped.items()
        ]
        runtime = torch_schedules._PipelineScheduleRuntime(
            stages,  # type: ignore[arg-type]
            layout.schedule.micro_batches,
            loss_fn=partial(_loss, self),
            scale_grads=False,
        )
        order = {rank: _tokens(layout.schedule.actions(rank)) for rank in range(layout.schedule.ranks)}
        runtime._prepare_schedule_with_comms(order)
        return runtime, wrapped

    def _check(self) -> None:
        """Raise StagesError for a stage, or formats, that torch's runtime does not run."""
        if self._copies is not None:
            raise StagesError(
                "gradients of micro-batches are added up in 32 bits, the weights have 16: torch's own runtime "
                "does not run that; leave --backend out"
            )
        widths = [len(one) for one in self.layout.processes]
        for stage, devices in enumerate(self.layout.stages):
            what = None
            if widths[stage] != widths[0]:
                what = f"has {counted(widths[stage], 'device')}, stage 0 {widths[0]}"
            if devices.degree > 1:
                what = "has layers that are divided over devices"
            for runner in self.stages:
                if runner.module.index == stage and runner.recomputes:
                    what = "computes its forward pass again"
                if runner.module.index == stage and stage < len(widths) - 1:
                    plain = [one.name for one in runner.module.gives if not one.differentiable]
                    what = f"gives {plain[0]}, which has no gradient" if plain else what
            if what is not None:
                raise StagesError(
                    f"stage {stage} {what}: torch's own runtime does not run that; leave --backend out"
                )


class _Called(nn.Module):
    """A stage as torch calls it: what arrives by position, the model's inputs by name."""

    def __init__(self, stage: StageModule) -> None:
        super().__init__()
        self.stage = stage
        self.fixed: Mapping[str, Any] = {}

    def forward(self, *arriving: torch.Tensor, **named: torch.Tensor) -> Any:  # noqa: ANN401 (as torch takes it)
        """Return one tensor as itself, several as a tuple."""
        later = self.stage.inputs if self.stage.index else ()
        inputs = [named.get(_INPUT + one.name, self.fixed.get(one.name)) for one in later]
        taken = [_WithoutGaps.apply(one) if one.requires_grad else one for one in arriving]
        given = [one.clone() for one in self.stage(*taken, *inputs)]
        return given[0] if len(given) == 1 else tuple(given)


class _WithoutGaps(torch.autograd.Function):
    """A tensor whose gradient lies in memory without gaps."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 (as torch calls it)
        del ctx
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ANN401 (as torch calls it)
        del ctx
        return gradients[0].contiguous()


def _loss(pipeline: TorchPipeline, output: Any, numbers: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
    return pipeline._part_of_loss(output if isinstance(output, tuple) else (output,), int(numbers[0]))


def _examples(tensors: Sequence[HandedTensor]) -> tuple[torch.Tensor, ...]:
    empty = [torch.empty(one.shape, dtype=one.dtype, device="meta") for one in tensors]
    return tuple(one.requires_grad_(other.differentiable) for one, other in zip(empty, tensors, strict=True))


def _tokens(actions: Iterable[Action]) -> list[Any]:
    return [torch_schedules._Action.from_str(str(action)) for action in actions]


LEARNING_RATE = 0.01
"""Of the optimiser, where nobody gives one."""


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
        kind = TorchPipeline if self.by_torch else Pipeline
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
