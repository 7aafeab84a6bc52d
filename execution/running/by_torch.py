"""The same stages run by torch's own pipelining: ``PipelineStage`` and its runtime of schedules.

It runs less: all stages on equally many devices, no layer divided, nothing computed again, and a gradient for
every tensor that crosses a cut. What it needs of stages that the exported programs do not give by themselves:
outputs that nothing else keeps, as halves of backward passes detach them in place, and gradients without gaps.

Apart from the job that uses it, because importing torch's pipelining takes as long as importing torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules

from pipecut.execution.errors import StagesError
from pipecut.execution.running.pipeline import Pipeline
from pipecut.execution.splitting.programs import HandedTensor
from pipecut.execution.splitting.stages import StageModule
from pipecut.formulation.costs.amounts import counted
from pipecut.ingest.torch.export import Inputs

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
        named = {_INPUT + name: cut[name] for name in sorted(read & set(cut))}
        of_loss = {"target": numbers, "losses": losses} if last else {}
        self._runtime[0].step(*arguments, **of_loss, **named)
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
            loss_fn=self._loss_of,
            scale_grads=False,
        )
        token = torch_schedules._Action.from_str
        order = {
            rank: [token(str(action)) for action in layout.schedule.actions(rank)]
            for rank in range(layout.schedule.ranks)
        }
        runtime._prepare_schedule_with_comms(order)
        return runtime, wrapped

    def _loss_of(self, output: Any, numbers: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        return self._part_of_loss(output if isinstance(output, tuple) else (output,), int(numbers[0]))

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
        taken = [_without_gaps(one) if one.requires_grad else one for one in arriving]
        given = [one.clone() for one in self.stage(*taken, *inputs)]
        return given[0] if len(given) == 1 else tuple(given)


def _without_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, whose gradient lies in memory without gaps."""
    seen = tensor.view_as(tensor)
    seen.register_hook(torch.Tensor.contiguous)
    return seen


def _examples(tensors: Sequence[HandedTensor]) -> tuple[torch.Tensor, ...]:
    empty = [torch.empty(one.shape, dtype=one.dtype, device="meta") for one in tensors]
    return tuple(one.requires_grad_(other.differentiable) for one, other in zip(empty, tensors, strict=True))
