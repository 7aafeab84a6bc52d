"""A plan run by the processes of torch.distributed, for a training program of one's own."""

from __future__ import annotations

from functools import partial

import torch.distributed as dist
from torch import nn

from execution.errors import StagesError
from execution.processes.channel import DistributedChannel
from execution.running.layout import layout_of
from execution.running.pipeline import LossFunction, Pipeline
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan
from formulation.schedules.catalogue import schedule_of
from formulation.schedules.table import PipelineSchedule
from ingest.torch.export import Inputs


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
        raise StagesError(f"the plan has {layout.size} devices, and there are {dist.get_world_size()} processes")
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
