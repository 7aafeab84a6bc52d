"""Work that tests give to processes: functions of a module that a new process can import."""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from execution.running.channel import DistributedChannel
from execution.running.layout import layout_of
from execution.running.pipeline import Pipeline
from tests.execution.cases import CASES, case_model, data_of, error_of, mean_square


def cases(process: int, say: Callable[[Any], None]) -> dict[str, float]:
    """Run every case; return the largest error of each in this process, relative to the gradient's size."""
    found = {}
    for name, case in CASES.items():
        model, inputs, plan = case_model(case)
        layout = layout_of(plan, case.schedule, case.micro_batch)
        batch, targets = data_of(case, inputs)
        connect = partial(DistributedChannel, timeout_s=60)
        pipeline = Pipeline(copy.deepcopy(model), inputs, plan, layout, mean_square, process, connect)
        found[name] = error_of(pipeline, pipeline.step(batch, targets), model, batch, targets)
        say(name)
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
        ticket = channel.receive(tensor, (process - 1) % 3, 1, f"turn {turn} from process {(process - 1) % 3}")
        sent = channel.send(torch.ones(4), peer, 1, f"turn {turn} to process {peer}")
        ticket.wait()
        sent.wait()
        time.sleep(0.01)


def one_is_late(process: int, say: Callable[[Any], None]) -> None:
    """Wait a second for what never comes."""
    channel = DistributedChannel(timeout_s=1)
    if process == 0:
        channel.receive(torch.zeros(1), 1, 0, "stage 0: gradient of micro-batch 2 from process 1").wait()
    time.sleep(20)
