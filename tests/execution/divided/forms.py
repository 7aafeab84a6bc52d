"""Plans whose layers are divided over the devices of a replica, run by threads, beside the unsplit model."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pipecut.execution.running.layout import RunLayout, layout_of
from pipecut.execution.running.pipeline import Pipeline
from pipecut.execution.splitting.stages import ModelProgram
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import PipelineSchedule
from tests.execution import models
from tests.execution.cases import Groups, batch_of, divided_plan, doubled, mean_square, part_of, unsplit
from tests.execution.threads import Network, ThreadChannel, in_threads


@dataclass(frozen=True)
class Divided:
    """A run of a plan: the pipelines of all processes, what they returned, and what the unsplit model says."""

    pipelines: list[Pipeline]
    losses: list[float | None]
    loss: float
    wanted: dict[str, Any]
    network: Network

    def check(self) -> None:
        """Hold losses and gradients, a device's part of them, against the unsplit model's."""
        for process, found in enumerate(self.losses):
            assert (found is None) == (process not in self.pipelines[0].layout.processes[-1])
            assert found is None or abs(found - self.loss) < 1e-12 * abs(self.loss)
        seen = set()
        for pipeline in self.pipelines:
            for name, parameter in pipeline.parameters.items():
                wanted = part_of(pipeline, name, self.wanted[name])
                torch.testing.assert_close(parameter.grad, wanted, rtol=1e-12, atol=1e-12, msg=name)
                seen.add(name)
        assert seen == {name for name in self.wanted if not name.startswith("buffer")}

    def check_buffers(self) -> None:
        """Hold buffers against the unsplit model's: a pass that is run again counts once."""
        for pipeline in self.pipelines:
            for stage in pipeline.stages:
                for name, one in stage.module.named_buffers():
                    wanted = self.wanted.get(f"buffer {name}", one)
                    torch.testing.assert_close(one, wanted, rtol=1e-12, atol=1e-12, msg=name)


@functools.lru_cache(maxsize=8)
def program_of(make: Callable[[], models.Made]) -> ModelProgram:
    """Return the program of a model in float64, traced once for all the plans that are made of its layers."""
    model, inputs = doubled(make)
    return ModelProgram.of(model, inputs)


def run_divided(
    make: Callable[[], models.Made],
    groups: Groups,
    *,
    seed: int = 0,
    form: int | tuple[int, ...] | None = None,
    micro_batch: int = 4,
    schedule: PipelineSchedule | None = None,
    recompute: bool = False,
    laid_out: Callable[[Plan, PipelineSchedule, int], RunLayout] = layout_of,
    in_rows: bool = False,
) -> Divided:
    """Run a step of a plan in float64, and of the unsplit model."""
    plan = divided_plan(program_of(make), groups, seed, form, recompute=recompute, in_rows=in_rows)
    order = schedule or one_f_one_b(len(groups), 2)
    model, inputs = doubled(make)
    many = order.micro_batches * micro_batch
    batch, targets = batch_of(inputs, many), torch.randn(many, dtype=torch.double)
    fresh = pytree.tree_map(lambda one: one.clone(), batch)
    loss, wanted = unsplit(model, fresh, targets, order.micro_batches)
    layout = laid_out(plan, order, micro_batch)
    network = Network(layout.size)

    def made(process: int) -> Pipeline:
        def connect(_: object) -> ThreadChannel:
            return ThreadChannel(network, process)

        return Pipeline(copy.deepcopy(model), inputs, plan, layout, mean_square, process, connect)

    pipelines = [made(process) for process in range(layout.size)]
    losses = in_threads(network, [partial(one.step, batch, targets) for one in pipelines])
    return Divided(pipelines, losses, loss, wanted, network)
