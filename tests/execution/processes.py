"""Work that tests give to processes: functions of a module that a new process can import."""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.running import sleeping
from pipecut.execution.measuring import peak_bytes
from pipecut.execution.processes.channel import DistributedChannel, Tag
from pipecut.execution.running.by_torch import TorchPipeline
from pipecut.execution.running.layout import layout_of
from pipecut.execution.running.pipeline import Pipeline
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from tests.execution.cases import CASES, case_model, data_of, equal_plan, error_of, mean_square

SLEEPING, CLOSE = ("one_f_one_b", "zero_bubble_h1"), 1.03
DEEP, WIDTH, MICRO_BATCH = 80, 32, 256


def deep() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A deep model whose memory is that of its activations."""
    layers = [part for _ in range(DEEP // 2 - 1) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1), nn.Tanh()), (torch.zeros(MICRO_BATCH, WIDTH),)


IN_LANES = ("unet 2-1-1", "gpt 2-2-2-2")
"""Cases whose tensors are told apart by groups of two processes, as nccl needs it, and not by tags."""


def cases(process: int, say: Callable[[Any], None]) -> dict[str, float]:
    """Run every case; return the largest error of each in this process, relative to the gradient's size."""
    found = {}
    for name, case in CASES.items():
        model, inputs, plan = case_model(case)
        layout = case.layout(plan)
        batch, targets = data_of(case, inputs)
        lanes = layout.lanes() if name in IN_LANES else ()
        connect = partial(DistributedChannel, timeout_s=60, lanes=lanes)
        pipeline = Pipeline(copy.deepcopy(model), inputs, plan, layout, mean_square, process, connect)
        found[name] = error_of(pipeline, pipeline.step(batch, targets), model, batch, targets)
        say(name)
    return found


BY_TORCH = ("resnet 1-1-1-1", "gpt 2-2-2-2")
"""Cases that torch's own runtime runs as well."""


def by_torch(process: int, say: Callable[[Any], None]) -> dict[str, float]:
    """Run cases by torch's own runtime, two steps each; return the largest errors."""
    found = {}
    for name in (*BY_TORCH, "halves"):
        case = CASES[name] if name in CASES else replace(CASES[BY_TORCH[0]], schedule=zero_bubble_h1(4, 4))
        model, inputs, plan = case_model(case)
        layout = case.layout(plan)
        batch, targets = data_of(case, inputs)
        connect = partial(DistributedChannel, timeout_s=60)
        made = [
            kind(copy.deepcopy(model), inputs, plan, layout, mean_square, process, connect)
            for kind in (TorchPipeline, Pipeline)
        ]
        losses = [one.step(batch, targets) for one in made]
        found[name] = error_of(made[0], losses[0], model, batch, targets)
        theirs, ours = (one.parameters for one in made)
        assert all((theirs[key].grad is None) == (one.grad is None) for key, one in ours.items())
        pairs = [(one.grad, theirs[key].grad) for key, one in ours.items()]
        found[f"{name} beside ours"] = max(
            float((one - other).abs().max()) for one, other in pairs if one is not None and other is not None
        )
    return found


def one_dies(process: int, say: Callable[[Any], None], how: str) -> None:
    """Exchange for ever, until one process ends in the given way."""
    channel = DistributedChannel(timeout_s=30)
    for turn in range(10_000):
        if process == 1 and turn == 3:
            if how == "raise":
                raise ValueError("no more")
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "exit":
                os._exit(3)
        say(os.getpid())
        tensor = torch.zeros(4)
        peer = (process + 1) % 3
        before = (process - 1) % 3
        ticket = channel.receive(tensor, before, Tag(0, 1), f"turn {turn} from process {before}")
        sent = channel.send(torch.ones(4), peer, Tag(0, 1), f"turn {turn} to process {peer}")
        ticket.wait()
        sent.wait()
        time.sleep(0.01)


def one_is_late(process: int, say: Callable[[Any], None]) -> None:
    """Wait a second for what never comes."""
    channel = DistributedChannel(timeout_s=1)
    if process == 0:
        channel.receive(torch.zeros(1), 1, Tag(0, 0), "stage 0: gradient of micro-batch 2 from process 1").wait()
    time.sleep(20)


def one_hangs(process: int, say: Any) -> None:
    """Train until one process stops in the middle of a pass, for ever."""
    model, inputs = deep()
    plan = equal_plan(DEEP, (1, 1, 1))
    layout = layout_of(plan, one_f_one_b(3, 4), MICRO_BATCH)
    pipeline = Pipeline(
        model, inputs, plan, layout, mean_square, process, partial(DistributedChannel, timeout_s=3)
    )
    pipeline.doing = say.doing
    if process == 1:
        (runner,) = pipeline.stages
        backward = runner.backward

        def stopped(number: int, gradients: Any) -> Any:
            if number == 2:
                say("hangs")
                time.sleep(600)
            return backward(number, gradients)

        runner.backward = stopped  # type: ignore[method-assign]
    batch, targets = torch.randn(4 * MICRO_BATCH, WIDTH), torch.randn(4 * MICRO_BATCH)
    pipeline.step((batch,), targets)


def sleeping_and_deep(process: int, say: Callable[[Any], None]) -> tuple[dict[str, list[int]], int]:
    """Run stages that sleep, in two orders, then a deep model; return times and most bytes held."""
    orders = {name: sleeping.schedules()[name] for name in SLEEPING}
    enough_ns = {name: int(CLOSE * sleeping.predicted_ns(order)) for name, order in orders.items()}
    found = {name: sleeping.steps(process, say, order, 30, enough_ns[name]) for name, order in orders.items()}
    if process > 1:
        return found, 0
    model, inputs = deep()
    plan = equal_plan(DEEP, (1, 1))
    layout = layout_of(plan, one_f_one_b(2, 8), MICRO_BATCH)
    connect = partial(DistributedChannel, timeout_s=60)
    pipeline = Pipeline(model, inputs, plan, layout, mean_square, process, connect)
    del model
    batch, targets = torch.randn(8 * MICRO_BATCH, WIDTH), torch.randn(8 * MICRO_BATCH)
    pipeline.step((batch,), targets)
    return found, peak_bytes(pipeline, (batch,), targets)


LOSSES: list[int] = []


def ending(outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
    """Return a loss of tiny.py, until process 1 ends in the way that HOW says, in its fourth step."""
    LOSSES.append(len(LOSSES))
    if len(LOSSES) == 16 and os.environ["RANK"] == "1":
        if os.environ["HOW"] == "raise":
            raise ValueError("no more")
        if os.environ["HOW"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    return outputs.square().mean()
